package stageout

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// run runs a single share, which must not fail.
func (s *scratch) run(t *testing.T, cfg Config) Result {
	t.Helper()
	r, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// change gives a file of scratch other content and a new time.
func (s *scratch) change(ino metadata.Ino, data []byte) {
	a := s.attrs[ino]
	a.Size, a.Mtime = int64(len(data)), a.Mtime+1
	s.attrs[ino], s.data[ino] = a, data
	for dir, es := range s.entries {
		for i := range es {
			if es[i].Ino == ino && es[i].Attr != nil {
				s.entries[dir][i].Attr = &a
			}
		}
	}
}

// TestOutAgain: a file in the target is not copied again unless it changed.
func TestOutAgain(t *testing.T) {
	s := newScratch()
	files, _ := fillScratch(t, s)
	changed := s.add(metadata.RootIno, "changed", source.TypeRegular|0o600, []byte("old"))
	to := t.TempDir()
	for _, memory := range []*Memory{nil, new(Memory)} {
		cfg := s.config(to, 0, 1)
		cfg.Memory = memory
		s.run(t, cfg)
		s.change(changed, append(s.data[changed], '!'))
		if r := s.run(t, cfg); r.Files != 1 || r.Bytes != s.attrs[changed].Size || r.Kept != files {
			t.Errorf("again = %+v, want the one file that changed, and %d kept", r, files)
		}
		s.checkOut(t, to, metadata.RootIno)
	}
}

// TestOutLinkTimes: a link that is already in the target gets its current time and keeps its inode.
func TestOutLinkTimes(t *testing.T) {
	s := newScratch()
	link := s.add(metadata.RootIno, "link", source.TypeSymlink|0o777, nil)
	s.targets[link] = "to"
	to := t.TempDir()
	s.run(t, s.config(to, 0, 1))
	before, err := os.Lstat(filepath.Join(to, "link"))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []metadata.Time{-1_500_000_000, 4_700_000_000_123_456_789} {
		a := s.attrs[link]
		a.Mtime = at
		s.attrs[link], s.entries[metadata.RootIno][0].Attr = a, nil
		s.run(t, s.config(to, 0, 1))
		s.checkOut(t, to, metadata.RootIno)
	}
	if after, err := os.Lstat(filepath.Join(to, "link")); err != nil || !os.SameFile(before, after) {
		t.Errorf("the link was made again: %v", err)
	}
}

// TestOutDirTimes: directories have the times of those in scratch when the last node has finished writing, also if a
// writer was killed before it set them; a node without other work sets them, too.
func TestOutDirTimes(t *testing.T) {
	s := newScratch()
	files, _ := fillScratch(t, s)
	root := s.attrs[metadata.RootIno]
	root.Mtime = metadata.TimeOf(time.Unix(1e9, 5))
	s.attrs[metadata.RootIno] = root
	const nodes = 3
	to := filepath.Join(t.TempDir(), "to")
	check := func(when string) {
		t.Helper()
		s.checkOut(t, to, metadata.RootIno)
		if info, err := os.Lstat(to); err != nil || metadata.TimeOf(info.ModTime()) != root.Mtime {
			t.Errorf("%s: the target is of %v, %v, want %v", when, info.ModTime(), err, root.Mtime.Time())
		}
	}
	var memory [nodes]Memory
	all := func() (sum Result) {
		t.Helper()
		for self := range nodes {
			cfg := s.config(to, self, nodes)
			cfg.Memory = &memory[self]
			sum.Add(s.run(t, cfg))
		}
		return sum
	}
	all()
	check("at first")
	dir := s.entries[metadata.RootIno][0].Ino
	s.add(dir, "new", source.TypeRegular|0o600, []byte("new"))
	all()
	check("after one more file")
	memory = [nodes]Memory{}
	for _, rel := range []string{"", "d0", "d3/sub"} {
		if err := os.Chtimes(filepath.Join(to, rel), time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if r := all(); r.Files != 0 || r.Kept != files+1 {
		t.Errorf("%+v, want all kept", r)
	}
	check("after a kill")
}

// TestOutGroup: new directories inherit the set-group-ID bit of the target, also below other new ones.
func TestOutGroup(t *testing.T) {
	s := newScratch()
	fillScratch(t, s)
	to := t.TempDir()
	if err := os.Chmod(to, 0o755|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	s.run(t, s.config(to, 0, 1))
	for name, want := range map[string]os.FileMode{"d0": 0o700, "d0/sub": 0o755} {
		if info, err := os.Lstat(filepath.Join(to, name)); err != nil || info.Mode() != os.ModeDir|os.ModeSetgid|want {
			t.Errorf("%s: %v, %v, want %v with set-group-ID", name, info, err, want)
		}
	}
}

// TestOutWholeSeconds: with a target that keeps times in whole seconds, as Lustre does, a file is copied again if it
// was written to since its copy, or if the copier has no record of that copy.
func TestOutWholeSeconds(t *testing.T) {
	s := newScratch()
	ino := s.add(metadata.RootIno, "f", source.TypeRegular|0o600, []byte("f"))
	cfg := s.config(t.TempDir(), 0, 1)
	cfg.Memory = new(Memory)
	seconds := func() {
		t.Helper()
		whole := s.attrs[ino].Mtime.Time().Truncate(time.Second)
		if err := os.Chtimes(filepath.Join(cfg.To, "f"), whole, whole); err != nil {
			t.Fatal(err)
		}
	}
	s.change(ino, []byte("g")) // its time is not a whole second
	for _, tt := range []struct {
		what   string
		change func()
		copied int64
	}{
		{"new", func() {}, 1},
		{"the same", seconds, 0},
		{"changed within the second", func() { seconds(); s.change(ino, []byte("h")) }, 1},
		{"not remembered", func() { seconds(); cfg.Memory = new(Memory) }, 1},
		{"another second", func() {
			later := s.attrs[ino].Mtime.Time().Truncate(time.Second).Add(time.Second)
			if err := os.Chtimes(filepath.Join(cfg.To, "f"), later, later); err != nil {
				t.Fatal(err)
			}
		}, 1},
	} {
		tt.change()
		if r := s.run(t, cfg); r.Files != tt.copied || r.Kept != 1-tt.copied {
			t.Errorf("%s: %+v, want %d copied", tt.what, r, tt.copied)
		}
		if got, err := os.ReadFile(filepath.Join(cfg.To, "f")); err != nil || string(got) != string(s.data[ino]) {
			t.Errorf("%s: the target has %q, %v", tt.what, got, err)
		}
	}
}

// TestOutMemory: with a trusted memory, copies recorded in it are not looked up in the target; without trust, removed
// copies are found.
func TestOutMemory(t *testing.T) {
	s := newScratch()
	s.add(metadata.RootIno, "f", source.TypeRegular|0o600, []byte("f"))
	s.add(s.add(metadata.RootIno, "d", source.TypeDir|0o755, nil), "g", source.TypeRegular|0o600, []byte("g"))
	cfg := s.config(t.TempDir(), 0, 1)
	cfg.Memory, cfg.Trust = new(Memory), true
	s.run(t, cfg)
	for _, name := range []string{"f", "d"} {
		if err := os.RemoveAll(filepath.Join(cfg.To, name)); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.run(t, cfg); r.Kept != 2 || r.Files != 0 {
		t.Errorf("with memory = %+v, want two kept", r)
	}
	cfg.Trust = false
	if r := s.run(t, cfg); r.Kept != 0 || r.Files != 2 {
		t.Errorf("without trust = %+v, want two copied", r)
	}
	s.checkOut(t, cfg.To, metadata.RootIno)
}

// TestOutFresh: a file written to a moment ago is left for the next run.
func TestOutFresh(t *testing.T) {
	s := newScratch()
	ino := s.add(metadata.RootIno, "f", source.TypeRegular|0o600, []byte("f"))
	written := s.attrs[ino].Mtime.Time()
	cfg := s.config(t.TempDir(), 0, 1)
	cfg.Settle = 3 * time.Second
	for _, tt := range []struct {
		after time.Duration
		fresh int64
	}{{-time.Second, 1}, {0, 1}, {3*time.Second - 1, 1}, {3 * time.Second, 0}} {
		cfg.Now = func() time.Time { return written.Add(tt.after) }
		if r := s.run(t, cfg); r.Unsettled != tt.fresh || r.Files != 1-tt.fresh {
			t.Errorf("%v after the write = %+v, want %d left out", tt.after, r, tt.fresh)
		}
	}
}

// TestOutPieces: all nodes copy a large file; a piece that one of them cannot copy is copied by the node that has the
// file.
func TestOutPieces(t *testing.T) {
	const nodes = 3
	s := newScratch()
	r := stageintest.Rand(t)
	s.add(metadata.RootIno, "large", source.TypeRegular|0o640, stageintest.RandBytes(r, 10<<20+7))
	s.add(metadata.RootIno, "small", source.TypeRegular|0o640, stageintest.RandBytes(r, 1<<20))
	to := t.TempDir()
	var helped, refused atomic.Int64
	for self := range nodes {
		cfg := s.config(to, self, nodes)
		cfg.Piece = 1 << 20
		cfg.Help = func(ctx context.Context, k int, p Piece) error {
			if k == self || k >= nodes {
				t.Errorf("node %d asks node %d", self, k)
			}
			if (self+1)%nodes == k {
				refused.Add(1)
				return syscall.EHOSTDOWN
			}
			helped.Add(1)
			return CopyPiece(ctx, s.readAt, p)
		}
		s.run(t, cfg)
	}
	s.checkOut(t, to, metadata.RootIno)
	if helped.Load() == 0 || refused.Load() == 0 || helped.Load()+refused.Load() > 11 {
		t.Errorf("%d pieces were done by others and %d refused, want some of each of the 11", helped.Load(), refused.Load())
	}
}

func TestCopyPieceBad(t *testing.T) {
	s := newScratch()
	ino := s.add(metadata.RootIno, "f", source.TypeRegular|0o600, make([]byte, 100))
	to := t.TempDir()
	for _, p := range []Piece{{Off: -1, Len: 1}, {Off: 0, Len: -1}, {Off: 50, Len: 51}, {Off: 1 << 62, Len: 1 << 62}} {
		p.To, p.Tmp, p.Attr = to, "tmp", s.attrs[ino]
		if err := CopyPiece(context.Background(), s.readAt, p); !stageintest.ErrorHas(err, "invalid") {
			t.Errorf("%+v = %v, want EINVAL", p, err)
		}
	}
	for _, tmp := range []string{"../f", "/etc/passwd", "none"} {
		p := Piece{To: to, Tmp: tmp, Attr: s.attrs[ino], Len: 1}
		if err := CopyPiece(context.Background(), s.readAt, p); err == nil {
			t.Errorf("a piece was copied to %q", tmp)
		}
	}
}

// TestOutVerifies: a copy that differs from the bytes read is detected.
func TestOutVerifies(t *testing.T) {
	s := newScratch()
	ino := s.add(metadata.RootIno, "f", source.TypeRegular|0o600, stageintest.RandBytes(stageintest.Rand(t), 3<<20))
	to := t.TempDir()
	reads := 0
	s.read = func(metadata.Attr) error {
		reads++
		if reads == 3 { // the first piece has been written by now
			f, err := os.OpenFile(filepath.Join(to, temporary("f", "0")), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{^s.data[ino][5]}, 5); err != nil {
				return err
			}
		}
		return nil
	}
	r, err := Run(context.Background(), s.config(to, 0, 1))
	if !stageintest.ErrorHas(err, "other bytes") || r.Failed != 1 {
		t.Errorf("%+v, %v, want a copy with other bytes", r, err)
	}
	if found, _ := os.ReadDir(to); len(found) != 0 {
		t.Errorf("left behind: %v", found)
	}
}
