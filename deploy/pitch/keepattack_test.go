package pitch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
)

const (
	keeperUID = 12345 // the user whose sets are kept
	otherUID  = 12346
)

// keepNode is a root-owned store, and a tree outside the store that must stay unchanged.
type keepNode struct {
	t       *testing.T
	site    Site
	store   string
	outside string
	before  string
}

func newKeepNode(t *testing.T) *keepNode {
	t.Helper()
	needRoot(t)
	top, err := os.MkdirTemp("", "keep") // a test's own directory is accessible to root only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	n := &keepNode{t: t, store: filepath.Join(top, "store"), outside: filepath.Join(top, "outside")}
	n.site = Site{Store: []string{n.store}, Keep: Seconds(time.Hour)}
	n.do(os.Chmod(top, 0o755), os.Mkdir(n.store, 0o755), os.MkdirAll(filepath.Join(n.outside, "d"), 0o755),
		os.WriteFile(filepath.Join(n.outside, "f"), []byte("precious"), 0o644), os.WriteFile(filepath.Join(n.outside, "d", "g"), []byte("precious too"), 0o644))
	n.before = n.tree(n.outside)
	return n
}

func (n *keepNode) do(errs ...error) {
	n.t.Helper()
	if err := errors.Join(errs...); err != nil {
		n.t.Fatal(err)
	}
}

// tree lists everything below dir that root could change.
func (n *keepNode) tree(dir string) string {
	n.t.Helper()
	var b strings.Builder
	n.do(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err = errors.Join(err, unix.Lstat(path, &st)); err == nil {
			fmt.Fprintln(&b, path, st.Mode, st.Uid, st.Gid, st.Size, st.Ino)
		}
		return err
	}))
	return b.String()
}

// dir creates a directory of a user with a file in it.
func (n *keepNode) dir(uid int, path ...string) string {
	n.t.Helper()
	d := filepath.Join(append([]string{n.store}, path...)...)
	n.do(os.Mkdir(d, 0o777), os.WriteFile(filepath.Join(d, "object"), []byte("bytes"), 0o600), os.Chmod(d, 0o777), os.Chown(d, uid, uid))
	return d
}

func (n *keepNode) names(dir string) []string {
	n.t.Helper()
	entries, err := os.ReadDir(dir)
	n.do(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// prolog returns a prolog of a job of keeperUID that has just created its store directories.
func (n *keepNode) prolog() *prolog {
	p := &prolog{env: Env{}, site: n.site, place: place{n.site, "8"}, limit: time.Minute}
	p.job.uid, p.job.restart = keeperUID, 0
	return p
}

// empties checks that everything is removed once it has expired, and that nothing outside was changed.
func (n *keepNode) empties(what string) {
	n.t.Helper()
	n.site.Keep = 0
	expireKept(n.t.Context(), n.site)
	if left := n.names(n.store); len(left) > 0 {
		n.t.Errorf("%s: %q are left in the store", what, left)
	}
	if now := n.tree(n.outside); now != n.before {
		n.t.Errorf("%s: outside of the store was\n%snow\n%s", what, n.before, now)
	}
}

// TestKeepAttacks: whatever a user leaves in place of a kept set, or in it, root keeps only a directory of that user,
// and does not change the target of a link.
func TestKeepAttacks(t *testing.T) {
	for _, c := range []struct {
		what string
		kept bool
		make func(n *keepNode, keep string) error
	}{
		{"a set", true, func(*keepNode, string) error { return nil }},
		{"a link", false, func(n *keepNode, keep string) error {
			return errors.Join(os.RemoveAll(keep), os.Symlink(n.outside, keep))
		}},
		{"a FIFO", false, func(_ *keepNode, keep string) error { return errors.Join(os.RemoveAll(keep), unix.Mkfifo(keep, 0o666)) }},
		{"a hard link", false, func(n *keepNode, keep string) error {
			return errors.Join(os.RemoveAll(keep), os.Link(filepath.Join(n.outside, "f"), keep))
		}},
		{"another's directory", false, func(_ *keepNode, keep string) error { return os.Chown(keep, otherUID, otherUID) }},
		{"root's directory", false, func(_ *keepNode, keep string) error { return os.Chown(keep, 0, 0) }},
		{"a link in place of the store", false, func(n *keepNode, keep string) error {
			dir := filepath.Dir(keep)
			return errors.Join(os.RemoveAll(dir), os.Symlink(n.outside, dir))
		}},
		{"links in the set", true, func(n *keepNode, keep string) error {
			return errors.Join(os.Link(filepath.Join(n.outside, "f"), filepath.Join(keep, "hard")), os.Symlink(n.outside, filepath.Join(keep, "00")),
				os.Symlink("..", filepath.Join(keep, "index")), unix.Mkfifo(filepath.Join(keep, "fifo"), 0o666))
		}},
	} {
		n := newKeepNode(t)
		n.dir(keeperUID, "7.0")
		keep := n.dir(keeperUID, "7.0", chunkstore.KeepDir)
		n.do(c.make(n, keep))
		p := place{n.site, "7"}
		keepSets(t.Context(), p)
		for _, err := range wipeAll(t.Context(), p.allStores()) {
			n.do(err)
		}
		names := n.names(n.store)
		if got := len(names) == 1; got != c.kept || len(names) > 1 {
			t.Errorf("%s: %q are in the store", c.what, names)
		}
		for _, name := range names {
			st, err := os.Lstat(filepath.Join(n.store, name))
			if n.do(err); !st.IsDir() || st.Mode().Perm() != 0o700 || st.Sys().(*syscall.Stat_t).Uid != keeperUID || !strings.HasPrefix(name, ".kept.12345.") {
				t.Errorf("%s: kept is %s, %v", c.what, name, st.Mode())
			}
		}
		n.empties(c.what)
	}
}

// TestGiveAttacks: a job gets only unexpired sets with its user's name that are directories of that user, and nothing
// is moved to the target of a link.
func TestGiveAttacks(t *testing.T) {
	n := newKeepNode(t)
	soon := time.Now().Add(time.Minute).Unix()
	mine := func(job string) string { return fmt.Sprintf(".kept.%d.%d.%s", keeperUID, soon, job) }
	n.dir(keeperUID, mine("1.0"))
	n.do(os.Link(filepath.Join(n.outside, "d", "g"), filepath.Join(n.store, mine("1.0"), "hard")))
	n.before = n.tree(n.outside)
	n.dir(otherUID, mine("2.0"))
	n.dir(0, mine("2.1"))
	n.do(os.Symlink(n.outside, filepath.Join(n.store, mine("3.0"))), unix.Mkfifo(filepath.Join(n.store, mine("3.1")), 0o666),
		os.WriteFile(filepath.Join(n.store, mine("3.2")), nil, 0o666))
	n.dir(keeperUID, mine("4.0")) // the place is taken
	n.dir(otherUID, fmt.Sprintf(".kept.%d.%d.5.0", otherUID, soon))
	for _, name := range []string{"12345.1.6.0", "12345.999999999999999999.6.1", "012345." + fmt.Sprint(soon) + ".6.2", "0.999999999.6.3"} {
		n.dir(keeperUID, ".kept."+name)
	}
	var odd []string // names that root does not create
	for _, name := range []string{"-1.%d.7.0", "+12345.%d.7.0", "12345.-%d.7.0", "12345.%d..", "12345.%d.7.0.", "12345.%d.../7.0", "12345.%d.7.0\n", "99999999999.%d.7.0", "12345.%d"} {
		name = strings.ReplaceAll(".kept."+fmt.Sprintf(name, soon), "/", "\\")
		odd = append(odd, name)
		n.dir(keeperUID, name)
	}
	p := n.prolog()
	n.dir(keeperUID, "8.0")
	taken := filepath.Join(n.store, "8.0", chunkstore.KeptPrefix+"4.0")
	n.do(os.Remove(filepath.Join(n.store, "8.0", "object")), os.Symlink(filepath.Join(n.outside, "d"), taken))
	p.clearKept(t.Context())
	p.giveKept(t.Context())
	if got, want := n.names(filepath.Join(n.store, "8.0")), []string{chunkstore.KeptPrefix + "1.0", chunkstore.KeptPrefix + "4.0"}; !slices.Equal(got, want) {
		t.Errorf("the job has %q, want %q", got, want)
	}
	if to, err := os.Readlink(taken); err != nil || to != filepath.Join(n.outside, "d") {
		t.Errorf("what was there is now %s, %v", to, err)
	}
	slices.Sort(odd)
	if got := slices.DeleteFunc(n.names(n.store), func(s string) bool { return s == "8.0" }); !slices.Equal(got, odd) {
		t.Errorf("in the store are left\n%q, want\n%q", got, odd)
	}
	for _, name := range append(odd, "8.0") {
		n.do(wipe(t.Context(), filepath.Join(n.store, name)))
	}
	n.empties("all")
}

// TestGiveToLink: a link in place of the job's store directory gets nothing.
func TestGiveToLink(t *testing.T) {
	n := newKeepNode(t)
	n.dir(keeperUID, fmt.Sprintf(".kept.%d.%d.1.0", keeperUID, time.Now().Add(time.Minute).Unix()))
	n.do(os.Symlink(n.outside, filepath.Join(n.store, "8.0")))
	n.prolog().giveKept(t.Context())
	n.do(os.Remove(filepath.Join(n.store, "8.0")))
	n.empties("a link")
}

// exchange exchanges keep and evil in the directory that is descriptor 3, until it is killed.
func exchange() int {
	for n := 0; ; n++ {
		_ = unix.Renameat2(3, chunkstore.KeepDir, 3, "evil", unix.RENAME_EXCHANGE)
		if n == 0 {
			_, _ = os.Stdout.WriteString("begun\n")
		}
	}
}

// TestKeepExchanged: a user whose process constantly exchanges the set for a link, and for a directory of another user,
// cannot get either of them kept.
func TestKeepExchanged(t *testing.T) {
	kept := 0
	for round := range 20 {
		n := newKeepNode(t)
		top := n.dir(keeperUID, "7.0")
		n.dir(keeperUID, "7.0", chunkstore.KeepDir)
		evil := filepath.Join(top, "evil")
		if round%2 == 0 {
			n.do(os.Symlink(n.outside, evil))
		} else {
			n.do(os.Mkdir(evil, 0o777), os.Chmod(evil, 0o777), os.Chown(evil, otherUID, otherUID))
		}
		end := asUser(t, "exchange", top)
		keepSets(t.Context(), place{n.site, "7"})
		end()
		for _, name := range n.names(n.store) {
			if !strings.HasPrefix(name, ".kept.") {
				continue
			}
			kept++
			if st, err := os.Lstat(filepath.Join(n.store, name)); err != nil || !st.IsDir() || st.Sys().(*syscall.Stat_t).Uid != keeperUID {
				t.Errorf("kept is %v, %v", st, err)
			}
		}
		n.do(wipe(t.Context(), top))
		n.empties("exchange")
	}
	t.Logf("%d of 20 sets were kept", kept)
}

// asUser starts this program as keeperUID, with dir as descriptor 3, and waits until it has begun.
func asUser(t *testing.T, what, dir string) (end func()) {
	t.Helper()
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	cmd := exec.Command("/proc/self/exe", what)
	cmd.ExtraFiles = []*os.File{open}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: keeperUID, Gid: keeperUID}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		end()
		t.Fatal(err)
	}
	return end
}
