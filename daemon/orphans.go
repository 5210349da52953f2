package daemon

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// HeldFunc reports whether a file of scratch is open on this node. The program
// wires it to a client.
type HeldFunc func(metadata.Ino) bool

// SetHeld gives the daemon its way to know what is open on this node.
func (d *Daemon) SetHeld(f HeldFunc) { d.held.Store(&f) }

const (
	maxOrphans    = 1 << 16 // that one start takes on; the next takes more
	orphanBatch   = 1024    // that are asked about in one message
	orphanWorkers = 8       // that are removed at a time
	orphanTime    = 10 * time.Second
	orphanPause   = 30 * time.Second // before those are tried again that could not be removed
)

// findOrphans is the files that were unlinked, but not yet removed, when this
// daemon's last run ended. It is called before anybody can make new ones.
func (d *Daemon) findOrphans() ([]metadata.Attr, error) {
	var found []metadata.Attr
	err := d.meta.Orphans(d.ctx, func(a metadata.Attr) bool {
		found = append(found, a)
		return len(found) < maxOrphans
	})
	if err != nil {
		return nil, fmt.Errorf("metadata store: %w", err)
	}
	return found, nil
}

// drainOrphans removes them, as far as nobody has them open: who has will
// remove them at its last close. It goes on until each is gone or held, so a
// node that is away has its part removed when it is back.
func (d *Daemon) drainOrphans(ctx context.Context, left []metadata.Attr) {
	err := d.until(ctx, func(v cluster.View) bool {
		self, _ := v.Map.Node(d.job.Self)
		return v.Version > 0 && serving(self)
	})
	for n := len(left); err == nil && len(left) > 0; {
		_, changed := d.watch()
		if left = d.drain(ctx, left); len(left) == 0 {
			d.log.WithField("files", n).Info("files that were unlinked before the restart are gone")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(orphanPause):
		}
	}
}

// drain returns those that it could not remove.
func (d *Daemon) drain(ctx context.Context, orphans []metadata.Attr) (left []metadata.Attr) {
	for len(orphans) > 0 && ctx.Err() == nil {
		batch := orphans[:min(len(orphans), orphanBatch)]
		orphans = orphans[len(batch):]
		held, err := d.heldAnywhere(ctx, batch)
		if err != nil {
			d.log.WithError(err).Debug("files that were unlinked before the restart stay for now")
			left = append(left, batch...)
			continue
		}
		left = append(left, d.removeAll(ctx, batch, held)...)
	}
	return append(left, orphans...)
}

func (d *Daemon) removeAll(ctx context.Context, batch []metadata.Attr, held map[metadata.Ino]bool) (left []metadata.Attr) {
	var g errgroup.Group
	g.SetLimit(orphanWorkers)
	var mu sync.Mutex // of left
	for _, a := range batch {
		if held[a.Ino] {
			continue
		}
		g.Go(func() error {
			if err := d.removeOrphan(ctx, a); err != nil {
				d.log.WithError(err).WithField("inode", a.Ino.String()).Debug("orphan stays for now")
				mu.Lock()
				defer mu.Unlock()
				left = append(left, a)
			}
			return nil
		})
	}
	_ = g.Wait() // what failed is in left
	return left
}

// heldAnywhere is which of the files are open on a node. Every node has to
// answer: one that is away may be back, and go on with what it had open.
func (d *Daemon) heldAnywhere(ctx context.Context, files []metadata.Attr) (map[metadata.Ino]bool, error) {
	var q statusReq
	for _, a := range files {
		q.Files = append(q.Files, a.Ino)
	}
	held := make(map[metadata.Ino]bool)
	for _, n := range d.View().Map.Nodes {
		if !serving(n) {
			return nil, fmt.Errorf("%s is %v: %w", n.Host, n.State, syscall.EHOSTDOWN)
		}
		var r statusReply
		ctx, cancel := context.WithTimeout(ctx, orphanTime)
		err := d.control(ctx, n.ID, wire.OpStatus, q, &r)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Host, err)
		}
		for _, ino := range r.Held {
			held[ino] = true
		}
	}
	return held, nil
}

// heldHere is which of the files are open on this node.
func (d *Daemon) heldHere(files []metadata.Ino) (held []metadata.Ino) {
	f := d.held.Load()
	if f == nil {
		return nil
	}
	for _, ino := range files[:min(len(files), orphanBatch)] {
		if (*f)(ino) {
			held = append(held, ino)
		}
	}
	return held
}

// removeOrphan removes the objects of a file on all nodes of its layout, and
// then its inode.
func (d *Daemon) removeOrphan(ctx context.Context, a metadata.Attr) error {
	ctx, cancel := context.WithTimeout(ctx, orphanTime)
	defer cancel()
	now, err := d.meta.Getattr(ctx, a.Ino)
	if err != nil || now.Nlink > 0 {
		return nil // gone, or named again
	}
	m := d.View().Map
	if a.Layout.Epoch > m.Epoch {
		return fmt.Errorf("map of epoch %d: %w", a.Layout.Epoch, syscall.ESTALE)
	}
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
		for _, id := range m.Order(a.Ino, a.Layout) {
			if err := (target{d}).Remove(ctx, id, a.Ino); err != nil {
				return fmt.Errorf("object on node %d: %w", id, err)
			}
		}
	}
	return d.meta.Reap(ctx, a.Ino)
}
