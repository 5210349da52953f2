package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// Displaced is what a node is to have of a dataset and has not, since other nodes were lost or
// scratch has taken the room.
type Displaced struct {
	Host  string `json:"host"`
	Files int64  `json:"files,omitempty"` // that the node has no room for, and reads from the source for all
	Bytes int64  `json:"bytes,omitempty"` // of them
	// Lacking is how many files more it could not fetch when it last tried, and Error why one
	// of them.
	Lacking int64  `json:"lacking,omitempty"`
	Error   string `json:"error,omitempty"`
}

// roomFor reports whether n bytes more of a dataset's object find room here. What is there of it is
// written over.
func (d *Daemon) roomFor(ino metadata.Ino, n int64) bool {
	s, err := d.data.Space(d.ctx)
	if err != nil || s.Free >= n {
		return true // who writes will hear what is the matter
	}
	took, err := d.data.Allocated(d.ctx, ino)
	return err != nil || took > 0
}

// readDisplaced reads from this node's object of ino what the node has no room for, as Need
// has said.
func (d *Daemon) readDisplaced(ctx context.Context, f *stagein.Fill, ino metadata.Ino, p []byte, off int64) (int, error) {
	n, err := f.ReadDisplaced(ctx, ino, p, off, func(p []byte, off int64) (int, error) { return d.data.ReadAt(ctx, ino, p, off) })
	d.passed.Add(int64(n))
	return n, err
}

// sendDisplaced is readDisplaced for another node: EAGAIN if it takes long.
func (d *Daemon) sendDisplaced(ctx context.Context, q *wire.ReadReq, resp *rpc.Response) error {
	f, _ := d.fill.get(q.Ino.Dataset())
	if f == nil {
		return fmt.Errorf("inode %v: the dataset has failed: %w", q.Ino, syscall.EIO)
	}
	err := d.waited(ctx, q.Ino, func(ctx context.Context) error { return f.WarmDisplaced(ctx, q.Ino, q.Off, int64(q.Len)) })
	if err == nil {
		err = d.serve(ctx, q.Ino, int64(q.Len))
	}
	if err != nil {
		return err
	}
	b, err := resp.Alloc(ctx, int(q.Len))
	if err != nil {
		return err
	}
	n, err := d.readDisplaced(ctx, f, q.Ino, b, q.Off)
	resp.Data = b[:n]
	return err
}

// waited runs do, which waits for a file, for another node: EAGAIN if it takes long, or many wait.
func (d *Daemon) waited(ctx context.Context, ino metadata.Ino, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case d.fill.waits <- struct{}{}:
		defer func() { <-d.fill.waits }()
	default:
		return fmt.Errorf("inode %v: many wait: %w", ino, syscall.EAGAIN)
	}
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	err := do(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("inode %v: is being fetched: %w", ino, syscall.EAGAIN)
	}
	return err
}

// displacedAs is what the nodes have reported to this one, which leads.
func (l *leadership) displacedAs(d *Daemon, id metadata.DatasetID) (all []Displaced) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := d.View().Map
	for to, r := range l.reports {
		if n, _ := m.Node(to); !node.Serving(n) {
			continue
		}
		x := r.Filled[id]
		s := Displaced{Host: d.job.Hosts[to], Files: x.NoRoom.Files, Bytes: x.NoRoom.Bytes, Lacking: x.Lacking}
		if s.Lacking > 0 {
			s.Error = x.Trouble
		}
		if s.Files+s.Lacking > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Displaced) int { return cmp.Compare(a.Host, b.Host) })
	return all
}
