package pitch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// fullRun gives the node a run directory on a small separate filesystem. fill uses up all of it except for the given
// number of pages.
func (n *node) fullRun() (fill func(free int)) {
	n.t.Helper()
	if err := os.MkdirAll(n.site.Run, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Mount("run", n.site.Run, "tmpfs", 0, "size=256k,mode=755"); err != nil {
		n.t.Skip("needs to mount: ", err)
	}
	n.t.Cleanup(func() { // runs before the node's cleanup, which finds the keeper by the files there
		if got := n.epilog(); got != exitOK {
			n.t.Errorf("Epilog = %d, said %q", got, n.said.String())
		}
		if err := unix.Unmount(n.site.Run, unix.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
	return func(free int) {
		n.t.Helper()
		path := filepath.Join(n.site.Run, "filler")
		f, err := os.Create(path)
		if err != nil {
			n.t.Fatal(err)
		}
		defer f.Close()
		for b := make([]byte, 4096); err == nil; {
			_, err = f.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			n.t.Fatal(err)
		}
		st, err := f.Stat()
		if err == nil {
			err = f.Truncate(st.Size() - int64(free)*4096)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// TestRunIsFull: if the run directory is full, or nearly full, the prolog reports a fault of the node, or the job's
// tasks get the reason why they have no bivouac.
func TestRunIsFull(t *testing.T) {
	for free := range 10 {
		n := newNode(t, wellBehaved)
		fill := n.fullRun()
		fill(free)
		got := n.prolog()
		s, err := ReadState(n.site, n.place().job)
		switch {
		case got == exitNodeFault && errors.Is(err, fs.ErrNotExist) && absent(n.place()):
			contains(t, "what was said", n.said.String(), "no space left")
		case got != exitOK || err != nil || s.Phase == Starting || s.Detail == "":
			t.Errorf("with %d pages free: Prolog = %d, the state is %q, %v, said %q", free, got, s, err, n.said.String())
		}
		n.said.Reset()
	}
}
