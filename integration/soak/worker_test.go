package soak

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// blockSize is the size of one write: with chunks of this size, each block of a file is on another node.
const blockSize = 64 << 10

// file is an inode as recorded by the worker.
type file struct {
	id     int
	ino    uint64
	blocks []block
}

// block is a block of a file: its acknowledged version, and a version whose write was not answered. 0 is none.
type block struct{ have, maybe uint32 }

// unsure reports whether a write of f is unanswered.
func (f *file) unsure() bool {
	return slices.ContainsFunc(f.blocks, func(b block) bool { return b.maybe != 0 })
}

// object is the target of a name; the zero object is none.
type object struct {
	dir  bool
	file *file
}

func (o object) there() bool { return o.dir || o.file != nil }

// doubt is an unanswered operation: its objects are in the state before or after it, and apply applies it to the
// worker's tree.
type doubt struct {
	what          string
	before, after map[string]object
	apply         func()
}

// worker makes, renames and removes entries below its own directory, and records everything.
type worker struct {
	t    testing.TB
	j    *testJob
	rng  *rand.Rand
	root string // in scratch

	names  map[string]object // by path below root; the root is ""
	doubts []doubt
	node   int // the mount used by the last operation
	last   int // number of the newest file
	done   int // acknowledged operations
}

func newWorker(t testing.TB, j *testJob, seed uint64, id int) *worker {
	t.Helper()
	w := &worker{
		t: t, j: j, rng: rand.New(rand.NewPCG(seed, uint64(id))), root: fmt.Sprint("w", id),
		names: map[string]object{"": {dir: true}},
	}
	home := j.scratch(id%len(j.nodes), w.root)
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(home, "user.bivouac.chunk", []byte("64K"), 0); err != nil {
		t.Fatal(err)
	}
	if id%2 == 1 {
		twoCopies(t, home)
	}
	for i := range j.nodes { // a directory gets its maker as home
		d := fmt.Sprint("d", i)
		if err := os.Mkdir(j.scratch(i, w.at(d)), 0o755); err != nil {
			t.Fatal(err)
		}
		w.names[d] = object{dir: true}
	}
	return w
}

// twoCopies sets two copies for the files of a new directory, and of those below it.
func twoCopies(t testing.TB, dir string) {
	t.Helper()
	if err := unix.Setxattr(dir, "user.bivouac.copies", []byte("2"), 0); err != nil {
		t.Fatal(err)
	}
}

// at returns a path of the worker in scratch.
func (w *worker) at(p string) string { return path.Join(w.root, p) }

// via returns p through any node's working mount.
func (w *worker) via(p string) string {
	i := w.rng.IntN(len(w.j.nodes))
	for range w.j.nodes {
		if w.j.nodes[i].ready.Load() {
			break
		}
		i = (i + 1) % len(w.j.nodes)
	}
	w.node = i
	return w.j.scratch(i, w.at(p))
}

// try runs an operation on an existing object.
func (w *worker) try(what string, do func() error) bool {
	ok := w.j.try(operation{what, &w.node, true, true, do})
	if ok {
		w.done++
	}
	return ok
}

// change runs an operation that changes names as described by d.
func (w *worker) change(d doubt, do func() error) bool {
	// An operation that a killed daemon had begun is repeated, and may then find its own work: ENOENT.
	if w.j.try(operation{w.root + ": " + d.what, &w.node, false, true, do}) {
		w.done++
		d.apply()
		return true
	}
	w.doubts = append(w.doubts, d)
	return false
}

// doubtful reports whether an unanswered operation concerns p, or a path above or below it.
func (w *worker) doubtful(p string) bool {
	for _, d := range w.doubts {
		for q := range d.before {
			if q == p || within(p, q) || within(q, p) {
				return true
			}
		}
	}
	return false
}

// within reports whether p is below dir.
func within(p, dir string) bool { return dir == "" && p != "" || strings.HasPrefix(p, dir+"/") }

// pick returns a known path that ok accepts; false if there is none.
func (w *worker) pick(ok func(p string, o object) bool) (string, object, bool) {
	var ps []string
	for p, o := range w.names {
		if ok(p, o) && (p == "" || !w.doubtful(p)) {
			ps = append(ps, p)
		}
	}
	if len(ps) == 0 {
		return "", object{}, false
	}
	slices.Sort(ps)
	p := ps[w.rng.IntN(len(ps))]
	return p, w.names[p], true
}

func (w *worker) pickFile() (string, object, bool) {
	return w.pick(func(_ string, o object) bool { return o.file != nil && !w.unsettled(o.file) })
}

// unsettled reports whether a name of f, its number or its content is in doubt.
func (w *worker) unsettled(f *file) bool {
	if f.ino == 0 || f.unsure() {
		return true
	}
	for _, d := range w.doubts {
		for _, side := range []map[string]object{d.before, d.after} {
			for _, o := range side {
				if o.file == f {
					return true
				}
			}
		}
	}
	return false
}

// vacant returns an unused path in a directory below the root, but not in not.
func (w *worker) vacant(not string) (string, bool) {
	dir, _, ok := w.pick(func(p string, o object) bool { return o.dir && p != "" && (not == "" || p != not && !within(p, not)) })
	if !ok {
		return "", false
	}
	p := path.Join(dir, fmt.Sprint("n", w.rng.IntN(12)))
	_, taken := w.names[p]
	return p, !taken && !w.doubtful(p)
}

// step does one operation, if a suitable object exists.
func (w *worker) step() {
	switch n := w.rng.IntN(100); {
	case n < 22:
		w.create()
	case n < 36:
		w.write()
	case n < 54:
		w.rename()
	case n < 62:
		w.link()
	case n < 76:
		w.unlink()
	case n < 82:
		w.mkdir()
	case n < 86:
		w.rmdir()
	case n < 91:
		w.renameDir()
	case n < 95:
		w.exchange()
	default:
		w.read()
	}
}

func (w *worker) create() {
	p, ok := w.vacant("")
	if !ok || len(w.names) > 200 { // drives are small
		return
	}
	w.last++
	f := &file{id: w.last}
	made := object{file: f}
	var fd *os.File
	d := doubt{
		what: "create " + p, before: map[string]object{p: {}}, after: map[string]object{p: made},
		apply: func() { w.names[p] = made },
	}
	if !w.change(d, func() (err error) {
		fd, err = os.OpenFile(w.via(p), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		return err
	}) {
		return
	}
	defer fd.Close()
	if !w.try(w.root+": stat of "+p, func() error { return f.stat(fd) }) {
		return
	}
	for range w.rng.IntN(6) {
		f.blocks = append(f.blocks, block{})
		if !w.put(fd, f, len(f.blocks)-1) {
			return
		}
	}
}

// stat reads the number of f, by which its names are recognized.
func (f *file) stat(fd *os.File) error {
	info, err := fd.Stat()
	if err != nil {
		return err
	}
	f.ino = info.Sys().(*syscall.Stat_t).Ino
	return nil
}

// put writes block i of f and waits until it is durable.
func (w *worker) put(fd *os.File, f *file, i int) bool {
	b := &f.blocks[i]
	b.maybe = w.rng.Uint32() | 1
	if !w.try(fmt.Sprintf("%s: write of block %d of %s", w.root, i, fd.Name()), func() error {
		if _, err := fd.WriteAt(content(f.id, i, b.maybe), int64(i)*blockSize); err != nil {
			return err
		}
		return fd.Sync()
	}) {
		return false
	}
	b.have, b.maybe = b.maybe, 0
	return true
}

// content returns the content of a block.
func content(id, i int, version uint32) []byte {
	if version == 0 {
		return make([]byte, blockSize)
	}
	var unit [16]byte
	binary.LittleEndian.PutUint32(unit[:], uint32(id))
	binary.LittleEndian.PutUint32(unit[4:], uint32(i))
	binary.LittleEndian.PutUint32(unit[8:], version)
	copy(unit[12:], "data")
	return bytes.Repeat(unit[:], blockSize/len(unit))
}

func (w *worker) write() {
	p, o, ok := w.pickFile()
	if !ok || len(o.file.blocks) == 0 {
		return
	}
	var fd *os.File
	if !w.try(w.root+": open "+p, func() (err error) {
		fd, err = os.OpenFile(w.via(p), os.O_RDWR, 0)
		return err
	}) {
		return
	}
	defer fd.Close()
	w.put(fd, o.file, w.rng.IntN(len(o.file.blocks)))
}

func (w *worker) rename() {
	p, o, ok := w.pickFile()
	if !ok {
		return
	}
	q, ok := w.vacant("")
	old := object{}
	if w.rng.IntN(3) == 0 {
		q, old, ok = w.pickFile()
		ok = ok && old.file != o.file
	}
	if !ok {
		return
	}
	w.change(doubt{
		what:   fmt.Sprintf("rename %s to %s", p, q),
		before: map[string]object{p: o, q: old}, after: map[string]object{p: {}, q: o},
		apply: func() { delete(w.names, p); w.names[q] = o },
	}, func() error { return rename(w, p, q, 0) })
}

// rename calls renameat2 through one mount.
func rename(w *worker, p, q string, flags uint) error {
	base := w.via("")
	return unix.Renameat2(unix.AT_FDCWD, path.Join(base, p), unix.AT_FDCWD, path.Join(base, q), flags)
}

func (w *worker) exchange() {
	p, o, ok := w.pickFile()
	q, r, also := w.pickFile()
	if !ok || !also || o.file == r.file {
		return
	}
	w.change(doubt{
		what:   fmt.Sprintf("exchange %s and %s", p, q),
		before: map[string]object{p: o, q: r}, after: map[string]object{p: r, q: o},
		apply: func() { w.names[p], w.names[q] = r, o },
	}, func() error { return rename(w, p, q, unix.RENAME_EXCHANGE) })
}

func (w *worker) link() {
	p, o, ok := w.pickFile()
	q, free := w.vacant("")
	if !ok || !free {
		return
	}
	w.change(doubt{
		what:   fmt.Sprintf("link %s as %s", p, q),
		before: map[string]object{p: o, q: {}}, after: map[string]object{p: o, q: o},
		apply: func() { w.names[q] = o },
	}, func() error { base := w.via(""); return os.Link(path.Join(base, p), path.Join(base, q)) })
}

func (w *worker) unlink() {
	p, o, ok := w.pickFile()
	if !ok {
		return
	}
	var fd *os.File
	if w.rng.IntN(3) == 0 { // keep it open for a while
		fd, _ = os.Open(w.via(p)) // a mount may be dead
	}
	gone := w.change(doubt{
		what: "unlink " + p, before: map[string]object{p: o}, after: map[string]object{p: {}},
		apply: func() { delete(w.names, p) },
	}, func() error { return os.Remove(w.via(p)) })
	if fd == nil {
		return
	}
	defer fd.Close()
	if gone {
		w.compare("open file "+p, fd, o.file)
	}
}

func (w *worker) mkdir() {
	p, ok := w.vacant("")
	if !ok || strings.Count(p, "/") > 3 {
		return
	}
	w.change(doubt{
		what: "mkdir " + p, before: map[string]object{p: {}}, after: map[string]object{p: {dir: true}},
		apply: func() { w.names[p] = object{dir: true} },
	}, func() error { return os.Mkdir(w.via(p), 0o755) })
}

// pickDir returns a directory that is not one of the first ones.
func (w *worker) pickDir() (string, object, bool) {
	return w.pick(func(p string, o object) bool { return o.dir && strings.Contains(p, "/") })
}

func (w *worker) rmdir() {
	p, o, ok := w.pickDir()
	if !ok {
		return
	}
	for q := range w.names {
		if within(q, p) {
			return
		}
	}
	w.change(doubt{
		what: "rmdir " + p, before: map[string]object{p: o}, after: map[string]object{p: {}},
		apply: func() { delete(w.names, p) },
	}, func() error { return os.Remove(w.via(p)) })
}

func (w *worker) renameDir() {
	p, o, ok := w.pickDir()
	q, free := w.vacant(p)
	if !ok || !free {
		return
	}
	w.change(doubt{
		what:   fmt.Sprintf("rename directory %s to %s", p, q),
		before: map[string]object{p: o, q: {}}, after: map[string]object{p: {}, q: o},
		apply: func() {
			for r, x := range w.names {
				if r == p || within(r, p) {
					delete(w.names, r)
					w.names[q+strings.TrimPrefix(r, p)] = x
				}
			}
		},
	}, func() error { return rename(w, p, q, 0) })
}

// read reads a file and compares it.
func (w *worker) read() {
	p, o, ok := w.pickFile()
	if !ok {
		return
	}
	var fd *os.File
	if !w.try(w.root+": open "+p, func() (err error) { fd, err = os.Open(w.via(p)); return err }) {
		return
	}
	defer fd.Close()
	w.compare(p, fd, o.file)
}

// compare compares the readable content of f with the acknowledged writes.
func (w *worker) compare(what string, fd *os.File, f *file) {
	b := make([]byte, blockSize)
	for i, want := range f.blocks {
		n := 0
		if !w.try(fmt.Sprintf("%s: read of %s", w.root, what), func() (err error) {
			n, err = fd.ReadAt(b, int64(i)*blockSize)
			if errors.Is(err, io.EOF) {
				err = nil // a file without its last blocks is shorter
			}
			return err
		}) {
			return
		}
		if err := want.compare(f.id, i, b[:n]); err != nil {
			w.j.found(&w.j.verdict.wrong, "%s: %s: %v", w.root, what, err)
			return
		}
	}
}

// compare returns nil if got is a possible content of block i of file id.
func (b block) compare(id, i int, got []byte) error {
	have := content(id, i, b.have)
	if b.maybe == 0 {
		if !bytes.Equal(got, have) {
			return fmt.Errorf("block %d has %d bytes, %x…, want version %x", i, len(got), got[:min(16, len(got))], b.have)
		}
		return nil
	}
	maybe := content(id, i, b.maybe)
	for k, c := range got {
		if c != have[k] && c != maybe[k] {
			return fmt.Errorf("block %d has byte %x at %d, want one of versions %x and %x", i, c, k, b.have, b.maybe)
		}
	}
	return nil
}
