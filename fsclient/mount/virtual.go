package mount

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// The virtual inodes of the mount; all are below metadata.FirstIno.
const (
	inoRoot   metadata.Ino = 1 // fixed by the protocol
	inoData   metadata.Ino = 2
	inoHidden metadata.Ino = 3
	inoStatus metadata.Ino = 4
	inoStats  metadata.Ino = 5
	inoMap    metadata.Ino = 6
	inoSocket metadata.Ino = 7
)

const (
	nameData    = "data"
	nameScratch = "scratch"
	nameHidden  = ".bivouac"
)

var virtualFiles = []metadata.Entry{
	{Name: "control", Ino: inoSocket, Mode: syscall.S_IFREG},
	{Name: "map", Ino: inoMap, Mode: syscall.S_IFREG},
	{Name: "stats", Ino: inoStats, Mode: syscall.S_IFREG},
	{Name: "status", Ino: inoStatus, Mode: syscall.S_IFREG},
}

var rootEntries = []metadata.Entry{
	{Name: nameHidden, Ino: inoHidden, Mode: syscall.S_IFDIR},
	{Name: nameData, Ino: inoData, Mode: syscall.S_IFDIR},
	{Name: nameScratch, Ino: metadata.RootIno, Mode: syscall.S_IFDIR},
}

// virtual reports whether ino belongs to the mount itself.
func virtual(ino metadata.Ino) bool { return ino >= inoRoot && ino <= inoSocket }

// writable returns EROFS for an inode that cannot be changed.
func writable(dirs ...metadata.Ino) error {
	for _, d := range dirs {
		if virtual(d) || d.Sealed() {
			return syscall.EROFS
		}
	}
	return nil
}

func (s *fsys) virtualAttr(ino metadata.Ino) metadata.Attr {
	a := metadata.Attr{
		Ino: ino, Mode: syscall.S_IFREG | 0o444, Nlink: 1, UID: s.cfg.UID, GID: s.cfg.GID,
		Atime: s.born, Mtime: s.born, Ctime: s.born,
	}
	switch ino {
	case inoRoot:
		a.Mode, a.Nlink = syscall.S_IFDIR|0o700, 2+uint32(len(rootEntries))
	case inoData:
		ds := s.gate.visible(s.client.Datasets())
		a.Mode, a.Nlink = syscall.S_IFDIR|0o555, 2+uint32(len(ds))
		for _, d := range ds {
			a.Mtime = max(a.Mtime, d.Started, d.Sealed)
		}
		a.Ctime = a.Mtime
	case inoHidden:
		a.Mode, a.Nlink = syscall.S_IFDIR|0o555, 2
	}
	return a
}

// virtualEntries returns the entries of a virtual directory, sorted by name.
func (s *fsys) virtualEntries(dir metadata.Ino) ([]metadata.Entry, error) {
	switch dir {
	case inoRoot:
		return rootEntries, nil
	case inoHidden:
		return virtualFiles, nil
	case inoData:
		if !s.gate.settled.Load() {
			return nil, s.gate.missing()
		}
		var es []metadata.Entry
		for _, d := range s.gate.visible(s.client.Datasets()) {
			es = append(es, metadata.Entry{Name: d.Name, Ino: rootOf(d), Mode: syscall.S_IFDIR})
		}
		return es, nil
	}
	return nil, fmt.Errorf("inode %v: %w", dir, syscall.ENOTDIR)
}

// rootOf returns the root directory of a dataset.
func rootOf(d cluster.Dataset) metadata.Ino {
	return metadata.SealedIno(d.ID, metadata.DirPart, 0)
}

// virtualContent returns the current content of a virtual file.
func (s *fsys) virtualContent(ino metadata.Ino) ([]byte, error) {
	for _, e := range virtualFiles {
		if e.Ino == ino {
			return s.cfg.Virtual(e.Name)
		}
	}
	return nil, fmt.Errorf("inode %v: %w", ino, syscall.EISDIR)
}

// gate hides the names of datasets from programs until their covers or views are mounted, so that nothing is ever
// mounted over a directory that a program has entered.
//
//	hidden   only the mount helper can look the name up, which it needs to mount over the directory
//	held     the helper has looked it up, and the kernel has the name: lookups by others wait. Otherwise
//	         the kernel would drop the name, and the new mount with it
//	open     everybody can look it up, and finds the new mount
type gate struct {
	hidden  func(cluster.Dataset) bool // Config.Hidden
	helper  uint32                     // Config.HelperGID
	settled atomic.Bool                // all datasets of the job are known: see Config.Unsettled

	mu      sync.Mutex
	held    map[metadata.DatasetID]bool // guarded by mu
	changed chan struct{}               // guarded by mu; closed when a dataset is no longer hidden
}

func (g *gate) init(cfg *Config) {
	g.hidden, g.helper = cfg.Hidden, cfg.HelperGID
	g.settled.Store(!cfg.Unsettled)
	g.held, g.changed = make(map[metadata.DatasetID]bool), make(chan struct{})
}

// missing returns the error for a dataset that is not found: ENOENT, or EIO while it may still exist.
func (g *gate) missing() error {
	if g.settled.Load() {
		return syscall.ENOENT
	}
	return fmt.Errorf("the datasets of the job are not known yet: %w", syscall.EIO)
}

// Settle records that all datasets of the job are known: see Config.Unsettled.
func (m *Mount) Settle() { m.fs.gate.settled.Store(true) }

// visible returns the datasets that are not hidden.
func (g *gate) visible(all []cluster.Dataset) (seen []cluster.Dataset) {
	for _, d := range all {
		if !g.hidden(d) {
			seen = append(seen, d)
		}
	}
	return seen
}

// pass waits until a program may look a dataset up. It returns the error of missing at once while the helper has not
// looked it up either. fresh is how long the kernel may keep the name.
func (g *gate) pass(ctx context.Context, h *fuse.InHeader, d cluster.Dataset) (fresh time.Duration, err error) {
	for {
		g.mu.Lock()
		hidden, changed := g.hidden(d), g.changed
		helped := hidden && h.Gid == g.helper
		if helped {
			g.held[d.ID] = true
		}
		held := g.held[d.ID]
		g.mu.Unlock()
		switch {
		case !hidden:
			return datasetFresh, nil
		case helped:
			return 0, nil
		case !held:
			return 0, g.missing()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, syscall.EINTR
		}
	}
}

// reveal is called when datasets are no longer hidden.
func (g *gate) reveal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
}

// Reveal must be called when Config.Hidden no longer hides a dataset.
func (m *Mount) Reveal() { m.fs.gate.reveal() }

// lookup finds a dataset by name.
func (g *gate) lookup(ctx context.Context, s *fsys, h *fuse.InHeader, name string, out *fuse.EntryOut) error {
	for _, d := range s.client.Datasets() {
		if d.Name != name {
			continue
		}
		fresh, err := g.pass(ctx, h, d)
		if err != nil {
			return err
		}
		a, left, err := s.attr(ctx, rootOf(d))
		if err != nil {
			return err
		}
		fillLeased(out, &a, left)
		out.SetEntryTimeout(fresh)
		return nil
	}
	return g.missing()
}
