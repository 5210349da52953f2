package local

import (
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// script is a shell that works in a directory of a dataset. It does something again
// and again until it is told to end, and then something else.
type script struct {
	t    *testing.T
	cmd  *exec.Cmd
	told string // the file that ends it
	said strings.Builder
}

// working starts one.
func (c *camp) working(dir, meanwhile, then string) *script {
	c.t.Helper()
	s := &script{t: c.t, told: filepath.Join(c.t.TempDir(), "end")}
	s.cmd = exec.Command("sh", "-c", "while ! test -e "+s.told+"; do "+meanwhile+" || exit 1; done; "+then)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = dir, &s.said, &s.said
	if err := s.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(sync.OnceFunc(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait() // it was killed
		}
	}))
	return s
}

// end has it end, and returns what it said.
func (s *script) end() string {
	s.t.Helper()
	write(s.t, s.told, nil)
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("a script in %s: %v: %s", s.cmd.Dir, err, s.said.String())
	}
	return s.said.String()
}

// TestViewOverRest: a script that works in the dataset's directory from before it is all
// there, and reads files all the time, does not keep the view away, and what it finds
// afterwards is what it was, where it is, too. So it is with one that comes when
// the screen is there.
func TestViewOverRest(t *testing.T) {
	t.Parallel()
	c := filling(t)
	const then = "/bin/pwd -P; find . -type f | wc -l; du -a . >/dev/null; head -c 3 ../filled/008"
	at := c.node("0", "data", "filled")
	scripts := []*script{c.working(at, "cat 007 >/dev/null", then)}
	c.ok("wait", "--dir", c.dir)
	eventually(t, "the views are made", func() bool { return c.said("a kernel view is made") == 2 })
	scripts = append(scripts, c.working(at, "cat 009 ../filled/010 >/dev/null", then))
	c.awaitViews("filled", "2")
	for _, s := range scripts {
		if got, want := s.end(), at+"\n60\n008"; got != want {
			t.Errorf("a script says %q, want %q", got, want)
		}
	}
	c.wantTree("filled", 60, 99_999)
	c.struck()
}

// TestViewOverRestDeep: who is in a directory within a deep dataset does not keep its
// view away, and walks there as before; who is in that of the dataset could not go back
// up to it, and does.
func TestViewOverRestDeep(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	const walk = "find . -type f | wc -l; du -a . >/dev/null; /bin/pwd -P"
	c := pitch(t, "2", "--rate", "10K")
	src := c.deepTree("deep")
	begin := func(name string) {
		c.ok("stage-in", src+":"+name, "--dir", c.dir, "--background")
		c.covered(name)
	}
	begin("other")
	other := c.node("0", "data", "other")
	above := c.working(other, "cat a/0/f >/dev/null", walk)
	for _, name := range []string{"deep", "later"} { // one after the other, so that the view of other has time for both
		begin(name)
		deep := c.node("0", "data", name, "a")
		in := c.working(deep, "cat 0/f >/dev/null", "head -c 3 ../b/0/f; echo; "+walk)
		c.ok("wait", "--dir", c.dir)
		c.awaitViews(name, "2")
		if got, want := in.end(), "000\n12\n"+deep+"\n"; got != want {
			t.Errorf("a script in a directory of the dataset says %q, want %q", got, want)
		}
	}
	eventually(t, "the other node has its view", func() bool { return c.views("other") > 0 })
	if n := c.views("other"); n != 1 {
		t.Errorf("%d views of a dataset in whose directory somebody is", n)
	}
	if got, want := above.end(), "36\n"+other+"\n"; got != want {
		t.Errorf("a script in the dataset's directory says %q, want %q", got, want)
	}
	c.awaitViews("other", "2")
	c.struck()
}
