package model

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// twin is a second model that plays the system, with a bug.
type twin struct {
	*FS
	bug func(f *FS, o Op) (Result, bool) // true: the result replaces the right one
}

func (s *twin) Do(o Op) Result {
	if r, ok := s.bug(s.FS, o); ok {
		return r
	}
	r := s.FS.Do(o)
	if r.Check != nil { // a choice of the system: take the simplest
		return s.choose(o)
	}
	return r
}

// choose answers where the model leaves a choice.
func (s *twin) choose(o Op) Result {
	h := s.handles[o.H]
	switch {
	case o.Kind == "read" || o.Kind == "pread":
		return failed(syscall.EISDIR)
	case o.Kind == "copyrange":
		b := h.at(o.Off, o.Len)
		s.handles[o.slot()].put(o.Seed, b)
		return Result{N: int64(len(b))}
	case o.Kind != "lseek" || h.dir():
		return Result{}
	case o.Flags == unix.SEEK_HOLE:
		h.pos = int64(len(h.data))
	case zeros(h.data[o.Off:]):
		return failed(syscall.ENXIO)
	default:
		for h.pos = o.Off; h.data[h.pos] == 0; h.pos++ {
		}
	}
	return Result{N: h.pos}
}

func (s *twin) Tree(int) (Tree, error) { return s.FS.Tree(), nil }
func (s *twin) Close() error           { return nil }

func newTwin(bug func(f *FS, o Op) (Result, bool)) *twin {
	s := &twin{FS: NewFS(), bug: bug}
	s.Umask = Umask()
	return s
}

func noBug(*FS, Op) (Result, bool) { return Result{}, false }

// TestPlanted: a bug is found, and its script is minimal.
func TestPlanted(t *testing.T) {
	tests := []struct {
		name  string
		steps int // of the shortest script
		bug   func(f *FS, o Op) (Result, bool)
	}{
		{"a link is not counted", 2, func(f *FS, o Op) (Result, bool) {
			r := f.Do(o)
			if o.Kind == "link" && r.Err == 0 {
				i, _ := f.find(o.To, false)
				i.nlink--
			}
			return r, r.Check == nil
		}},
		{"O_EXCL is ignored", 2, func(f *FS, o Op) (Result, bool) {
			o.Flags &^= unix.O_EXCL
			return f.open(o), o.Kind == "open"
		}},
		{"a file grows by what is no zero", 3, grows},
		{"rename over a file loses the file", 3, func(f *FS, o Op) (Result, bool) {
			if o.Kind != "rename" {
				return Result{}, false
			}
			_, to, no := f.ends(o.Path, o.To)
			there := no == 0 && to.inode != nil && to.file()
			r := f.rename(o)
			if r.Err == 0 && there && o.Flags == 0 && o.Path != o.To {
				delete(to.in.entries, to.name)
			}
			return r, true
		}},
		{"a byte behind a chunk's end is lost", 2, func(f *FS, o Op) (Result, bool) {
			r := f.Do(o)
			if h := f.handles[o.H]; o.Kind == "pwrite" && r.Err == 0 && o.Off < chunk && o.Off+o.Len > chunk && h.flags&unix.O_APPEND == 0 {
				h.data[chunk] = 0
			}
			return r, r.Check == nil
		}},
		{"an attribute is not removed", 3, func(f *FS, o Op) (Result, bool) {
			return Result{}, o.Kind == "delxattr" && f.getxattr(o).Err == 0
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Mounts: 3, Every: 20}
			var f *Failure
			for seed := uint64(1); f == nil && seed < 200; seed++ {
				f = explore(newTwin(tt.bug), seed, 300, cfg, make(map[string]int))
			}
			if f == nil {
				t.Fatal("not found")
			}
			short := Shrink(f, func(script []Op) *Failure { return Run(newTwin(tt.bug), script, cfg) })
			if len(short.Script) > tt.steps {
				t.Errorf("%d steps left, want %d:\n%v", len(short.Script), tt.steps, short)
			}
			again, err := Parse(short.String(), 3)
			if err != nil || Run(newTwin(tt.bug), again, cfg) == nil {
				t.Errorf("what was printed does not fail again: %v\n%v", err, short)
			}
			if f := Run(newTwin(noBug), short.Script, cfg); f != nil {
				t.Errorf("without the bug it fails, too:\n%v", f)
			}
		})
	}
}

// grows exposes a non-zero byte when a file that is not empty grows.
func grows(f *FS, o Op) (Result, bool) {
	if o.Kind != "truncate" && o.Kind != "ftruncate" {
		return Result{}, false
	}
	i := f.looksAt(o)
	if i == nil || !i.file() {
		return Result{}, false
	}
	n, r := len(i.data), f.Do(o)
	if r.Err == 0 && len(i.data) > n && n > 0 {
		i.data[n] = 'x'
	}
	return r, true
}

// TestTwin: a model without a bug passes.
func TestTwin(t *testing.T) {
	seed := firstSeed(t)
	for i := range uint64(50) {
		if f := explore(newTwin(noBug), seed+i, 300, Config{Mounts: 3, Every: 20}, make(map[string]int)); f != nil {
			t.Fatalf("seed %d:\n%v", seed+i, f)
		}
	}
}

// TestRefusedOpen: a refused open has closed the file that was open in its slot, and nothing else.
func TestRefusedOpen(t *testing.T) {
	const script = `
m0 open h=0 path="a" flags=O_RDWR|O_CREAT mode=0644
m0 pwrite h=0 off=0 len=10 seed=1
m0 open h=0 path="b" flags=O_RDWR|O_CREAT mode=0644
m0 pread h=0 off=0 len=10
m0 open h=0 path="a" flags=O_RDWR|O_TRUNC mode=0644
m0 fstat h=0
`
	refused := func(effect func(f *FS, o Op)) func(f *FS, o Op) (Result, bool) {
		opens := 0
		return func(f *FS, o Op) (Result, bool) {
			if o.Kind != "open" {
				return Result{}, false
			}
			if opens++; opens == 1 {
				return Result{}, false
			}
			effect(f, o)
			return failed(syscall.ESTALE), true
		}
	}
	tests := []struct {
		name   string
		effect func(f *FS, o Op) // of a refused open
		right  bool
	}{
		{"closed", func(f *FS, o Op) { delete(f.handles, o.H) }, true},
		{"not closed", func(*FS, Op) {}, false},
		{"made, or truncated", func(f *FS, o Op) {
			f.open(o)
			delete(f.handles, o.H)
		}, false},
	}
	ops, err := Parse(script, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := Run(newTwin(refused(tt.effect)), ops, Config{Mounts: 1, Known: knownTogether})
			if (f == nil) != tt.right {
				t.Errorf("it fails, or not, in error:\n%v", f)
			}
		})
	}
}
