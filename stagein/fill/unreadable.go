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
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Unreadable is a file that has stayed in the source, and was not had from there as it was
// when it was last asked for. It is JSON.
type Unreadable struct {
	Ino    metadata.Ino `json:"ino"`
	Path   source.Name  `json:"path,omitempty"` // in the dataset
	Source source.Name  `json:"source"`         // the archive that it is in, or the file
	Off    int64        `json:"off,omitempty"`  // in the archive; in what it unpacks to if it is compressed as a whole
	Error  string       `json:"error"`          // what is the matter, and what to do
}

// String says all of it.
func (u *Unreadable) String() string {
	name := fmt.Sprintf("%q", u.Path)
	if u.Path == "" {
		name = "inode " + u.Ino.String()
	}
	return name + " cannot be read from " + u.explanation()
}

// explanation says where the file is and what is wrong with it.
func (u *Unreadable) explanation() string {
	at := ""
	if u.Off > 0 {
		at = fmt.Sprintf(" at offset %d", u.Off)
	}
	text, _ := strings.CutPrefix(u.Error, string(u.Source)+": ")
	return fmt.Sprintf("%s%s: %s", u.Source, at, text)
}

// mostUnreadable is how many such files a node names.
const mostUnreadable = 16

// unreadables is those of a node.
type unreadables struct {
	mu    sync.Mutex
	named map[metadata.Ino]Unreadable // guarded by mu
	more  map[metadata.Ino]struct{}   // guarded by mu; that are not named
}

func newUnreadables() *unreadables {
	return &unreadables{named: make(map[metadata.Ino]Unreadable), more: make(map[metadata.Ino]struct{})}
}

// forget records that a file could be read.
func (u *unreadables) forget(ino metadata.Ino) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.named, ino)
	delete(u.more, ino)
}

// add reports whether x is to be told of, and is one more.
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

// knows reports whether a file is among them, or would not be named.
func (u *unreadables) knows(ino metadata.Ino) (x Unreadable, known bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x, known = u.named[ino]
	return x, known || len(u.named) >= mostUnreadable
}

// Unreadable is the files that have stayed in the source and could not be had from there
// when they were last asked for here: the first of them, and how many more there are.
func (f *Fill) Unreadable() (named []Unreadable, more int64) {
	u := f.bad
	u.mu.Lock()
	defer u.mu.Unlock()
	named = slices.SortedFunc(maps.Values(u.named), func(a, b Unreadable) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Ino, b.Ino))
	})
	return named, int64(len(u.more))
}

// paths is Files that can tell what files are called.
type paths interface {
	Each(fn func(path string, a metadata.Attr) bool) error
}

// reportUnreadable records that a file cannot be read from the source, and logs it once.
func (f *Fill) reportUnreadable(a *metadata.Attr, err error) {
	if f.ctx.Err() != nil {
		return // the daemon stops
	}
	x := f.unreadable(a, err)
	named, isNew := f.bad.add(x)
	log := f.cfg.Log.WithFields(logrus.Fields{"inode": a.Ino, "source": string(x.Source), "offset": x.Off})
	switch {
	case named && isNew:
		log.WithField("file", string(x.Path)).Error(x.String())
	case isNew:
		log.Debug("another file cannot be read from the source")
	}
}

// unreadable is what is to be said of a file.
func (f *Fill) unreadable(a *metadata.Attr, err error) Unreadable {
	x, known := f.bad.knows(a.Ino)
	if !known {
		x.Path = f.pathOf(a.Ino)
	}
	x.Ino, x.Error = a.Ino, err.Error()+": "+remedy(err)
	if from, _, e := f.cfg.Files.Origin(a.Ino); e == nil {
		x.Source, x.Off = f.where(from)
	}
	return x
}

// pathOf is what a file is called; "" if that cannot be said.
func (f *Fill) pathOf(ino metadata.Ino) (name source.Name) {
	if t, ok := f.cfg.Files.(paths); ok {
		_ = t.Each(func(path string, a metadata.Attr) bool { // it has another trouble then, and is named by its number
			if a.Ino == ino {
				name = source.Name(path)
			}
			return a.Ino != ino
		})
	}
	return name
}

// where is the file of a source that has what from says, and where in it.
func (f *Fill) where(from manifest.Origin) (source.Name, int64) {
	if int(from.Source) >= len(f.cfg.Origins.Sources) {
		return "", 0
	}
	o := &f.cfg.Origins.Sources[from.Source]
	if from.Path != "" {
		return source.Name(strings.TrimSuffix(string(o.Path), "/") + "/" + from.Path), 0
	}
	return o.Path, from.Off
}

// remedy is what to do about a file that cannot be had.
func remedy(err error) string {
	switch {
	case stagein.IsFull(err):
		return "nor can it be read from the middle of such an archive: remove files of scratch and read it again, or stage it in again"
	case errors.Is(err, syscall.ESTALE):
		return "put it back as it was, or stage it in again"
	case isMismatch(err):
		return "the source is damaged, or has other bytes than when it was staged: compare it with what it is a copy of, then read the file again or stage it in again"
	}
	return "see why this node cannot read it: each read tries again"
}
