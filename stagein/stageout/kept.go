package stageout

import (
	"errors"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// Memory is what runs with the same target have copied to it or found there. It holds
// some 100 bytes for each name.
type Memory struct {
	mu   sync.Mutex
	have map[string]stamp // guarded by mu; by relative path
}

// stamp tells one state of a thing from another.
type stamp struct {
	ino   metadata.Ino
	mode  uint32
	size  int64
	mtime metadata.Time
}

func stampOf(a metadata.Attr) stamp { return stamp{a.Ino, a.Mode, a.Size, a.Mtime} }

// has reports whether a copy of the thing as it is now was made or found in the target. A nil memory
// remembers nothing.
func (m *Memory) has(rel string, s stamp) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.have[rel]
	return ok && old == s
}

func (m *Memory) add(rel string, s stamp) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.have == nil {
		m.have = make(map[string]stamp)
	}
	m.have[rel] = s
}

// kept reports whether the target has the file already, as it is now: by
// memory that is trusted, or because its size, mode and time of modification are those that a
// copy gets. So a run that was interrupted is taken up where it ended. A time in whole seconds, which is
// all that some parallel filesystems keep, counts if memory has the exact one.
func (o *out) kept(rel string, a metadata.Attr) bool {
	if o.trusted(rel, stampOf(a)) {
		return true
	}
	info, err := o.root.Lstat(rel)
	if err != nil || info.Mode() != os.FileMode(a.Mode&0o777) || info.Size() != a.Size {
		return false
	}
	mtime := a.Mtime.Time()
	if t := info.ModTime(); !t.Equal(mtime) && !(t.Unix() == mtime.Unix() && t.Nanosecond() == 0 && o.cfg.Memory.has(rel, stampOf(a))) {
		return false
	}
	o.cfg.Memory.add(rel, stampOf(a))
	return true
}

// trusted reports whether the target need not be asked for the thing.
func (o *out) trusted(rel string, s stamp) bool { return o.cfg.Trust && o.cfg.Memory.has(rel, s) }

// unsettled reports whether the file was changed so recently that its writer may not be done.
func (o *out) unsettled(a metadata.Attr) bool {
	return o.cfg.Settle > 0 && o.cfg.Now().Sub(a.Mtime.Time()) < o.cfg.Settle
}

// keptLink is kept for a symbolic link.
func (o *out) keptLink(rel, target string) bool {
	have, err := o.root.Readlink(rel)
	return err == nil && have == target
}

// keptDir reports whether the directory is known to be in the target.
func (o *out) keptDir(rel string, ino metadata.Ino) bool {
	return o.trusted(rel+"/", stamp{ino: ino})
}

// removeAttempts removes what earlier attempts of this writer to copy rel left.
func (o *out) removeAttempts(rel string) error {
	prefix, suffix := path.Base(temporaryStem(rel))+"-", temporarySuffix(o.cfg.Writer)
	_, err := o.removeLeft(path.Dir(rel), func(name string) bool {
		return strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix)
	})
	return err
}

// removeLeft removes files that were left in a directory under temporary names.
func (o *out) removeLeft(rel string, left func(name string) bool) (any bool, err error) {
	f, err := o.root.Open(rel)
	if err != nil {
		return false, err
	}
	defer f.Close() // read only
	names, err := f.Readdirnames(-1)
	for _, name := range names {
		if err == nil && strings.HasPrefix(name, temporaryPrefix) && left(name) {
			any, err = true, o.removeStale(path.Join(rel, name))
		}
	}
	return any, err
}

// removeStale removes what an earlier run left under a temporary name.
func (o *out) removeStale(tmp string) error {
	if err := o.root.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
