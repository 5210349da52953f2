package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// What a node keeps of a dataset that is filled after it was published.
const (
	originsFile = "origins" // where its files come from
	orderFile   = "order"   // in which order, if the user has a list
	journalFile = "journal" // what is here
)

// The bounds of reads by other nodes that wait for a file to be fetched: the one
// who reads asks again, so that no handler is held for long.
const (
	maxWaits = 128
	waitTime = 10 * time.Second
)

// fills is the datasets that this node fills, or has filled.
type fills struct {
	mu    sync.Mutex // fillMu of the package comment
	have  map[metadata.DatasetID]*stagein.Fill
	begun chan struct{} // guarded by mu; closed when there is one more
	waits chan struct{} // reads of other nodes that wait; one for each
}

func (f *fills) init() {
	f.have = make(map[metadata.DatasetID]*stagein.Fill)
	f.begun = make(chan struct{})
	f.waits = make(chan struct{}, maxWaits)
}

// get is the fill of a dataset, and a channel that is closed when there is
// another.
func (f *fills) get(id metadata.DatasetID) (*stagein.Fill, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.have[id], f.begun
}

func (f *fills) add(id metadata.DatasetID, x *stagein.Fill) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.have[id] = x
	close(f.begun)
	f.begun = make(chan struct{})
}

// take removes the fill of a dataset; nil if there is none.
func (f *fills) take(id metadata.DatasetID) *stagein.Fill {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.have[id]
	delete(f.have, id)
	return x
}

// all is the fills by dataset.
func (f *fills) all() map[metadata.DatasetID]*stagein.Fill {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[metadata.DatasetID]*stagein.Fill, len(f.have))
	for id, x := range f.have {
		all[id] = x
	}
	return all
}

// beginFill begins to fill a dataset whose manifest is here, unless it is done.
func (d *Daemon) beginFill(ds cluster.Dataset, table *manifest.Table) error {
	if f, _ := d.fill.get(ds.ID); f != nil || !ds.Fill || d.stage.hasEnded(ds.ID) {
		return nil
	}
	dir := d.stageDir(ds.ID)
	var o stagein.Origins
	b, err := os.ReadFile(filepath.Join(dir, originsFile))
	if err == nil {
		err = node.DecodeJSON(b, &o)
	}
	var list []string
	if err == nil && o.Order.List != "" {
		b, err = os.ReadFile(filepath.Join(dir, orderFile))
		list = strings.Split(string(b), "\x00")
	}
	if err != nil {
		return fmt.Errorf("origins of %s: %w", ds.Name, err)
	}
	if err := d.dropVoid(ds.ID, o.Void); err != nil {
		return fmt.Errorf("fill of %s: %w", ds.Name, err)
	}
	f, err := stagein.NewFill(stagein.FillConfig{
		Self: d.job.Self, Files: table, Origins: o, List: list, FS: d.cfg.Source, Put: d.write, Others: others{d, ds.ID},
		Watch: func() (cluster.Map, <-chan struct{}) { v, changed := d.Watch(); return v.Map, changed },
		Room:  d.roomFor, Drop: d.data.Remove,
		Journal: filepath.Join(dir, journalFile), Digest: ds.Digest, Boot: bootID(), Window: d.cfg.Window, Sums: d.job.VerifyReads,
		Log: d.log.WithField("dataset", ds.Name),
	})
	if err != nil {
		return fmt.Errorf("fill of %s: %w", ds.Name, err)
	}
	d.fill.add(ds.ID, f)
	d.Spawn(func(ctx context.Context) { f.Run(ctx, d.Nudge) })
	return nil
}

// dropVoid removes what nodes have stored that were lost while they read parts, which
// others have read again.
func (d *Daemon) dropVoid(id metadata.DatasetID, void []stagein.Try) error {
	if len(void) == 0 {
		return nil
	}
	d.stage.avoid(id, void)
	_, err := d.data.RemoveAll(func(ino metadata.Ino) bool {
		return ino.Sealed() && ino.Dataset() == id && isVoid(void, ino)
	})
	return err
}

// bootID is what tells one boot of this machine from another; "" if it cannot
// be had.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // then every boot is the same
	return strings.TrimSpace(string(b))
}

// fetchOrigins brings what a fill needs beside the manifest.
func (d *Daemon) fetchOrigins(ctx context.Context, ds cluster.Dataset) error {
	if !ds.Fill {
		return nil
	}
	for _, name := range []string{originsFile, orderFile} {
		path := filepath.Join(d.stageDir(ds.ID), name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := d.fetchFromAny(ctx, ds, name, path); err != nil {
			return err
		}
	}
	return nil
}

// endFill ends the fill of a dataset that has failed.
func (d *Daemon) endFill(id metadata.DatasetID) {
	if f := d.fill.take(id); f != nil {
		if err := f.Close(); err != nil {
			d.log.WithError(err).Debug("fill of a failed dataset")
		}
	}
}

// closeFills is for the daemon's end.
func (d *Daemon) closeFills() error {
	var errs []error
	for id := range d.fill.all() {
		if f := d.fill.take(id); f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// need returns when [off, off+n) of this node's object of ino can be read: at
// once, unless it is of a dataset that is being filled.
func (d *Daemon) need(ctx context.Context, ino metadata.Ino, off, n int64) error {
	f, err := d.fillOf(ctx, ino)
	if f == nil {
		return err
	}
	return f.Need(ctx, ino, off, n)
}

// fillOf is the fill of the dataset that a file is of, which may have to begin first; nil if it is
// of none that has one.
func (d *Daemon) fillOf(ctx context.Context, ino metadata.Ino) (*stagein.Fill, error) {
	if !ino.Sealed() {
		return nil, nil
	}
	for {
		f, begun := d.fill.get(ino.Dataset())
		if f != nil {
			return f, nil
		}
		v, changed := d.Watch()
		ds, known := v.Dataset(ino.Dataset())
		switch {
		case known && ds.Phase == cluster.Failed:
			return nil, fmt.Errorf("inode %v: dataset %s has failed: %s: %w", ino, ds.Name, ds.Error, syscall.EIO)
		case known && staged(ds):
			return nil, nil
		}
		select { // this node does not know yet what the reader knows
		case <-begun:
		case <-changed:
		case <-d.ctx.Done():
			return nil, fmt.Errorf("inode %v: the daemon stops: %w", ino, syscall.ESHUTDOWN)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// has reports whether need has nothing to wait for.
func (d *Daemon) has(ino metadata.Ino, off, n int64) bool {
	if !ino.Sealed() {
		return true
	}
	if f, _ := d.fill.get(ino.Dataset()); f != nil {
		return f.Has(ino, off, n)
	}
	ds, known := d.View().Dataset(ino.Dataset())
	return known && staged(ds)
}

// staged reports whether all of a dataset, which is not filled, was put where it
// belongs.
func staged(ds cluster.Dataset) bool {
	return !ds.Fill && ds.Phase != cluster.Staging && ds.Phase != cluster.Failed
}

// needFor is need for another node: EAGAIN if it takes long.
func (d *Daemon) needFor(ctx context.Context, ino metadata.Ino, off, n int64) error {
	if d.has(ino, off, n) {
		return nil
	}
	return d.waited(ctx, ino, func(ctx context.Context) error { return d.need(ctx, ino, off, n) })
}

// ownData is this node's data for the client on it: what is not here yet is
// fetched before it is read.
type ownData struct {
	*chunkstore.Store
	d *Daemon
}

var (
	_ datapath.Store         = ownData{}
	_ datapath.Opener        = ownData{}
	_ datapath.Piper         = ownData{}
	_ datapath.PresentReader = ownData{}
)

// ReadAt implements datapath.Reader.
func (o ownData) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	f, err := o.d.fillOf(ctx, ino)
	if err != nil {
		return 0, err
	}
	if f != nil {
		if n, through, err := f.ReadThrough(ctx, ino, p, off); through || err != nil {
			o.d.passed.Add(int64(n))
			return n, err
		}
		switch err := f.Need(ctx, ino, off, int64(len(p))); {
		case errors.Is(err, stagein.ErrDisplaced):
			return o.d.readDisplaced(ctx, f, ino, p, off)
		case err != nil:
			return 0, err
		}
	}
	return o.Store.ReadAt(ctx, ino, p, off)
}

// ReadIfPresent implements datapath.PresentReader.
func (o ownData) ReadIfPresent(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if !o.d.has(ino, off, int64(len(p))) {
		return 0, fmt.Errorf("inode %v: is not here: %w", ino, syscall.EAGAIN)
	}
	return o.ReadAt(ctx, ino, p, off)
}

// ReadPipe implements datapath.Piper, for what is here of datasets: of other
// files what is in the pipe could change.
func (o ownData) ReadPipe(ctx context.Context, ino metadata.Ino, to *datapath.Pipe, p []byte, off int64) (int, error) {
	f, err := o.d.fillOf(ctx, ino)
	if err != nil {
		return 0, err
	}
	if !ino.Sealed() || f != nil && !f.Here(ino) {
		return o.ReadAt(ctx, ino, p, off)
	}
	if f != nil {
		switch err := f.Need(ctx, ino, off, int64(len(p))); {
		case errors.Is(err, stagein.ErrDisplaced):
			return o.d.readDisplaced(ctx, f, ino, p, off)
		case err != nil:
			return 0, err
		}
	}
	return o.Store.ReadPipe(ctx, ino, to, p, off)
}

// Open implements datapath.Opener. Of a file that is not here yet there is no
// object.
func (o ownData) Open(ino metadata.Ino) (*os.File, error) {
	if ino.Sealed() {
		f, _ := o.d.fill.get(ino.Dataset())
		if ds, _ := o.d.View().Dataset(ino.Dataset()); f == nil && ds.Fill || f != nil && !f.Here(ino) {
			return nil, fmt.Errorf("object %v: %w", ino, fs.ErrNotExist)
		}
	}
	return o.Store.Open(ino)
}

// filled is what this node reports of its fills.
func (d *Daemon) filled() map[metadata.DatasetID]fillReport {
	all := make(map[metadata.DatasetID]fillReport)
	for id, f := range d.fill.all() {
		e, whole := f.Whole()
		r := fillReport{Progress: f.Progress(), NoRoom: f.NoRoom(), Lacking: f.Lacking()}
		if whole {
			r.Whole = e
		}
		if err := f.Trouble(); err != nil {
			r.Trouble = node.Clip(node.ErrorText(err))
		}
		r.Unreadable, r.More = d.unreadable(f)
		all[id] = r
	}
	return all
}

// fillReport is how far a node is with a dataset.
type fillReport struct {
	Whole    metadata.Epoch   `json:"whole,omitempty"` // all that the map of this epoch gives the node is there
	Trouble  string           `json:"trouble,omitempty"`
	Progress stagein.Progress `json:"progress"`
	// Unreadable is files that have stayed in the source and cannot be had from there on
	// this node, and More how many of them are not named.
	Unreadable []stagein.Unreadable `json:"unreadable,omitempty"`
	More       int64                `json:"more,omitempty"`
	// NoRoom is what the node is to have and reads through, and Lacking how many files more it could
	// not fetch.
	NoRoom  stagein.NoRoom `json:"no_room,omitzero"`
	Lacking int64          `json:"lacking,omitempty"`
}

// sealing says how far the filling of ds is.
func sealing(ds cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard) (cluster.Phase, string) {
	for _, n := range m.Nodes {
		if !node.Serving(n) {
			continue
		}
		switch r := reports[n.ID].Filled[ds.ID]; {
		case r.Trouble != "":
			return cluster.Failed, fmt.Sprintf("%s: %s", n.Host, r.Trouble)
		case r.Whole < m.Epoch || r.Whole == 0:
			return cluster.Filling, ""
		}
	}
	return cluster.Sealed, ""
}

// filledAs is the sum of what the nodes have reported to this one, which leads.
func (l *leadership) filledAs(id metadata.DatasetID) stagein.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fillOf(id, l.reports)
}

// fillOf is the sum of what the nodes report of a dataset.
func fillOf(id metadata.DatasetID, reports map[metadata.NodeID]heard) stagein.Progress {
	var all []stagein.Progress
	for _, r := range reports {
		if x, ok := r.Filled[id]; ok {
			all = append(all, x.Progress)
		}
	}
	return stagein.Sum(all)
}

// scan finds what the source has without reading its files, and makes the
// manifest of it, if the source has not to be read to be known.
func (in *intake) scan(ctx context.Context, cfg *stagein.PlanConfig) error {
	f, err := os.Create(filepath.Join(in.dir(), recordsFile(0)))
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	c, err := newCounter(in.d.countFile(in.ds.ID, in.ds.Turn), &in.scans)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	defer c.close()
	was := cfg.FS
	cfg.FS = c.of(was)
	defer func() { cfg.FS = was }()
	w := bufio.NewWriterSize(f, 1<<20)
	s, err := stagein.Scan(ctx, cfg, w)
	if err == nil {
		err = w.Flush()
	}
	if e := f.Close(); err == nil && e != nil {
		err = fmt.Errorf("stage-in: %w", e)
	}
	if err != nil || s == nil {
		return err
	}
	if err := in.keepOrigins(s.Origins); err != nil {
		return err
	}
	if len(s.Indexes) > 0 {
		in.d.Spawn(func(context.Context) { s.Indexes.Save(cfg.Log) })
	}
	in.plan = &stagein.Plan{Dataset: in.ds.ID, Size: s.Size, Parts: []stagein.Part{{Node: in.d.job.Self}}}
	in.scanned = true
	in.mu.Lock()
	in.now.Total, in.now.Progress.SourceBytes = s.Size, s.Read
	in.mu.Unlock()
	return nil
}

// keepOrigins writes what the nodes fetch for their fills. A dataset that is staged
// already has one too: what a lost node had is fetched by it.
func (in *intake) keepOrigins(o stagein.Origins) error {
	var order []byte
	if list := o.Order.List; list != "" {
		lines, err := walk.ReadLines(in.d.cfg.Source, list)
		if err != nil {
			return fmt.Errorf("stage-in of %s: %w", in.ds.Source, err)
		}
		order = []byte(strings.Join(lines, "\x00"))
	}
	b, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(filepath.Join(in.dir(), orderFile), order, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(in.dir(), originsFile), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	if err := in.put(orderFile, originsFile); err != nil {
		return err
	}
	in.ds.Fill = true
	return nil
}
