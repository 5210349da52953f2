package stageout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

func openOutput(t *testing.T, flags int) (*os.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "slurm-7.out")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flags, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f, path
}

// TestOutput: a line is added to the job's output file, and never to another file that now has its name.
func TestOutput(t *testing.T) {
	t.Parallel()
	f, path := openOutput(t, os.O_APPEND)
	o, ok := OutputOf(f)
	if !ok || o.Path != path || !o.Append {
		t.Fatalf("OutputOf = %+v, %v", o, ok)
	}
	if _, err := f.WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	if err := o.add("a line\n"); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "hello\na line\n" {
		t.Errorf("the output is %q", b)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, put := range map[string]func() error{
		"another file":  func() error { return os.WriteFile(path, nil, 0o644) },
		"a link":        func() error { return os.Symlink(elsewhere, path) },
		"a FIFO":        func() error { return syscall.Mkfifo(path, 0o600) },
		"a directory":   func() error { return os.Mkdir(path, 0o700) },
		"nothing":       func() error { return nil },
		"a hard link":   func() error { return os.Link(elsewhere, path) },
		"a socket file": func() error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) },
	} {
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(elsewhere, nil, 0o644), put()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := o.add("a line\n"); err == nil {
			t.Errorf("a line was added to %s", name)
		}
		if b, err := os.ReadFile(elsewhere); err != nil || len(b) > 0 {
			t.Errorf("%s: a line went elsewhere: %q, %v", name, b, err)
		}
	}
}

func TestOutputOfWhatIsNoFile(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	gone, path := openOutput(t, 0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*os.File{"a pipe": w, "/dev/null": null, "a file without a name": gone} {
		if o, ok := OutputOf(f); ok {
			t.Errorf("%s is taken for the job's output: %+v", name, o)
		}
	}
	if f, _ := openOutput(t, 0); f != nil {
		if o, ok := OutputOf(f); !ok || o.Append {
			t.Errorf("a file that is not appended to: %+v, %v", o, ok)
		}
	}
}

// TestNotifierTimesOut: an unresponsive filesystem does not delay the end of the job.
func TestNotifierTimesOut(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	x := newTestNotifier(t)
	x.patience = time.Millisecond
	x.add = func(Output, string) error { <-hang; return nil }
	x.set(Output{Path: "/dead/slurm-7.out"})
	if err := x.write([]Failures{failures(true, syscall.ENOSPC)}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("tell = %v, want ETIMEDOUT", err)
	}
}

// newTestNotifier returns a notifier without an output.
func newTestNotifier(t *testing.T) *Notifier {
	t.Helper()
	return NewNotifier(nodetest.NewProcess(t), &job.File{Dirs: job.Dirs{Run: t.TempDir()}})
}

func failures(final bool, errs ...error) Failures {
	x := Failures{StageOut: job.StageOut{From: "ckpt", To: "/lustre/run7"}, Final: final}
	for i, err := range errs {
		x.addFile(stageout.Failure{Name: string(rune('a' + i)), Bytes: 3 << 20, Err: err})
	}
	return x
}

// TestNotifierNotifiesOnce: a failure during the job is written once for each target, and only to a file where the line
// remains; a final failure is always written.
func TestNotifierNotifiesOnce(t *testing.T) {
	t.Parallel()
	var lines atomic.Int64
	x := newTestNotifier(t)
	x.add = func(Output, string) error { lines.Add(1); return nil }
	running := []Failures{failures(false, syscall.ENOSPC)}
	if n := x.hear(running); n != nil {
		t.Errorf("news %+v without an output", n)
	}
	x.set(Output{Path: "/o"})
	if n := x.hear(running); n != nil {
		t.Errorf("news %+v for an output that is written over", n)
	}
	x.set(Output{Path: "/o", Append: true})
	if n := x.hear(running); len(n) != 1 {
		t.Errorf("news %+v, want one", n)
	}
	if n := x.hear(running); n != nil {
		t.Errorf("news %+v for the second time", n)
	}
	if f := x.final(nil); f != nil {
		t.Errorf("%+v in the end, want nothing", f)
	}
	own := []Failures{failures(true, syscall.EACCES)}
	if f := x.final(own); len(f) != 1 {
		t.Errorf("%+v in the end, want what this node knows", f)
	}
	if err := x.write(own); err != nil || lines.Load() != 1 {
		t.Errorf("%d lines, %v", lines.Load(), err)
	}
	if err := x.write(nil); err != nil || lines.Load() != 1 {
		t.Errorf("%d lines after nothing was written, %v", lines.Load(), err)
	}
}

// TestNotifierWithoutOutput: if no node has the job's output, failures reported by the leader go to a separate file.
func TestNotifierWithoutOutput(t *testing.T) {
	t.Parallel()
	j := &job.File{ID: "7", WorkDir: t.TempDir(), Dirs: job.Dirs{Run: t.TempDir()}}
	x := NewNotifier(nodetest.NewProcess(t), j)
	if n := x.hear([]Failures{failures(false, syscall.ENOSPC)}); len(n) != 1 {
		t.Errorf("news %+v, want one", n)
	} else if err := x.write(n); err != nil {
		t.Error(err)
	}
	if f := x.final([]Failures{failures(true, syscall.EACCES)}); f != nil {
		t.Errorf("%+v in the end, want what was heard", f)
	}
	x.hear([]Failures{failures(true, syscall.ENOSPC)})
	if err := x.write(x.final(nil)); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(j.WorkDir, "bivouac-7.out"))
	if err != nil || strings.Count(string(b), "\n") != 2 || !strings.Contains(string(b), "fails so far") || !strings.Contains(string(b), "lost with the j") {
		t.Errorf("the output is %q, %v", b, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(j.WorkDir, "bivouac-8.out")); err != nil {
		t.Fatal(err)
	}
	if err := ownOutput(&job.File{ID: "8", WorkDir: j.WorkDir}).add("x"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link is followed: %v", err)
	}
	if o := ownOutput(&job.File{ID: "7"}); o != nil {
		t.Errorf("a job that was not submitted notifies in %+v", o)
	}
}

func TestFailuresLine(t *testing.T) {
	t.Parallel()
	several := Merge([]Failures{
		failures(true, syscall.ENOSPC, syscall.ENOSPC), failures(false, syscall.EIO), failures(true, syscall.ENOSPC, syscall.EACCES),
	})
	if len(several) != 1 {
		t.Fatalf("one target gives %d failures", len(several))
	}
	several[0].List, several[0].Lists = "/home/me/bivouac-7-n1.not-copied", 2
	denied := Failures{StageOut: job.StageOut{From: "ckpt", To: "/x\ny"}, Final: true}
	denied.add(causeOf(syscall.ENOENT))
	for _, c := range []struct {
		of   Failures
		want []string
	}{
		{several[0], []string{"bivouac: stage-out of ckpt to /lustre/run7 failed: not copied, and lost with the job, 4 files of 12.0 MiB: ",
			`no space left on device (3, such as "a"), permission denied (1, such as "b")`, "2 nodes have a list, such as /home/me/bivouac-7-n1.not-copied", "free space there"}},
		{failures(false, syscall.EACCES), []string{"fails so far: permission denied", "tried again until the job ends", "that you may write to"}},
		{denied, []string{"to /x y failed: no such file or directory; before the next run, check that the job writes"}},
	} {
		got := c.of.line()
		if strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\n") {
			t.Errorf("not one line: %q", got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("the line lacks %q:\n%s", w, got)
			}
		}
	}
}

// TestFailuresAreBounded: a report stays small, however much fails.
func TestFailuresAreBounded(t *testing.T) {
	t.Parallel()
	x := Failures{}
	for i := range 1000 {
		x.addFile(stageout.Failure{Name: strings.Repeat("n", 5000), Bytes: 1, Err: errors.New(strings.Repeat("e", i+1))})
	}
	var things int64
	for _, k := range x.Causes {
		if len(k.Reason) > maxText+3 || len(k.First) > maxText+3 {
			t.Errorf("a reason of %d bytes, a name of %d", len(k.Reason), len(k.First))
		}
		things += k.Files
	}
	if len(x.Causes) > maxCauses || things != 1000 {
		t.Errorf("%d causes of %d files", len(x.Causes), things)
	}
}

// TestListIsBounded: the failure list of an unwritable target ends with the number of failures that it omits.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	l := &failureList{path: filepath.Join(t.TempDir(), "list"), from: "ckpt"}
	const files = 3*maxList/4096 + 7
	for range files {
		l.add(stageout.Failure{Name: strings.Repeat("n", 4096), Err: syscall.EIO})
	}
	if wrote, err := l.write(); !wrote || err != nil {
		t.Fatal(wrote, err)
	}
	b, err := os.ReadFile(l.path)
	if err != nil || len(b) > maxList+1<<13 {
		t.Errorf("the list has %d bytes, %v", len(b), err)
	}
	listed := strings.Count(string(b), "\n") - 1
	if want := fmt.Sprintf("and %d more\n", files-listed); !strings.HasSuffix(string(b), want) || l.sum.Causes[0].Files != files {
		t.Errorf("the list ends with %q, want %q; %d files count", b[len(b)-40:], want, l.sum.Causes[0].Files)
	}
}

// TestTell: during the job, lines are added only to a file that the job opened for appending.
func TestTell(t *testing.T) {
	t.Parallel()
	p := nodetest.NewProcess(t)
	x := NewNotifier(p, &job.File{Dirs: job.Dirs{Run: t.TempDir()}})
	told := make(chan string, 3)
	x.add = func(_ Output, text string) error { told <- text; return nil }
	x.Tell("no output\n")
	x.set(Output{Path: "/o"})
	x.Tell("written over\n")
	x.set(Output{Path: "/o", Append: true})
	x.Tell("node3 is lost\n")
	if got := <-told; got != "node3 is lost\n" {
		t.Errorf("the first line is %q", got)
	}
}
