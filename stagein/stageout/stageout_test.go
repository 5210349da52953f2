package stageout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// scratch is a namespace in memory that implements only the reading side.
type scratch struct {
	metadata.Store
	attrs   map[metadata.Ino]metadata.Attr
	entries map[metadata.Ino][]metadata.Entry
	targets map[metadata.Ino]string
	data    map[metadata.Ino][]byte
	read    func(a metadata.Attr) error
}

func newScratch() *scratch {
	s := &scratch{attrs: map[metadata.Ino]metadata.Attr{}, entries: map[metadata.Ino][]metadata.Entry{},
		targets: map[metadata.Ino]string{}, data: map[metadata.Ino][]byte{}}
	s.attrs[metadata.RootIno] = metadata.Attr{Ino: metadata.RootIno, Mode: source.TypeDir | 0o755}
	return s
}

func (s *scratch) add(dir metadata.Ino, name string, mode uint32, data []byte) metadata.Ino {
	ino := metadata.FirstIno + metadata.Ino(len(s.attrs))
	a := metadata.Attr{Ino: ino, Mode: mode, Size: int64(len(data)), Mtime: metadata.TimeOf(time.Unix(1e9, int64(ino)*1000))}
	s.attrs[ino], s.data[ino] = a, data
	e := metadata.Entry{Name: name, Ino: ino, Mode: mode}
	if ino%2 == 0 {
		e.Attr = &a
	}
	s.entries[dir] = append(s.entries[dir], e)
	slices.SortFunc(s.entries[dir], func(a, b metadata.Entry) int { return strings.Compare(a.Name, b.Name) })
	return ino
}

func (s *scratch) Getattr(_ context.Context, ino metadata.Ino) (metadata.Attr, error) {
	a, ok := s.attrs[ino]
	if !ok {
		return a, syscall.ENOENT
	}
	return a, nil
}

func (s *scratch) Readlink(_ context.Context, ino metadata.Ino) (string, error) {
	return s.targets[ino], nil
}

func (s *scratch) ReadDir(_ context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	var es []metadata.Entry
	for _, e := range s.entries[dir] {
		if e.Name > after && len(es) < limit {
			es = append(es, e)
		}
	}
	return es, nil
}

func (s *scratch) readAt(_ context.Context, a metadata.Attr, p []byte, off int64) (int, error) {
	if s.read != nil {
		if err := s.read(a); err != nil {
			return 0, err
		}
	}
	return copy(p, s.data[a.Ino][off:]), nil
}

func (s *scratch) config(to string, self, n int) Config {
	return Config{Store: s, Root: metadata.RootIno, Read: s.readAt, To: to, Self: self, N: n, Writer: fmt.Sprint(self)}
}

// outAll runs all shares concurrently.
func (s *scratch) outAll(t *testing.T, to string, n int) (Result, []error) {
	t.Helper()
	results, errs := make([]Result, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { results[i], errs[i] = Run(context.Background(), s.config(to, i, n)) })
	}
	wg.Wait()
	var sum Result
	for _, r := range results {
		sum.Add(r)
	}
	return sum, errs
}

func fillScratch(t *testing.T, s *scratch) (files, size int64) {
	r := stageintest.Rand(t)
	for d := range 4 {
		dir := s.add(metadata.RootIno, fmt.Sprint("d", d), source.TypeDir|0o500, nil)
		sub := s.add(dir, "sub", source.TypeDir|0o755, nil)
		for f := range 20 {
			n := r.IntN(3000)
			s.add(sub, fmt.Sprint("f", f), source.TypeRegular|0o640, stageintest.RandBytes(r, n))
			files, size = files+1, size+int64(n)
		}
	}
	big := append(make([]byte, 3<<20), stageintest.RandBytes(r, 1<<20+5)...)
	s.add(metadata.RootIno, "holes", source.TypeRegular|0o444, append(big, make([]byte, 2<<20)...))
	s.add(metadata.RootIno, strings.Repeat("n", 255), source.TypeRegular|0o600, []byte("longest"))
	link := s.add(metadata.RootIno, "link", source.TypeSymlink|0o777, nil)
	s.targets[link] = "/elsewhere"
	below := s.add(s.entries[metadata.RootIno][0].Ino, "link", source.TypeSymlink|0o777, nil)
	s.targets[below] = "."
	return files + 2, size + int64(len(big)) + 2<<20 + 7
}

// checkOut compares the tree under to with the contents of dir.
func (s *scratch) checkOut(t *testing.T, to string, dir metadata.Ino) {
	t.Helper()
	for _, e := range s.entries[dir] {
		p, a := path.Join(to, e.Name), s.attrs[e.Ino]
		info, err := os.Lstat(p)
		if err != nil {
			t.Error(err)
			continue
		}
		perm := fs.FileMode(a.Mode & 0o777)
		switch a.Mode & source.TypeMask {
		case source.TypeDir:
			if info.Mode() != fs.ModeDir|perm|0o700 || metadata.TimeOf(info.ModTime()) != a.Mtime {
				t.Errorf("%s has mode %v and is of %v, want %v", p, info.Mode(), info.ModTime(), a.Mtime.Time())
			}
			s.checkOut(t, p, e.Ino)
		case source.TypeSymlink:
			if got, _ := os.Readlink(p); got != s.targets[e.Ino] {
				t.Errorf("%s = %q", p, got)
			}
			if metadata.TimeOf(info.ModTime()) != a.Mtime {
				t.Errorf("%s is of %v, want %v", p, info.ModTime(), a.Mtime.Time())
			}
		default:
			got, err := os.ReadFile(p)
			if err != nil || string(got) != string(s.data[e.Ino]) || info.Mode() != perm || metadata.TimeOf(info.ModTime()) != a.Mtime {
				t.Errorf("%s: %d bytes, %v, %v, %v", p, len(got), info.Mode(), info.ModTime(), err)
			}
		}
	}
	found, err := os.ReadDir(to)
	if err != nil || len(found) != len(s.entries[dir]) {
		t.Errorf("%s has %d entries, want %d: %v", to, len(found), len(s.entries[dir]), err)
	}
}

func TestOut(t *testing.T) {
	s := newScratch()
	files, size := fillScratch(t, s)
	for _, n := range []int{1, 4} {
		to := filepath.Join(t.TempDir(), "not", "there")
		sum, errs := s.outAll(t, to, n)
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		if want := (Result{Files: files, Dirs: 8, Symlinks: 2, Bytes: size}); fmt.Sprint(sum) != fmt.Sprint(want) {
			t.Errorf("%d nodes: %+v, want %+v", n, sum, want)
		}
		s.checkOut(t, to, metadata.RootIno)
	}
}

func TestOutFile(t *testing.T) {
	s := newScratch()
	ino := s.add(metadata.RootIno, "one", source.TypeRegular|0o600, []byte("one"))
	to := t.TempDir()
	cfg := s.config(to, 0, 1)
	cfg.Root, cfg.Name = ino, "copy"
	if r, err := Run(context.Background(), cfg); err != nil || r.Files != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if b, _ := os.ReadFile(filepath.Join(to, "copy")); string(b) != "one" {
		t.Errorf("copy = %q", b)
	}
}

func TestOutListsWhatFails(t *testing.T) {
	s := newScratch()
	files, _ := fillScratch(t, s)
	bad := s.add(metadata.RootIno, "unreadable", source.TypeRegular|0o600, make([]byte, 10))
	s.read = func(a metadata.Attr) error {
		if a.Ino == bad {
			return syscall.EHOSTDOWN
		}
		return nil
	}
	s.add(metadata.RootIno, "pipe", source.TypeFIFO|0o600, nil)
	s.add(metadata.RootIno, "taken", source.TypeRegular|0o600, nil)
	s.add(s.add(metadata.RootIno, "escape", source.TypeDir|0o755, nil), "f", source.TypeRegular|0o600, nil)
	to, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(to, "taken", "x"), 0o755),
		os.Symlink(outside, filepath.Join(to, "escape")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sum, errs := s.outAll(t, to, 3)
	if sum.Files != files {
		t.Errorf("%d files were copied, want %d all the same", sum.Files, files)
	}
	var failed int
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	all := strings.Join(sum.Errors, "\n")
	for _, want := range []string{`"unreadable": read at offset 0: host is down`, `"pipe": not a file`, `"taken": `, `"escape": not a directory`} {
		if !strings.Contains(all, want) {
			t.Errorf("errors have no %s:\n%s", want, all)
		}
	}
	if sum.Failed < 4 || failed == 0 {
		t.Errorf("%+v, %v", sum, errs)
	}
	if left, _ := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("wrote outside: %v", left)
	}
	_ = filepath.WalkDir(to, func(p string, _ fs.DirEntry, _ error) error {
		if strings.HasPrefix(filepath.Base(p), ".bivouac-") {
			t.Errorf("%s was left behind", p)
		}
		return nil
	})
}

// TestOutToWhatCannotBeWritten: every file is reported as failed, once for all nodes together, and no other work is
// done.
func TestOutToWhatCannotBeWritten(t *testing.T) {
	s := newScratch()
	files, size := fillScratch(t, s)
	to := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(to, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if r, err := Run(context.Background(), s.config(to, 0, 1)); !errors.Is(err, syscall.ENOTDIR) || r.Failed != 0 {
		t.Errorf("%+v, %v, want ENOTDIR", r, err)
	}
	var mu sync.Mutex
	var bytes int64
	seen := make(map[string]bool)
	for self := range 3 {
		cfg := s.config(to, self, 3)
		cfg.Failed = func(f Failure) {
			mu.Lock()
			defer mu.Unlock()
			if seen[f.Name] || !errors.Is(f.Err, syscall.ENOTDIR) {
				t.Errorf("%+v, seen before: %v", f, seen[f.Name])
			}
			seen[f.Name], bytes = true, bytes+f.Bytes
		}
		if _, err := Run(context.Background(), cfg); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("share %d: %v, want ENOTDIR", self, err)
		}
	}
	if int64(len(seen)) != files+2 || bytes < size { // and the two links
		t.Errorf("%d things of %d bytes failed, want %d files and two links of %d", len(seen), bytes, files, size)
	}
}

func TestOutOfAFileThatChanges(t *testing.T) {
	s := newScratch()
	ino := s.add(metadata.RootIno, "f", source.TypeRegular|0o600, make([]byte, 3<<20))
	s.read = func(a metadata.Attr) error {
		a.Size--
		s.attrs[ino] = a
		return nil
	}
	r, err := Run(context.Background(), s.config(t.TempDir(), 0, 1))
	if !stageintest.ErrorHas(err, "written to while") || r.Failed != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestOutStops(t *testing.T) {
	s := newScratch()
	fillScratch(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, s.config(t.TempDir(), 0, 1)); !stageintest.ErrorHas(err, "stopped") {
		t.Errorf("%v", err)
	}
	for _, self := range []int{-1, 2} {
		if _, err := Run(context.Background(), s.config(t.TempDir(), self, 2)); err == nil {
			t.Errorf("share %d of 2 ran", self)
		}
	}
}
