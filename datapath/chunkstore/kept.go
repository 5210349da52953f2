package chunkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// Objects can be kept for a later store, which adopts those whose bytes it needs:
//
//	<store directory>/keep          what Keep leaves: a directory of objects
//	<store directory>/keep/index    in the first store directory only
//	<store directory>/kept.<name>   what a later store finds: a keep of an earlier one
const (
	// KeepDir is the directory that Keep leaves in each store directory.
	KeepDir = "keep"
	// KeptPrefix is the prefix of the names under which a later store finds a KeepDir.
	KeptPrefix = "kept."

	keptIndex = "index"
	keptMagic = "bivouac kept 1\n\x00"
	keptEntry = 16 + 8 + 8 + 16
	// maxKeptIndex bounds the bytes that a store reads of an index: some 20 million objects.
	maxKeptIndex = 1 << 30
)

// KeptObject is an object kept for a later store.
type KeptObject struct {
	Key  [16]byte // identifies the bytes across jobs
	Ino  metadata.Ino
	Size int64
	Sum  [16]byte // xxh3-128 of its bytes
}

// Keep turns the objects of a closed store into ones that a later store can adopt: it keeps those in list and removes
// all others. If it succeeds, each store directory has a KeepDir.
func (s *Store) Keep(list []KeptObject) error {
	stay := make(map[metadata.Ino]bool, len(list))
	index := []byte(keptMagic)
	for _, k := range list {
		stay[k.Ino] = true
		index = append(index, k.Key[:]...)
		index = binary.BigEndian.AppendUint64(index, uint64(k.Ino))
		index = binary.BigEndian.AppendUint64(index, uint64(k.Size))
		index = append(index, k.Sum[:]...)
	}
	index = binary.BigEndian.AppendUint64(index, xxh3.Hash(index))
	for _, p := range s.places {
		if err := os.RemoveAll(filepath.Join(p.dir, WholeDir)); err != nil {
			return fmt.Errorf("keep: %w", err)
		}
	}
	err := s.eachDir(func(p *place, dir string) error {
		var errs []error
		_, err := s.list(p, dir, func(ino metadata.Ino, _ Stat) {
			if !stay[ino] {
				errs = append(errs, s.cfg.FS.Remove(p.path(ino)))
			}
		})
		return errors.Join(append(errs, err)...)
	})
	if err != nil {
		return fmt.Errorf("keep: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.places[0].dir, objectsDir, keptIndex), index, 0o600); err != nil {
		return fmt.Errorf("keep: %w", err)
	}
	for _, p := range s.places {
		if err := s.cfg.FS.Rename(filepath.Join(p.dir, objectsDir), filepath.Join(p.dir, KeepDir)); err != nil {
			return fmt.Errorf("keep: %w", err)
		}
	}
	return nil
}

// kept holds the objects of earlier stores that this one may still adopt. Their space counts as free.
type kept struct {
	mu      sync.Mutex
	bytes   int64                    // guarded by mu: of disk space
	objects map[[16]byte]*keptObject // guarded by mu
}

type keptObject struct {
	KeptObject
	place *place
	path  string
	alloc int64
}

// openKept finds the objects that earlier stores have kept. Unreadable ones are skipped.
func (s *Store) openKept() {
	s.kept.objects = map[[16]byte]*keptObject{}
	sets, _ := filepath.Glob(filepath.Join(s.places[0].dir, KeptPrefix+"*")) // the pattern is good
	for _, set := range sets {
		entries, err := readKeptIndex(filepath.Join(set, keptIndex))
		if err != nil {
			s.cfg.Log.WithError(err).Warn("files that an earlier job left cannot be read: they are staged from the source")
			continue
		}
		for _, p := range s.places {
			s.kept.find(s, p, filepath.Base(set), entries)
		}
	}
	if n := len(s.kept.objects); n > 0 {
		s.cfg.Log.WithFields(logrus.Fields{"files": n, "bytes": s.kept.bytes}).Info("an earlier job left files on this node: those that match the source are adopted, not staged again")
	}
}

// find adds the objects of a set that are in p.
func (k *kept) find(s *Store, p *place, set string, entries map[metadata.Ino]KeptObject) {
	for i := range Parts {
		dir := filepath.Join(p.dir, set, fmt.Sprintf("%02x", i))
		_ = s.cfg.FS.ReadDir(dir, func(name string, st Stat) { // unreadable objects are not adopted
			n, err := strconv.ParseUint(name, 16, 64)
			e, ok := entries[metadata.Ino(n)]
			if err == nil && ok && st.Size == e.Size && e.Size > 0 && k.objects[e.Key] == nil {
				k.objects[e.Key] = &keptObject{e, p, filepath.Join(dir, name), st.Alloc}
				k.bytes += st.Alloc
			}
		})
	}
}

func readKeptIndex(path string) (map[metadata.Ino]KeptObject, error) {
	fd, err := openFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // read only
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > maxKeptIndex {
		return nil, errors.Join(fmt.Errorf("%s: no index of kept objects: %w", path, syscall.EPROTO), err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	body := len(b) - 8
	if body < len(keptMagic) || (body-len(keptMagic))%keptEntry != 0 || string(b[:len(keptMagic)]) != keptMagic ||
		binary.BigEndian.Uint64(b[body:]) != xxh3.Hash(b[:body]) {
		return nil, fmt.Errorf("%s: no index of kept objects: %w", path, syscall.EPROTO)
	}
	all := make(map[metadata.Ino]KeptObject, (body-len(keptMagic))/keptEntry)
	for e := range slices.Chunk(b[len(keptMagic):body], keptEntry) {
		k := KeptObject{
			Key: [16]byte(e), Ino: metadata.Ino(binary.BigEndian.Uint64(e[16:])),
			Size: int64(binary.BigEndian.Uint64(e[24:])), Sum: [16]byte(e[32:]),
		}
		all[k.Ino] = k
	}
	return all, nil
}

// HasKept reports whether there are objects that AdoptKept may find.
func (s *Store) HasKept() bool {
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	return len(s.kept.objects) > 0
}

func (s *Store) keptBytes() int64 {
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	return s.kept.bytes
}

// AdoptKept makes the kept object with this key the object of ino, after comparing its bytes with their checksum. It
// returns false if no kept object has these bytes.
func (s *Store) AdoptKept(ctx context.Context, key [16]byte, ino metadata.Ino) (sum [16]byte, ok bool) {
	s.kept.mu.Lock()
	o := s.kept.objects[key]
	delete(s.kept.objects, key)
	s.kept.mu.Unlock()
	if o == nil {
		return sum, false
	}
	err := s.compareKept(ctx, o)
	if err == nil {
		err = s.adopt(o, ino)
	}
	if err != nil {
		s.cfg.Log.WithError(err).Warn("a file that an earlier job left is damaged: it is staged from the source")
		_ = s.cfg.FS.Remove(o.path) // otherwise it is removed with the store
	}
	s.kept.mu.Lock()
	s.kept.bytes -= o.alloc
	s.kept.mu.Unlock()
	return o.Sum, err == nil
}

// compareKept reads a kept object.
func (s *Store) compareKept(ctx context.Context, o *keptObject) error {
	f, err := s.cfg.FS.Open(o.path, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	sum, p := xxh3.New128(), make([]byte, min(o.Size, 1<<20))
	for off := int64(0); off < o.Size && ctx.Err() == nil; off += int64(len(p)) {
		n, err := f.ReadAt(p, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, _ = sum.Write(p[:n]) // cannot fail
	}
	if ctx.Err() != nil || sum.Sum128().Bytes() != o.Sum {
		return errors.Join(fmt.Errorf("%s differs from its checksum: %w", o.path, syscall.EIO), ctx.Err())
	}
	return nil
}

// adopt renames a kept object.
func (s *Store) adopt(o *keptObject, ino metadata.Ino) error {
	if f, _, err := s.find(ino); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			_ = f.Close() // nothing was written
			err = syscall.EEXIST
		}
		return err
	}
	if err := s.usage.reserve(o.alloc); err != nil {
		return err
	}
	to := o.place.path(ino)
	err := s.cfg.FS.Rename(o.path, to)
	if errors.Is(err, fs.ErrNotExist) { // the first object of its directory
		if err = s.cfg.FS.Mkdir(filepath.Dir(to)); err == nil {
			err = s.cfg.FS.Rename(o.path, to)
		}
	}
	if err != nil {
		s.usage.settle(o.alloc, 0)
		return err
	}
	s.settle(o.place, o.alloc, o.alloc)
	s.count(o.place, 1)
	return nil
}

// giveBackKept removes kept objects of n bytes or more, and reports whether it removed any.
func (s *Store) giveBackKept(n int64) bool {
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	freed := int64(0)
	for key, o := range s.kept.objects {
		if freed >= n && freed > 0 {
			break
		}
		delete(s.kept.objects, key)
		if err := s.cfg.FS.Remove(o.path); err != nil {
			s.cfg.Log.WithError(err).Warn("kept file not removed: it takes space until the job ends")
			continue
		}
		freed += max(o.alloc, 1)
		s.kept.bytes -= o.alloc
	}
	return freed > 0
}
