// Package posix tests the behavior that applications see through the mounts of a job's nodes: the POSIX suite of
// go-fuse, every row of the table of semantics in the package comment of fsclient/mount, known defects of other
// systems, and real programs on two nodes at once. Its one idea is that a test gets one directory as several nodes
// show it, and uses it by system calls and processes only.
package posix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/integration/testcluster"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// camp is a job of four nodes that are mounted in this process.
type camp struct {
	*testcluster.Cluster
	mounts []*testcluster.Mounted
}

func pitch(t *testing.T, cfg testcluster.Config) *camp {
	t.Helper()
	testcluster.NeedFUSE(t)
	c := testcluster.Start(t, cfg)
	return &camp{Cluster: c, mounts: c.Mount(t)}
}

// dirs makes a directory and returns its paths on all nodes.
func (c *camp) dirs(t *testing.T) []string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune("/ ,:", r) {
			return '-'
		}
		return r
	}, t.Name())
	check(t, os.Mkdir(filepath.Join(c.mounts[0].Scratch, name), 0o755))
	var dirs []string
	for _, m := range c.mounts {
		dirs = append(dirs, filepath.Join(m.Scratch, name))
	}
	return dirs
}

// staged makes a small tree to be staged in as the dataset "set".
func staged(t *testing.T) job.Dataset {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "tree")
	check(t, os.MkdirAll(filepath.Join(tree, "d"), 0o755))
	for i := range 20 {
		check(t, os.WriteFile(fmt.Sprintf("%s/d/%02d", tree, i), pattern(1000*i), 0o644))
	}
	check(t, os.Symlink("d/01", filepath.Join(tree, "link")))
	return job.Dataset{Source: tree, Name: "set"}
}

func (c *camp) sealed(t *testing.T) {
	t.Helper()
	if ds := c.Dataset(t, 0, "set"); ds.Phase != cluster.Sealed {
		t.Fatalf("dataset: %+v", ds)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func wantFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, %v, want %d bytes", path, len(got), err, len(want))
	}
}

func stat(t testing.TB, path string) (st syscall.Stat_t) {
	t.Helper()
	check(t, syscall.Lstat(path, &st))
	return st
}

func fstat(t testing.TB, f *os.File) (st syscall.Stat_t) {
	t.Helper()
	check(t, syscall.Fstat(int(f.Fd()), &st))
	return st
}

// pattern returns n bytes in which all pages differ.
func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8*13 + i>>16*31 + 1)
	}
	return p
}

// chores lists the tasks that a child process can do for a test: each gets its arguments, and fails by its error.
var chores = map[string]func(args []string) error{}

const choreEnv = "BIVOUAC_TEST_CHORE"

// TestMain runs the chore named in the environment, if any, instead of the tests.
func TestMain(m *testing.M) {
	if name := os.Getenv(choreEnv); name != "" {
		if err := chores[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a process that runs a chore.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out bytes.Buffer
}

// start starts a chore. A chore that calls held waits until its standard input is closed.
func start(t testing.TB, chore string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	check(t, err)
	c := &child{Cmd: exec.Command(exe, args...)}
	c.Env = append(os.Environ(), choreEnv+"="+chore, "GOMAXPROCS=2")
	c.Stdout, c.Stderr = &c.out, &c.out
	c.in, err = c.StdinPipe()
	check(t, err)
	check(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() }) // it has normally ended
	return c
}

// end releases a held chore, waits for it, and returns its output.
func (c *child) end(t testing.TB) (string, error) {
	t.Helper()
	_ = c.in.Close()
	hangs := time.AfterFunc(testcluster.Patience, func() { _ = c.Process.Signal(syscall.SIGQUIT) }) // prints its stacks
	defer hangs.Stop()
	err := c.Wait()
	return strings.TrimSpace(c.out.String()), err
}

// done is like end, for a chore that must not fail.
func (c *child) done(t testing.TB) string {
	t.Helper()
	out, err := c.end(t)
	if err != nil {
		t.Errorf("%v: %v: %s", c.Args[1:], err, out)
	}
	return out
}

// held blocks a chore until the test closes its standard input.
func held() { _, _ = io.Copy(io.Discard, os.Stdin) }
