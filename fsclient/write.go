package fsclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// drain waits until all buffered writes of the file have arrived.
func (f *File) drain(ctx context.Context) error { return f.buffer.Drain(ctx) }

// WriteAt writes p at offset off, through to the nodes that own it. With an error, the first n bytes are written and
// the others may be.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if f.ino.Sealed() {
		return 0, readOnly(f.ino)
	}
	if err := f.drain(ctx); err != nil {
		return 0, err
	}
	return f.writeNow(ctx, p, off)
}

// writeNow is WriteAt without draining the buffer first.
func (f *File) writeNow(ctx context.Context, p []byte, off int64) (n int, err error) {
	f.mu.Lock()
	a, order := f.attr, f.order
	f.mu.Unlock()
	n, nodes, err := f.c.data.Write(ctx, &a, order, p, off)
	if n == 0 && err != nil {
		f.torn()
	}
	f.wrote(nodes, n, off, err)
	return n, err
}

// torn records that a failed write may have changed bytes: the home gives the file a new version.
func (f *File) torn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown.Missed()
	f.changed()
}

// changed records a change that the home must learn soon; f.mu is held.
func (f *File) changed() {
	f.gen++
	f.dirty = true
	f.buffer.FlushSoon()
}

// wrote records a write.
func (f *File) wrote(nodes []metadata.NodeID, n int, off int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.failed = true
		f.shown.Missed()
	}
	f.touch(nodes)
	if n > 0 {
		f.end, f.later = max(f.end, off+int64(n)), max(f.later, off+int64(n))
		f.changed()
	}
}

// touch records that nodes have bytes that are not durable; f.mu is held.
func (f *File) touch(nodes []metadata.NodeID) {
	if f.unsynced == nil {
		f.unsynced = make(map[metadata.NodeID]struct{})
	}
	for _, id := range nodes {
		f.unsynced[id] = struct{}{}
	}
}

// DropSetIDsOnWrite makes writes clear setuid and setgid from now on. The home does that when it learns of the writes:
// another node can have set the bits meanwhile.
func (f *File) DropSetIDsOnWrite() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drops = true
}

// dropSetIDs clears setuid and setgid now.
func (f *File) dropSetIDs(ctx context.Context) error {
	s, err := f.c.nodes.Home(f.ino)
	if err != nil {
		return err
	}
	a, err := s.Setattr(ctx, f.ino, metadata.Change{Set: metadata.DropSetIDs})
	f.c.changedHere(err, attrKey(f.ino))
	if err != nil {
		return f.missed(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.learn(a)
	return nil
}

// Flush sends the buffered bytes and publishes this node's writes to the file's home.
func (f *File) Flush(ctx context.Context) error {
	if err := f.drain(ctx); err != nil {
		return err
	}
	if err := f.settleAppends(ctx); err != nil {
		return err
	}
	if !f.isDirty() {
		return nil
	}
	_, err := f.publish(ctx)
	return err
}

// flushOpen flushes a file that may be open here.
func (c *Client) flushOpen(ctx context.Context, ino metadata.Ino) error {
	f := c.files.holdIno(ino)
	if f == nil {
		return nil
	}
	defer c.release(f)
	return f.Flush(ctx)
}

// Sync makes durable this node's writes and, once, the writes of any node before the file was opened here, and flushes.
// A Writer also reports earlier losses.
func (f *File) Sync(ctx context.Context) error {
	if err := f.drain(ctx); err != nil {
		return err
	}
	if err := f.syncNodes(ctx); err != nil {
		return fmt.Errorf("sync of inode %v: %w", f.ino, err)
	}
	if err := f.Flush(ctx); err != nil {
		return err
	}
	return f.AwaitVisible(ctx)
}

// syncNodes makes durable the bytes that have arrived at the nodes.
func (f *File) syncNodes(ctx context.Context) error {
	if err := f.syncTurn.Lock(ctx); err != nil {
		return err
	}
	defer f.syncTurn.Unlock()
	f.mu.Lock()
	a, order := f.known(), f.order
	if f.existed {
		chunk := a.Layout.Chunk()
		f.touch(order[:min(int64(len(order)), (a.Size+chunk-1)/chunk)]) // the nodes that have a chunk
	}
	nodes := slices.Collect(maps.Keys(f.unsynced))
	f.unsynced, f.existed = nil, false
	f.mu.Unlock()
	err := f.c.data.Sync(ctx, &a, order, nodes)
	if err == nil {
		return nil
	}
	f.mu.Lock()
	f.touch(nodes)
	f.mu.Unlock()
	if reportedOnce(err) {
		f.buffer.Lost(err)
		f.PagesMiss()
	}
	return err
}

// reportedOnce reports whether err is from a disk that has lost bytes it had accepted, and will not report that again.
func reportedOnce(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func (f *File) isDirty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dirty
}

// publish reports all writes so far to the home.
func (f *File) publish(ctx context.Context) (metadata.Attr, error) {
	s, err := f.c.nodes.Home(f.ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	return f.change(ctx, s, metadata.Change{})
}

// change applies ch at the home, together with the writes that the home does not know of. A time of modification in ch
// takes precedence over theirs.
func (f *File) change(ctx context.Context, s metadata.NodeStore, ch metadata.Change) (metadata.Attr, error) {
	if err := f.drain(ctx); err != nil {
		return metadata.Attr{}, err
	}
	if err := f.lockSize(ctx); err != nil {
		return metadata.Attr{}, err
	}
	defer f.sizeTurn.Unlock()
	if err := f.settleAppends(ctx); err != nil {
		return metadata.Attr{}, err
	}
	f.mu.Lock()
	gen, dirty, a := f.gen, f.dirty, f.known()
	f.later = 0
	if dirty {
		ch.Set |= metadata.GrowSize
		ch.Size = max(ch.Size, f.end)
		if f.drops {
			ch.Set |= metadata.DropSetIDs
		}
		if ch.Set&(metadata.SetMtime|metadata.MtimeNow) == 0 {
			ch.Set |= metadata.MtimeNow
		}
	}
	f.mu.Unlock()
	if ch.Set == 0 {
		return a, nil // another call has published meanwhile
	}
	err := changing(f.c, f.ino, func() (_ metadata.Attr, err error) {
		a, err = inCrowd(ctx, func() (metadata.Attr, error) { return s.Setattr(ctx, f.ino, ch) })
		if err == nil {
			f.mu.Lock()
			f.shown.Changed(a.Before, a.Ctime)
			f.mu.Unlock()
		}
		a.Before = 0
		return a, err
	})
	if err != nil {
		return metadata.Attr{}, f.missed(err)
	}
	if dirty {
		f.c.published.Add(1)
	}
	f.settle(a, gen)
	return f.Attr(), nil
}

func (f *File) lockSize(ctx context.Context) error {
	if err := f.sizeTurn.Lock(ctx); err != nil {
		return fmt.Errorf("inode %v: %w", f.ino, err)
	}
	return nil
}

// settle takes a, the home's answer to a change that included all writes up to gen.
func (f *File) settle(a metadata.Attr, gen uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.Ctime >= f.attr.Ctime {
		f.attr = a
	}
	if f.gen == gen {
		f.dirty, f.end = false, 0
		f.gen++
	} else { // the size that the home has learned may be cut off meanwhile
		f.end = f.later
	}
}
