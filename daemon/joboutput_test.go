package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
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

// TestJobOutput: a line is added to the very file that the output went to, and
// to no other thing that has its name.
func TestJobOutput(t *testing.T) {
	t.Parallel()
	f, path := openOutput(t, os.O_APPEND)
	o, ok := OutputOf(f)
	if !ok || o.Path != path || !o.Append {
		t.Fatalf("OutputOf = %+v, %v", o, ok)
	}
	if _, err := f.WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	if err := o.add("told\n"); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "hello\ntold\n" {
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
		if err := o.add("told\n"); err == nil {
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

// TestTellerIsPatientForAMoment: a dead file system does not hold the end up.
func TestTellerIsPatientForAMoment(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	tell := newTeller(nil)
	tell.patience = time.Millisecond
	tell.add = func(JobOutput, string) error { <-hang; return nil }
	tell.set(JobOutput{Path: "/dead/slurm-7.out"})
	if err := tell.tell([]outTrouble{trouble(true, syscall.ENOSPC)}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("tell = %v, want ETIMEDOUT", err)
	}
}

func trouble(final bool, errs ...error) outTrouble {
	x := outTrouble{StageOut: job.StageOut{From: "ckpt", To: "/lustre/run7"}, Final: final}
	for i, err := range errs {
		x.addFailure(stageout.Failure{Name: string(rune('a' + i)), Bytes: 3 << 20, Err: err})
	}
	return x
}

// TestTellerTellsOnce: what fails while the job runs is told once for each
// target, and only where a line stays; what failed in the end always.
func TestTellerTellsOnce(t *testing.T) {
	t.Parallel()
	var lines atomic.Int64
	tell := newTeller(nil)
	tell.add = func(JobOutput, string) error { lines.Add(1); return nil }
	running := []outTrouble{trouble(false, syscall.ENOSPC)}
	if n := tell.hear(running); n != nil {
		t.Errorf("news %+v without an output", n)
	}
	tell.set(JobOutput{Path: "/o"})
	if n := tell.hear(running); n != nil {
		t.Errorf("news %+v for an output that is written over", n)
	}
	tell.set(JobOutput{Path: "/o", Append: true})
	if n := tell.hear(running); len(n) != 1 {
		t.Errorf("news %+v, want one", n)
	}
	if n := tell.hear(running); n != nil {
		t.Errorf("news %+v for the second time", n)
	}
	if f := tell.finals(nil); f != nil {
		t.Errorf("%+v in the end, want nothing", f)
	}
	own := []outTrouble{trouble(true, syscall.EACCES)}
	if f := tell.finals(own); len(f) != 1 {
		t.Errorf("%+v in the end, want what this node knows", f)
	}
	if err := tell.tell(own); err != nil || lines.Load() != 1 {
		t.Errorf("%d lines, %v", lines.Load(), err)
	}
	if err := tell.tell(nil); err != nil || lines.Load() != 1 {
		t.Errorf("%d lines after nothing was told, %v", lines.Load(), err)
	}
}

// TestTellerWithoutOutput: where no node has the job's output, the first one that serves
// tells in a file of our own, what it hears and nothing else.
func TestTellerWithoutOutput(t *testing.T) {
	t.Parallel()
	j := &job.File{ID: "7", WorkDir: t.TempDir()}
	tell := newTeller(ownOutput(j))
	if n := tell.hear([]outTrouble{trouble(false, syscall.ENOSPC)}); len(n) != 1 {
		t.Errorf("news %+v, want one", n)
	} else if err := tell.tell(n); err != nil {
		t.Error(err)
	}
	if f := tell.finals([]outTrouble{trouble(true, syscall.EACCES)}); f != nil {
		t.Errorf("%+v in the end, want what was heard", f)
	}
	tell.hear([]outTrouble{trouble(true, syscall.ENOSPC)})
	if err := tell.tell(tell.finals(nil)); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(j.WorkDir, "bivouac-7.out"))
	if err != nil || strings.Count(string(b), "\n") != 2 || !strings.Contains(string(b), "fails so far") || !strings.Contains(string(b), "lost with the j") {
		t.Errorf("told is %q, %v", b, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(j.WorkDir, "bivouac-8.out")); err != nil {
		t.Fatal(err)
	}
	if err := ownOutput(&job.File{ID: "8", WorkDir: j.WorkDir}).add("x"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link is followed: %v", err)
	}
	if o := ownOutput(&job.File{ID: "7"}); o != nil {
		t.Errorf("a job that was not submitted tells in %+v", o)
	}
}

// TestWhoTells: one node does, that with the output before all others.
func TestWhoTells(t *testing.T) {
	t.Parallel()
	m := cluster.NewMap(1, []string{"n0", "n1", "n2"})
	for id, s := range map[metadata.NodeID]cluster.State{0: cluster.Down, 1: cluster.Up, 2: cluster.Leaving} {
		m = m.WithState(id, cluster.Up, "").WithState(id, s, "")
	}
	for _, c := range []struct {
		name  string
		tells []bool // by node; what is not there has not reported
		want  []bool
	}{
		{"none has it", []bool{false, false, false}, []bool{false, true, false}},
		{"one has it", []bool{false, false, true}, []bool{false, false, true}},
		{"one that does not serve had it", []bool{true, false, false}, []bool{true, true, false}},
		{"one has not reported", []bool{false, false}, []bool{false, false}},
	} {
		var l leadership
		l.init()
		for i, tells := range c.tells {
			l.hear(report{Node: metadata.NodeID(i), Tells: tells}, time.Unix(1, 0))
		}
		for i, want := range c.want {
			if got := l.tells(m, &report{Node: metadata.NodeID(i), Tells: c.tells[i]}); got != want {
				t.Errorf("%s: node %d tells: %v, want %v", c.name, i, got, want)
			}
		}
	}
}

func TestTroubleLine(t *testing.T) {
	t.Parallel()
	several := mergeTroubles([]outTrouble{
		trouble(true, syscall.ENOSPC, syscall.ENOSPC), trouble(false, syscall.EIO), trouble(true, syscall.ENOSPC, syscall.EACCES),
	})
	if len(several) != 1 {
		t.Fatalf("one target gives %d troubles", len(several))
	}
	several[0].List, several[0].Lists = "/home/me/bivouac-7-n1.not-copied", 2
	barred := outTrouble{StageOut: job.StageOut{From: "ckpt", To: "/x\ny"}, Final: true}
	barred.add(kindOf(syscall.ENOENT))
	for _, c := range []struct {
		of   outTrouble
		want []string
	}{
		{several[0], []string{"bivouac: stage-out of ckpt to /lustre/run7 failed: not copied, and lost with the job, 4 files of 12.0 MiB: ",
			`no space left on device (3, such as "a"), permission denied (1, such as "b")`, "2 nodes have a list, such as /home/me/bivouac-7-n1.not-copied", "make room there"}},
		{trouble(false, syscall.EACCES), []string{"fails so far: permission denied", "tried again until the job ends", "that you may write to"}},
		{barred, []string{"to /x y failed: no such file or directory; before the next run, see whether the job writes"}},
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

// TestTroubleIsBounded: a report stays small, whatever fails.
func TestTroubleIsBounded(t *testing.T) {
	t.Parallel()
	x := outTrouble{}
	for i := range 1000 {
		x.addFailure(stageout.Failure{Name: strings.Repeat("n", 5000), Bytes: 1, Err: errors.New(strings.Repeat("e", i+1))})
	}
	var things int64
	for _, k := range x.Kinds {
		if len(k.Why) > maxWhy+3 || len(k.First) > maxWhy+3 {
			t.Errorf("a reason of %d bytes, a name of %d", len(k.Why), len(k.First))
		}
		things += k.Files
	}
	if len(x.Kinds) > maxKinds || things != 1000 {
		t.Errorf("%d kinds of %d things", len(x.Kinds), things)
	}
}
