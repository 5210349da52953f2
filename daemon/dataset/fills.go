package dataset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Limits on reads from other nodes that wait for a fetch. The reader retries, so no handler is held for long.
const (
	maxWaits = 128
	waitTime = 10 * time.Second
)

// FillsConfig configures Fills.
type FillsConfig struct {
	Ctx    context.Context // ends when the daemon stops
	Node   node.Node
	Store  *chunkstore.Store
	Fence  *Fence
	Files  *Files
	Stores *Stores
	Source source.FS
	Window int64 // bytes of memory per dataset for files that are read through; 0 means the default
	Sums   bool  // keep the checksums that verified reads need
}

// Fills holds the fills of the datasets whose missing files this node fetches or has fetched.
type Fills struct {
	cfg      FillsConfig
	replicas *replicas.Replicas
	passed   atomic.Int64  // bytes that readers here got straight from the source
	waits    chan struct{} // one token for each waiting read from another node
	viewed   atomic.Pointer[func(metadata.DatasetID) bool]

	linking sync.Mutex // held while a kernel-view link to a stored file is created or removed

	mu    sync.Mutex
	have  map[metadata.DatasetID]*fill.Fill // guarded by mu
	begun chan struct{}                     // guarded by mu; closed when another fill begins
}

// NewFills returns Fills without a dataset.
func NewFills(cfg FillsConfig) *Fills {
	return &Fills{
		cfg: cfg, waits: make(chan struct{}, maxWaits),
		have: make(map[metadata.DatasetID]*fill.Fill), begun: make(chan struct{}),
	}
}

// PassedThrough returns how many bytes readers here got straight from the source.
func (f *Fills) PassedThrough() int64 { return f.passed.Load() }

// get returns the fill of a dataset, nil if there is none, and a channel that is closed when another fill begins.
func (f *Fills) get(id metadata.DatasetID) (*fill.Fill, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.have[id], f.begun
}

func (f *Fills) add(id metadata.DatasetID, x *fill.Fill) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.have[id] = x
	close(f.begun)
	f.begun = make(chan struct{})
}

// take removes the fill of a dataset and returns it; nil if there is none.
func (f *Fills) take(id metadata.DatasetID) *fill.Fill {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.have[id]
	delete(f.have, id)
	return x
}

func (f *Fills) all() map[metadata.DatasetID]*fill.Fill {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.have)
}

// Begin starts to fetch the files of a dataset whose manifest is here. It does nothing if the fill has started already
// or nothing is missing.
func (f *Fills) Begin(ds cluster.Dataset, table *manifest.Table) error {
	if x, _ := f.get(ds.ID); x != nil || !ds.Fill || f.cfg.Fence.Ended(ds.ID) {
		return nil
	}
	o, list, err := f.readOrigins(ds.ID)
	if err != nil {
		return fmt.Errorf("origins of %s: %w", ds.Name, err)
	}
	if err := f.cfg.Fence.Exclude(ds.ID, o.Void); err != nil {
		return fmt.Errorf("fill of %s: %w", ds.Name, err)
	}
	n := f.cfg.Node
	cfg := fill.Config{
		Self: n.Self(), Files: table, Origins: o, List: list, FS: f.cfg.Source, Put: f.cfg.Fence.Write, Peers: peers{f, ds.ID},
		Watch: func() (cluster.Map, <-chan struct{}) { v, changed := n.Watch(); return v.Map, changed },
		Room:  f.cfg.Fence.room, Drop: f.cfg.Store.Remove,
		Copy: f.replicas.Adopt, MayStore: f.replicas.MayStore, Stored: f.link, Dropped: f.unlink,
		Journal: f.cfg.Files.Path(ds.ID, journal), Digest: ds.Digest, Boot: BootID(), CacheSize: f.cfg.Window, Sums: f.cfg.Sums,
		Log: n.Log().WithField("dataset", ds.Name),
	}
	if f.cfg.Store.HasKept() {
		cfg.Kept = f.cfg.Fence.AdoptKept
	}
	x, err := fill.New(cfg)
	if err != nil {
		return fmt.Errorf("fill of %s: %w", ds.Name, err)
	}
	f.add(ds.ID, x)
	n.Spawn(func(ctx context.Context) { x.Run(ctx, n.Nudge) })
	return nil
}

// SetViewed sets viewed, which reports whether a dataset has a kernel view on this node, or soon will.
func (f *Fills) SetViewed(viewed func(metadata.DatasetID) bool) { f.viewed.Store(&viewed) }

// link links a file that a fill has just stored whole, so that a kernel view finds it when the file is first opened.
// With verify=reads the file is first compared with its checksum.
func (f *Fills) link(ino metadata.Ino) {
	viewed := f.viewed.Load()
	if viewed == nil || f.cfg.Sums || !(*viewed)(ino.Dataset()) {
		return
	}
	f.linking.Lock()
	defer f.linking.Unlock()
	if err := f.cfg.Store.LinkWhole(f.cfg.Ctx, ino, nil); err != nil {
		f.cfg.Node.Log().WithError(err).Debug("a local file of a dataset is read through FUSE")
	}
	if x, _ := f.get(ino.Dataset()); x != nil && !x.Stored(ino) { // the fill dropped it meanwhile
		f.unlinkLocked(ino)
	}
}

// unlink removes the link to a file that a fill has dropped.
func (f *Fills) unlink(ino metadata.Ino) {
	f.linking.Lock()
	defer f.linking.Unlock()
	f.unlinkLocked(ino)
}

func (f *Fills) unlinkLocked(ino metadata.Ino) {
	if err := f.cfg.Store.Unlink(ino); err != nil {
		f.cfg.Node.Log().WithError(err).WithField("inode", ino.String()).Warn("a damaged file keeps its link: the kernel view reads it until the dataset is removed")
	}
}

// readOrigins reads the sources of a dataset's files, and the user's list.
func (f *Fills) readOrigins(id metadata.DatasetID) (o stagein.Origins, list []string, err error) {
	b, err := os.ReadFile(f.cfg.Files.Path(id, Origins))
	if err == nil {
		err = node.DecodeJSON(b, &o)
	}
	if err == nil && o.Order.List != "" {
		b, err = os.ReadFile(f.cfg.Files.Path(id, Order))
		list = strings.Split(string(b), "\x00")
	}
	return o, list, err
}

// End closes the fill of a dataset that failed.
func (f *Fills) End(id metadata.DatasetID) {
	if x := f.take(id); x != nil {
		if err := x.Close(); err != nil {
			f.cfg.Node.Log().WithError(err).Debug("fill of a failed dataset")
		}
	}
}

// Keepable returns the files that a later job can adopt.
func (f *Fills) Keepable() (list []chunkstore.KeptObject, err error) {
	for _, x := range f.all() {
		err = errors.Join(err, x.Keepable(func(key [16]byte, a metadata.Attr, sum [16]byte) {
			list = append(list, chunkstore.KeptObject{Key: key, Ino: a.Ino, Size: a.Size, Sum: sum})
		}))
	}
	return list, err
}

// Close closes all fills.
func (f *Fills) Close() error {
	var errs []error
	for id := range f.all() {
		if x := f.take(id); x != nil {
			errs = append(errs, x.Close())
		}
	}
	return errors.Join(errs...)
}

// of waits for and returns the fill of ino's dataset. It returns nil if the dataset was staged completely, or if ino
// belongs to no dataset.
func (f *Fills) of(ctx context.Context, ino metadata.Ino) (*fill.Fill, error) {
	if !ino.Sealed() {
		return nil, nil
	}
	for {
		x, begun := f.get(ino.Dataset())
		if x != nil {
			return x, nil
		}
		v, changed := f.cfg.Node.Watch()
		ds, known := v.Dataset(ino.Dataset())
		switch {
		case known && ds.Phase == cluster.Removed:
			return nil, fmt.Errorf("inode %v: dataset %s was removed: %w", ino, ds.Name, syscall.ESTALE)
		case known && ds.Phase == cluster.Failed:
			return nil, fmt.Errorf("inode %v: dataset %s has failed: %s: %w", ino, ds.Name, ds.Error, syscall.EIO)
		case known && complete(ds):
			return nil, nil
		}
		select { // this node has not seen yet what the reader knows
		case <-begun:
		case <-changed:
		case <-f.cfg.Ctx.Done():
			return nil, fmt.Errorf("inode %v: the daemon stops: %w", ino, syscall.ESHUTDOWN)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// complete reports whether all files of a dataset without a fill were stored.
func complete(ds cluster.Dataset) bool {
	return !ds.Fill && ds.Phase != cluster.Staging && !ds.Phase.Ended()
}

// own returns the location of this node's own bytes of a file.
func own(ino metadata.Ino, off int64) replicas.Location {
	return replicas.Location{Object: ino, Off: off}
}

// present reports whether [off, off+n) of this node's object of ino can be read without a fetch, and returns their
// location.
func (f *Fills) present(ino metadata.Ino, off, n int64) (at replicas.Location, ok bool) {
	at = own(ino, off)
	if !ino.Sealed() {
		return at, true
	}
	if r, ok := f.replicas.Find(ino, off, n); ok {
		return r, true
	}
	if x, _ := f.get(ino.Dataset()); x != nil {
		return at, x.Has(ino, off, n)
	}
	ds, known := f.cfg.Node.View().Dataset(ino.Dataset())
	return at, known && complete(ds)
}

// need waits until [off, off+n) of this node's object of ino can be read, for another node's read, and returns their
// location. It returns EAGAIN if that takes long.
func (f *Fills) need(ctx context.Context, ino metadata.Ino, off, n int64) (replicas.Location, error) {
	if at, ok := f.present(ino, off, n); ok {
		return at, nil
	}
	return own(ino, off), f.waited(ctx, ino, func(ctx context.Context) error {
		x, err := f.of(ctx, ino)
		if x == nil {
			return err
		}
		return f.fetch(ctx, x, ino, off, n)
	})
}

// fetch is x.Need for bytes that belong to this node. It never fetches files of other nodes: ErrNotHere.
func (f *Fills) fetch(ctx context.Context, x *fill.Fill, ino metadata.Ino, off, n int64) error {
	if !x.Has(ino, off, n) && f.replicas.Foreign(ino, off) {
		return fmt.Errorf("inode %v: %w", ino, replicas.ErrNotHere)
	}
	return x.Need(ctx, ino, off, n)
}

// compare reads a piece of this node from the drive and compares it with its checksum.
func (f *Fills) compare(ctx context.Context, p fill.PieceSum) error {
	return comparePiece(ctx, f.cfg.Store, p)
}

// waited runs do, which waits for a file, on behalf of another node. It returns EAGAIN if do takes long, or if too many
// reads wait.
func (f *Fills) waited(ctx context.Context, ino metadata.Ino, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case f.waits <- struct{}{}:
		defer func() { <-f.waits }()
	default:
		return fmt.Errorf("inode %v: %d reads wait: %w", ino, maxWaits, syscall.EAGAIN)
	}
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	err := do(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("inode %v: is being fetched: %w", ino, syscall.EAGAIN)
	}
	return err
}

// readOverflow reads overflow from this node's object of ino, after Need has returned ErrOverflow.
func (f *Fills) readOverflow(ctx context.Context, x *fill.Fill, ino metadata.Ino, p []byte, off int64) (int, error) {
	n, err := x.ReadOverflow(ctx, ino, p, off, func(p []byte, off int64) (int, error) { return f.cfg.Store.ReadAt(ctx, ino, p, off) })
	f.passed.Add(int64(n))
	return n, err
}
