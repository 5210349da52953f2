package local

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
)

// TestTrace: who listens sees every request to the mount, and nobody else is
// disturbed; a signal ends it.
func TestTrace(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	cmd := c.command("trace", "--json", "--dir", c.dir, "--node", "1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, err := bufio.NewReader(errs).ReadString('\n')
	if err != nil || !strings.Contains(listening, "tracing") {
		t.Fatalf("trace says %q, %v", listening, err)
	}
	name := c.node("1", "scratch", "a file")
	write(t, name, []byte("twelve bytes"))
	if _, err := os.ReadFile(name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(c.node("1", "scratch", "no file")); err == nil {
		t.Fatal("there is a file that was not made")
	}
	want := map[string]string{"create": "a file", "write": "0+12", "lookup": "no file"}
	for dec := json.NewDecoder(out); len(want) > 0; {
		var l daemon.TraceLine
		if err := dec.Decode(&l); err != nil {
			t.Fatalf("%v; not seen: %v", err, want)
		}
		if l.What != want[l.Op] || l.What == "" {
			continue
		}
		if l.Took <= 0 || l.At.IsZero() || l.Pid == 0 || (l.Error != "") != (l.Op == "lookup") {
			t.Errorf("line %+v", l)
		}
		delete(want, l.Op)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("trace, interrupted: %v", err)
	}
	c.fails([]string{"nothing is up in"}, "trace", "--dir", c.path("nothing"))
}

// TestDebug: the log has a line for every request, also while somebody listens
// and after.
func TestDebug(t *testing.T) {
	t.Parallel()
	c := pitch(t, "1", "--debug")
	logged := func(want ...string) {
		t.Helper()
		log, err := os.ReadFile(filepath.Join(c.dir, ".bivouac", "node0", "log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			if !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(line, w) }) {
				return
			}
		}
		t.Errorf("the log has no line with %q", want)
	}
	write(t, c.node("0", "scratch", "a file"), []byte("twelve bytes"))
	logged("level=debug", "msg=create", `what="a file"`)
	logged("level=debug", "msg=write", "what=0+12", "took=")
	cmd := c.command("trace", "--dir", c.dir)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(errs).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("trace, interrupted: %v", err)
	}
	if _, err := os.Lstat(c.node("0", "scratch", "no file")); err == nil {
		t.Fatal("there is a file that was not made")
	}
	logged("level=debug", "msg=lookup", `what="no file"`, `error="no such file or directory"`)
}
