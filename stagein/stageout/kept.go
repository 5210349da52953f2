package stageout

import (
	"errors"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// Memory records what runs with the same target have copied to it or found there. It takes some 100 bytes per name.
type Memory struct {
	mu   sync.Mutex
	have map[string]stamp // guarded by mu; by relative path
}

// stamp distinguishes the states of an entry.
type stamp struct {
	ino   metadata.Ino
	mode  uint32
	size  int64
	mtime metadata.Time
}

func stampOf(a metadata.Attr) stamp { return stamp{a.Ino, a.Mode, a.Size, a.Mtime} }

// has reports whether a copy of the entry in its current state was made or found in the target. A nil memory is empty.
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

// kept reports whether the target already has the file in its current state: according to a trusted memory, or because
// size, mode and modification time are those of a copy. So an interrupted run continues where it ended. A time in whole
// seconds, all that some parallel filesystems keep, counts if memory has the exact time.
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

// trusted reports whether the entry need not be looked up in the target.
func (o *out) trusted(rel string, s stamp) bool { return o.cfg.Trust && o.cfg.Memory.has(rel, s) }

// unsettled reports whether the file was changed so recently that its writer may not have finished.
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

// removeAttempts removes the temporary files of this writer's earlier attempts to copy rel.
func (o *out) removeAttempts(rel string) error {
	prefix, suffix := path.Base(temporaryStem(rel))+"-", temporarySuffix(o.cfg.Writer)
	_, err := o.removeLeft(path.Dir(rel), func(name string) bool {
		return strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix)
	})
	return err
}

// removeLeft removes the temporary files in a directory for which left returns true.
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

// removeStale removes a temporary file of an earlier run, if it exists.
func (o *out) removeStale(tmp string) error {
	if err := o.root.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
