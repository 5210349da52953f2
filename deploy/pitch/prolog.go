package pitch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// slack is the longest time that the prolog waits after the deadline of the keeper.
	slack = 3 * time.Second
	// minFree is the least free space of a store, in bytes.
	minFree = 64 << 20
)

// nodeFault is a fault of this node: the only error for which a prolog may fail, because then
// Slurm drains the node.
type nodeFault struct{ error }

func (s nodeFault) Unwrap() error { return s.error }

// Prolog sets the job up on this node and returns when it is ready, has failed, or the time has run out. The exit
// status is 0 unless the node itself is faulty; other failures are in the state file, where the job's tasks find them.
func Prolog(ctx context.Context, env Env, site Site) int {
	env.setDefaults()
	if env.Getenv(specVar) == "" {
		return exitOK // the job uses no bivouac
	}
	id, err := env.jobID()
	if err != nil {
		env.say("?", "%v", err)
		return exitOK
	}
	p := &prolog{env: env, site: site, place: place{site, id}, began: time.Now(), up: uptime()}
	err = p.run(ctx)
	if err == nil {
		return exitOK
	}
	env.say(id, "%v", err)
	if errors.As(err, &nodeFault{}) {
		return exitNodeFault
	}
	return exitOK
}

type prolog struct {
	env   Env
	site  Site
	place place
	began time.Time
	up    time.Duration // uptime of the machine at began
	job   slurmJob
	limit time.Duration // of the whole prolog
}

func (p *prolog) run(ctx context.Context) error {
	p.limit = time.Duration(p.site.StartTimeout)
	for _, d := range []string{p.site.Run, p.site.Mount, p.site.Log} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nodeFault{err}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	unlock, err := lockRun(ctx, p.site.Run)
	if err != nil {
		return err
	}
	err = p.pitch(ctx)
	unlock()
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

// pitch makes the directories and starts the keeper, unless an earlier prolog has done so.
func (p *prolog) pitch(ctx context.Context) error {
	rec, failed := p.plan()
	if old := readProcess(p.place.keeperPid()); old.alive() {
		if r, err := readRecord(p.place.recordFile()); err == nil && r.Job.Restart == p.job.restart {
			return nil // a second prolog of the same start
		}
		p.dismiss(ctx, old)
	}
	p.reap(ctx)
	if failed == nil {
		p.clearKept(ctx)
	}
	if !absent(p.place) {
		return nodeFault{fmt.Errorf("could not remove what an earlier start of this job left: %s", strings.Join(leftovers(p.place), "; "))}
	}
	err := p.checkNode()
	if err == nil && failed == nil {
		err = p.make(ctx, rec)
	}
	if errors.As(err, &nodeFault{}) {
		return errors.Join(err, p.undo())
	}
	if failed = errors.Join(failed, err); failed != nil {
		rec.Failed = oneLine(failed.Error())
	}
	if err := p.start(rec); err != nil {
		return nodeFault{errors.Join(err, p.undo())}
	}
	return nil
}

// plan returns the record of the job; an error means that the request is faulty.
func (p *prolog) plan() (*record, error) {
	rec := &record{Site: p.site, Deadline: p.deadline()}
	var err error
	p.job, err = p.env.job()
	rec.Job.ID, rec.Job.Restart = p.place.job, p.job.restart
	if err != nil {
		return rec, err
	}
	spec, err := DecodeSpec(p.env.Getenv(specVar))
	if err != nil {
		return rec, err
	}
	p.limit = spec.startTimeout(p.site)
	rec.Deadline = p.deadline()
	rec.Job = p.daemonJob(&spec)
	return rec, rec.Job.Validate()
}

// deadline returns the keeper's deadline, a little before the prolog's own.
func (p *prolog) deadline() int64 {
	return int64(p.up + p.limit - min(slack, p.limit/4))
}

func (p *prolog) daemonJob(spec *Spec) job.File {
	seed, ok := spec.Seed()
	if !ok {
		seed = hashOf("seed", p.job.id)
	}
	if !ok && p.site.Keep > 0 { // so that a later job on the same nodes finds the same files on each
		seed = hashOf("seed of uid", strconv.FormatUint(uint64(p.job.uid), 10))
	}
	return job.File{
		Version: job.Version, ID: p.job.id, Restart: p.job.restart, UID: p.job.uid, GID: p.job.gid,
		Hosts: p.job.hosts, Self: p.job.self, Addrs: Addrs(p.site, p.job.id, p.job.restart, p.job.hosts), Switch: p.job.leaf,
		Dirs:     job.Dirs{Store: p.place.stores(p.job.restart), Run: p.place.ctl(), Mount: p.place.mount()},
		Capacity: spec.Capacity(), Scratch: spec.Scratch(p.site), Rate: spec.Rate(), ServeRate: spec.ServeRate(), Ahead: spec.Ahead(), VerifyReads: spec.VerifyReads(), KernelView: spec.KernelView(p.site), Network: spec.Network(p.site), Protect: spec.Protect(p.site), LogFormat: p.site.LogFormat, Debug: spec.Debug(), Seed: seed, Datasets: spec.StageIn, StageOut: spec.StageOut, Wait: spec.Wait(),
		Created: metadata.TimeOf(p.began), WorkDir: p.job.workDir, FailureTimeout: spec.failureTimeout(p.site), Scrub: spec.Scrub(), NoChecksums: spec.NoChecksums(), Keep: p.site.Keep > 0,
	}
}

// dismiss ends the keeper of an earlier start of this job.
func (p *prolog) dismiss(ctx context.Context, old process) {
	ctx, cancel := context.WithTimeout(ctx, p.limit/4)
	defer cancel()
	if _, err := askLeave(ctx, p.place.sock(), time.Second); err != nil || old.gone(ctx) != nil {
		old.kill() // reap removes the rest
		_ = poll(ctx, func() bool { return !old.alive() })
	}
}

// reap removes the remains of dead jobs. Failing to remove those of another job is reported, but does not refuse this
// one.
func (p *prolog) reap(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.limit/2)
	defer cancel()
	gone, left := reap(ctx, p.site)
	if len(gone) > 0 {
		p.env.say(p.place.job, "removed the remains of job %s", strings.Join(gone, ", "))
	}
	if len(left) > 0 {
		p.env.say(p.place.job, "could not remove the remains of dead jobs: %s", strings.Join(left, "; "))
	}
}

// checkNode checks everything that every job needs from this node.
func (p *prolog) checkNode() error {
	if st, err := os.Stat(fuseDevice); err != nil || st.Mode()&fs.ModeCharDevice == 0 {
		return nodeFault{fmt.Errorf("%s is missing: load the kernel module (modprobe fuse)", fuseDevice)}
	}
	for _, s := range p.site.Store {
		st, err := os.Stat(s)
		if err != nil {
			return nodeFault{fmt.Errorf("store: %w: create it, or correct store: in %s", err, SitePath)}
		}
		if !st.IsDir() {
			return nodeFault{fmt.Errorf("store: %s is not a directory", s)}
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(s, &fs); err != nil {
			return nodeFault{fmt.Errorf("store: %s: %w", s, err)}
		}
		if fs.Bavail*uint64(fs.Bsize) < minFree || fs.Files > 0 && fs.Ffree == 0 {
			err := fmt.Errorf("store: %s is full: %w", s, unix.ENOSPC)
			if len(jobsOn(p.site)) > 0 {
				return err // other jobs fill the store; they will end
			}
			return nodeFault{err}
		}
	}
	return nil
}

// make makes the job's directories. Every failure is the node's fault, since we choose the names.
func (p *prolog) make(ctx context.Context, rec *record) error {
	uid, gid := int(p.job.uid), int(p.job.gid)
	for _, s := range rec.Job.Dirs.Store {
		if err := makeFor(s, uid, gid); err != nil {
			return nodeFault{fmt.Errorf("store: %w", err)}
		}
	}
	p.giveKept(ctx)
	if err := os.Mkdir(p.place.mount(), 0o755); err != nil {
		return nodeFault{fmt.Errorf("mountpoint: %w", err)}
	}
	return nil
}

// makeFor makes a directory that only the user can access.
func makeFor(dir string, uid, gid int) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Lchown(dir, uid, gid)
}

// start makes the run directory and starts the keeper.
func (p *prolog) start(rec *record) error {
	if err := os.Mkdir(p.place.run(), 0o755); err != nil {
		return err
	}
	if err := os.Chmod(p.place.run(), 0o755); err != nil { // whatever the umask
		return err
	}
	if err := makeFor(p.place.ctl(), int(p.job.uid), int(p.job.gid)); err != nil {
		return err
	}
	if err := errors.Join(rec.write(), p.place.writeState(State{Phase: Starting})); err != nil {
		return err
	}
	log, err := openLog(p.place.log(), p.job.uid, p.job.gid)
	if err != nil {
		return err
	}
	defer log.Close()
	if !propagates(p.site.Mount) {
		l := logrus.New()
		l.SetOutput(log)
		l.SetFormatter(LogFormatter(p.site.LogFormat))
		l.Warnf("%s is not below a shared mount: jobs with a mount namespace of their own do not see the mount of Bivouac; run mount --make-shared on it", p.site.Mount)
	}
	return p.startKeeper(log)
}

// openLog opens the user's log at path, which may exist from an earlier start of the job. A log of another user is
// replaced: job ids may have restarted, and that user may have it open.
func openLog(path string, uid, gid uint32) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if err == nil && (st.Uid != uid || st.Mode&unix.S_IFMT != unix.S_IFREG) {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := log.Chown(int(uid), int(gid)); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

// startKeeper starts the keeper in its own session, so that slurmd, which kills the process group of the prolog and
// waits for its output, does not affect it.
func (p *prolog) startKeeper(log *os.File) error {
	cmd := exec.Command(p.env.Program, "keeper", "--record", p.place.recordFile())
	key, err := keyPipe(p.env.Getenv(keyVar))
	if err != nil {
		return err
	}
	defer key.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = key, log, log
	cmd.Env, cmd.Dir = []string{"PATH=" + safePath, "LANG=C.UTF-8"}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	proc := processOf(cmd.Process.Pid)
	if err := proc.write(p.place.keeperPid()); err != nil {
		_ = cmd.Process.Kill() // no epilog would find it
		return errors.Join(err, cmd.Wait())
	}
	return cmd.Process.Release()
}

// keyPipe returns a pipe that holds the key, which is thus in no file and no argument list.
func keyPipe(key string) (*os.File, error) {
	const most = 256 // far less than a pipe holds
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(key[:min(len(key), most)] + "\n")
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// undo removes what a failed prolog has made.
func (p *prolog) undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), unmountTime)
	defer cancel()
	if left := teardown(ctx, p.place); len(left) > 0 {
		return errors.New(strings.Join(left, "; "))
	}
	return nil
}

// wait returns when the job is ready on this node or has failed.
func (p *prolog) wait(ctx context.Context) error {
	keeper := readProcess(p.place.keeperPid())
	var s State
	err := poll(ctx, func() bool {
		alive := keeper.alive() // checked before the state, so that the last state is not missed
		if got, err := ReadState(p.site, p.place.job); err == nil {
			s = got
		}
		return s.Phase == Ready || s.Phase == Failed || !alive
	})
	switch {
	case s.Phase == Ready:
		return nil
	case s.Phase == Failed:
		return errors.New(s.Detail)
	case errors.Is(err, context.Canceled):
		return err // the keeper continues
	case err != nil:
		err = fmt.Errorf("not ready after %v; see %s", p.limit, p.place.log())
	default:
		err = fmt.Errorf("the keeper ended; see %s", p.place.log())
	}
	return errors.Join(err, p.place.writeState(State{Failed, err.Error()}))
}
