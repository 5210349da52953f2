package local

import (
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// script is a shell that works in a directory of a dataset. It repeats one command until it
// is told to end, and then runs another.
type script struct {
	t    *testing.T
	cmd  *exec.Cmd
	told string // the file that ends the loop
	said strings.Builder
}

// working starts a script.
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

// end ends the script and returns its output.
func (s *script) end() string {
	s.t.Helper()
	write(s.t, s.told, nil)
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("a script in %s: %v: %s", s.cmd.Dir, err, s.said.String())
	}
	return s.said.String()
}

// TestViewOverWorkingDirectory: scripts that work in the dataset's directory and read files all
// the time, from before the view or from the moment it was made, do not delay the view.
// Afterwards they find the same files and the same path.
func TestViewOverWorkingDirectory(t *testing.T) {
	t.Parallel()
	c := filling(t)
	const then = "/bin/pwd -P; find . -type f | wc -l; du -a . >/dev/null; head -c 3 ../filled/008"
	at := c.node("0", "data", "filled")
	scripts := []*script{c.working(at, "cat 007 >/dev/null", then)}
	c.ok("wait", "--dir", c.dir)
	eventually(t, "both views are made", func() bool { return c.said("kernel view made") == 2 })
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

// TestViewOverWorkingDirectoryDeep: a script that works below the top directory of a deep
// dataset does not delay its view, and walks on as before. One in the top directory does
// delay it: a walk from there could not return by "..".
func TestViewOverWorkingDirectoryDeep(t *testing.T) {
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
	for _, name := range []string{"deep", "later"} { // in turn, so that the view of other has time for both
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
		t.Errorf("%d views of a dataset in whose top directory a script works, want only the other node's", n)
	}
	if got, want := above.end(), "36\n"+other+"\n"; got != want {
		t.Errorf("a script in the dataset's directory says %q, want %q", got, want)
	}
	c.awaitViews("other", "2")
	c.struck()
}
