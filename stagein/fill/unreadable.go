package fill

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Unreadable is a file that could not be read from the source at the last try. It is encoded as JSON.
type Unreadable struct {
	Ino    metadata.Ino `json:"ino"`
	Path   source.Name  `json:"path,omitempty"` // in the dataset
	Source source.Name  `json:"source"`         // the file, or the archive that contains it
	Off    int64        `json:"off,omitempty"`  // in the archive; for a compressed tar, in the unpacked tar
	Error  string       `json:"error"`          // the fault and its remedy
}

// String returns the message for a user.
func (u *Unreadable) String() string {
	name := fmt.Sprintf("%q", u.Path)
	if u.Path == "" {
		name = "inode " + u.Ino.String()
	}
	return name + " cannot be read from " + u.explanation()
}

// explanation names the file's place in the source and its fault.
func (u *Unreadable) explanation() string {
	at := ""
	if u.Off > 0 {
		at = fmt.Sprintf(" at offset %d", u.Off)
	}
	text, _ := strings.CutPrefix(u.Error, string(u.Source)+": ")
	return fmt.Sprintf("%s%s: %s", u.Source, at, text)
}

// mostUnreadable bounds the unreadable files that a node names.
const mostUnreadable = 16

// unreadables tracks the unreadable files of a node.
type unreadables struct {
	files   stagein.Files
	sources []archive.Origin
	log     *logrus.Entry

	mu    sync.Mutex
	named map[metadata.Ino]Unreadable // guarded by mu
	more  map[metadata.Ino]struct{}   // guarded by mu; files beyond mostUnreadable
}

func newUnreadables(cfg *Config) *unreadables {
	return &unreadables{files: cfg.Files, sources: cfg.Origins.Sources, log: cfg.Log, named: make(map[metadata.Ino]Unreadable), more: make(map[metadata.Ino]struct{})}
}

// forget records that a file could be read.
func (u *unreadables) forget(ino metadata.Ino) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.named, ino)
	delete(u.more, ino)
}

// add records x. It reports whether x is named, and whether it is new.
func (u *unreadables) add(x Unreadable) (named, isNew bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, was := u.named[x.Ino]
	if _, other := u.more[x.Ino]; other || !was && len(u.named) >= mostUnreadable {
		u.more[x.Ino] = struct{}{}
		return false, !other
	}
	u.named[x.Ino] = x
	return true, !was
}

// knows returns the entry of a file. known means that no lookup is needed: the file is recorded, or would not be named.
func (u *unreadables) knows(ino metadata.Ino) (x Unreadable, known bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x, known = u.named[ino]
	return x, known || len(u.named) >= mostUnreadable
}

// Unreadable returns the files that this node could not read from the source at the last try: the first ones by name,
// and the number of the others.
func (f *Fill) Unreadable() (named []Unreadable, more int64) {
	u := f.bad
	u.mu.Lock()
	defer u.mu.Unlock()
	named = slices.SortedFunc(maps.Values(u.named), func(a, b Unreadable) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Ino, b.Ino))
	})
	return named, int64(len(u.more))
}

// paths is implemented by Files that know the paths.
type paths interface {
	Each(fn func(path string, a metadata.Attr) bool) error
}

// report records that a file cannot be read from the source, and logs it once.
func (u *unreadables) report(a *metadata.Attr, err error) {
	x := u.describe(a, err)
	named, isNew := u.add(x)
	log := u.log.WithFields(logrus.Fields{"inode": a.Ino, "source": string(x.Source), "offset": x.Off})
	switch {
	case named && isNew:
		log.WithField("file", string(x.Path)).Error(x.String())
	case isNew:
		log.Debug("one more file is unreadable in the source")
	}
}

// describe builds the entry of a file.
func (u *unreadables) describe(a *metadata.Attr, err error) Unreadable {
	x, known := u.knows(a.Ino)
	if !known {
		x.Path = u.pathOf(a.Ino)
	}
	x.Ino, x.Error = a.Ino, err.Error()+": "+remedy(err)
	if from, _, e := u.files.Origin(a.Ino); e == nil {
		x.Source, x.Off = u.where(from)
	}
	return x
}

// pathOf returns the path of a file, or "" if it is not known.
func (u *unreadables) pathOf(ino metadata.Ino) (name source.Name) {
	if t, ok := u.files.(paths); ok {
		_ = t.Each(func(path string, a metadata.Attr) bool { // without a path, the message names the inode
			if a.Ino == ino {
				name = source.Name(path)
			}
			return a.Ino != ino
		})
	}
	return name
}

// where returns the source file that an origin lies in, and the offset in that file.
func (u *unreadables) where(from manifest.Origin) (source.Name, int64) {
	if int(from.Source) >= len(u.sources) {
		return "", 0
	}
	o := &u.sources[from.Source]
	if from.Path != "" {
		return source.Name(strings.TrimSuffix(string(o.Path), "/") + "/" + from.Path), 0
	}
	return o.Path, from.Off
}

// remedy returns what a user can do about the error.
func remedy(err error) string {
	switch {
	case stagein.IsFull(err):
		return "this node has no room for it, and it cannot be read from the middle of such an archive: remove files of scratch and read it again, or stage it in again"
	case errors.Is(err, syscall.ESTALE):
		return "restore the source as it was, or stage it in again"
	case isMismatch(err):
		return "the source is damaged or was changed: compare it with the original, then read the file again or stage it in again"
	}
	return "check that this node can read the source: each read tries again"
}
