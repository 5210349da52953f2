//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cluster is a running Slurm; its methods are the verbs of the script.
type cluster struct {
	dir    string
	config string // the site's bivouac.yaml
	deb    string // the package with the program and the plugin; "": use those in bin
	nodes  string
	first  int    // the id of the first job
	conf   string // further lines of slurm.conf
	cpu    string // the processor that the whole cluster runs on; "": any
}

// sites holds the idle clusters. Tests mostly wait for Slurm, so they run in parallel, each on its own cluster.
var sites = make(chan cluster, 3)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getuid() != 0 {
		fmt.Println("skipped: a Slurm cluster makes namespaces and mounts, run this as root")
		return 0
	}
	dir, err := os.MkdirTemp("/var/tmp", "bivouac-slurm-test.")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for i := range cap(sites) {
		// Loop devices are shared by the machine, and their names contain job ids.
		c := cluster{dir: filepath.Join(dir, strconv.Itoa(i)), config: "testdata/bivouac.yaml", nodes: "4", first: 1000 * (i + 1)}
		if i == 0 {
			c.deb = newestPackage()
		}
		defer c.down()
		if err := c.up(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		sites <- c
	}
	return m.Run()
}

// newestPackage returns the package that make dist made, if it was made from the program in bin.
func newestPackage() string {
	debs, err := filepath.Glob("../../bin/bivouac_*.deb")
	if err != nil || len(debs) != 1 {
		return ""
	}
	deb, err := os.Stat(debs[0])
	program, err2 := os.Stat("../../bin/bivouac")
	if err != nil || err2 != nil || deb.ModTime().Before(program.ModTime()) {
		return ""
	}
	return debs[0]
}

func (c cluster) up() error {
	if out, err := c.try("up", c.nodes); err != nil {
		return fmt.Errorf("cluster up: %w\n%s", err, out)
	}
	return c.populate()
}

func (c cluster) down() {
	if out, err := c.try("down"); err != nil {
		fmt.Fprintf(os.Stderr, "cluster down: %v\n%s", err, out)
	}
}

// populate makes the sources that the jobs stage in: a directory and its tar.
func (c cluster) populate() error {
	for _, user := range []string{"alice", "bob"} {
		tree := filepath.Join(c.home(user), "tree")
		for name, text := range map[string]string{"hello": "hello " + user + "\n", "deep/er/file": strings.Repeat("x", 1<<20), "small": "x"} {
			p := filepath.Join(tree, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				return err
			}
		}
		show := "#!/bin/bash\nenv | grep -E '^BIVOUAC(_DATA|_SCRATCH)?=' | sort\n"
		if err := os.WriteFile(filepath.Join(c.home(user), "showenv"), []byte(show), 0o755); err != nil {
			return err
		}
		sh := fmt.Sprintf("cd %s && tar -cf tree.tar tree && chown -R --reference=. tree tree.tar", c.home(user))
		if out, err := exec.Command("bash", "-c", sh).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// home returns a user's home as this machine sees it; on the nodes it is far(user).
func (c cluster) home(user string) string { return filepath.Join(c.dir, "pfs/home", user) }

func far(user, name string) string { return filepath.Join("/mnt/pfs/home", user, name) }

// try runs the script and returns all its output.
func (c cluster) try(args ...string) (string, error) {
	args = append([]string{"./cluster"}, args...)
	if c.cpu != "" {
		args = append([]string{"taskset", "-c", c.cpu}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "CLUSTER_DIR="+c.dir, "BIVOUAC_CONFIG="+c.config, "BIVOUAC_DEB="+c.deb, fmt.Sprintf("CLUSTER_CONF=FirstJobId=%d\n%s", c.first, c.conf))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// do is like try, for a command that must not fail.
func (c cluster) do(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(args...)
	if err != nil {
		t.Fatalf("cluster %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// on runs a shell command as root on a node.
func (c cluster) on(t *testing.T, node, sh string) string {
	t.Helper()
	return c.do(t, "exec", node, "bash", "-c", sh)
}

// as runs a shell command as a user on the controller.
func (c cluster) as(t *testing.T, user, sh string) string {
	t.Helper()
	return c.do(t, "as", user, "ctl", "bash", "-c", sh)
}

// begin takes a cluster for a test. At the end of the test it checks that nothing is left, and replaces the cluster
// if the test failed.
func begin(t *testing.T) cluster {
	t.Helper()
	t.Parallel()
	c := <-sites
	t.Cleanup(func() {
		defer func() { sites <- c }()
		if !t.Failed() {
			c.nothingLeft(t)
		}
		if !t.Failed() {
			return
		}
		logs, _ := c.try("logs", "20")
		t.Logf("logs:\n%s", logs)
		c.down()
		if err := c.up(); err != nil {
			t.Fatal(err)
		}
	})
	return c
}

// nothingLeft checks that all nodes are idle, not drained, and clean.
func (c cluster) nothingLeft(t *testing.T) {
	t.Helper()
	if out, err := c.try("idle", "120"); err != nil {
		t.Errorf("not all nodes became idle:\n%s", out)
		return
	}
	if out, err := c.try("leftovers"); err != nil {
		t.Errorf("left on the nodes:\n%s", out)
	}
}

// eventually polls until ok, and fails the test after d.
func eventually(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(d)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("after %v still not: %s", d, what)
		case <-tick.C:
		}
	}
}
