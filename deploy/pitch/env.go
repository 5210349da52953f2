package pitch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// safePath is the PATH of the few programs that are executed; a prolog has none.
const safePath = "/usr/sbin:/usr/bin:/sbin:/bin"

// The exit statuses of prolog and epilog. Any other would drain the node
// although the node is fine.
const (
	exitOK        = 0
	exitNodeFault = 75 // EX_TEMPFAIL: a fault of this node, which Slurm then drains
)

// Environment variables that carry the request of the submission.
const (
	specVar = "SPANK_BIVOUAC_SPEC"
	keyVar  = "SPANK_BIVOUAC_KEY"
)

// Env is the world of a prolog or an epilog.
type Env struct {
	Getenv  func(string) string // os.Getenv if nil
	Stderr  io.Writer           // os.Stderr if nil
	Program string              // the bivouac binary; this one if empty
	Syslog  string              // the socket of syslog; /dev/log if empty
}

func (e *Env) setDefaults() {
	if e.Getenv == nil {
		e.Getenv = os.Getenv
	}
	if e.Stderr == nil {
		e.Stderr = os.Stderr
	}
	e.Program = cmp.Or(e.Program, "/proc/self/exe")
}

// first returns the first variable that is set.
func (e *Env) first(names ...string) string {
	for _, n := range names {
		if v := e.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// say prints one line, which Slurm puts into slurmd's log.
func (e *Env) say(job, format string, args ...any) {
	host := cmp.Or(e.first("SLURMD_NODENAME"), "this node")
	fmt.Fprintf(e.Stderr, "bivouac: job %s: %s: %s\n", job, host, oneLine(fmt.Sprintf(format, args...)))
}

// logEvent sends a line to syslog at socket, for the operators of the site. It does not wait for a
// syslog that hangs.
func logEvent(socket, text string) error {
	socket = cmp.Or(socket, "/dev/log")
	conn, err := net.DialTimeout("unixgram", socket, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(conn, "<%d>%s bivouac[%d]: %s", syslog.LOG_DAEMON|syslog.LOG_ERR, time.Now().Format(time.Stamp), os.Getpid(), oneLine(text))
	return err
}

// slurmJob is the job as Slurm describes it.
type slurmJob struct {
	id      string
	restart int
	uid     uint32
	gid     uint32
	hosts   []string
	self    metadata.NodeID
	workDir string // where it was submitted; "" if unknown
	leaf    string // the switch of this node; "" if the topology is unknown
}

// jobID returns the id of this component of the job; each component of a heterogeneous job has its own.
func (e *Env) jobID() (string, error) {
	id := e.first("SLURM_JOB_ID", "SLURM_JOBID")
	if !jobName.MatchString(id) {
		return "", fmt.Errorf("SLURM_JOB_ID is %.40q, not a job id: only Slurm runs this command", id)
	}
	return id, nil
}

// job reads the whole description of the job.
func (e *Env) job() (slurmJob, error) {
	var j slurmJob
	var errs []error
	var err error
	j.id, err = e.jobID()
	errs = append(errs, err)
	if v := e.first("SLURM_RESTART_COUNT", "SLURM_JOB_RESTART_COUNT"); v != "" {
		n, err := strconv.ParseUint(v, 10, 31)
		j.restart = int(n)
		errs = append(errs, err)
	}
	if dir := e.first("SLURM_JOB_WORK_DIR"); filepath.IsAbs(dir) {
		j.workDir = dir
	}
	j.uid, err = parseID("SLURM_JOB_UID", e.first("SLURM_JOB_UID", "SLURM_UID"))
	errs = append(errs, err)
	j.gid, err = parseID("SLURM_JOB_GID", e.first("SLURM_JOB_GID"))
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return j, err
	}
	j.hosts, err = cluster.ParseHostList(e.first("SLURM_JOB_NODELIST", "SLURM_NODELIST"))
	if err != nil {
		return j, fmt.Errorf("the job's node list: %w", err)
	}
	name := e.Getenv("SLURMD_NODENAME")
	i := slices.Index(j.hosts, name)
	if i < 0 {
		return j, fmt.Errorf("this node (SLURMD_NODENAME=%.80q) is not in the job's node list", name)
	}
	j.self = metadata.NodeID(i)
	if conf := e.Getenv("SLURM_CONF"); conf != "" {
		j.leaf = leafSwitch(filepath.Join(filepath.Dir(conf), "topology.conf"), name)
	}
	return j, nil
}

func parseID(name, v string) (uint32, error) {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s is %.40q, not a number", name, v)
	}
	return uint32(n), nil
}

// leafSwitch returns the switch, or the block, of a node from the topology.conf at path. slurmd needs that file on
// every node, so no node must ask slurmctld. Without the file it returns "": the copies of a file may then share a
// switch.
func leafSwitch(path, node string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return leafOf(string(text), node)
}

// leafOf finds the first line with the node in the text of a topology.conf:
//
//	SwitchName=leaf1 Nodes=node[1-4],node9
//	SwitchName=top Switches=leaf[1-2]
func leafOf(text, node string) string {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
		line, _, _ = strings.Cut(line, "#")
		name, nodes := "", ""
		for _, word := range strings.Fields(line) {
			k, v, _ := strings.Cut(word, "=")
			switch strings.ToLower(k) {
			case "switchname", "blockname":
				name = v
			case "nodes":
				nodes = v
			}
		}
		if nodes == "" || checkText("switch", name, metadata.MaxName) != nil {
			continue
		}
		if hosts, err := cluster.ParseHostList(nodes); err == nil && slices.Contains(hosts, node) {
			return name
		}
	}
	return ""
}
