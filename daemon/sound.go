package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// sounds is the pieces of datasets that this node has compared with their sums
// since it started, because another node reads them with verify=reads: each once,
// when it is first asked for.
type sounds struct {
	mu   sync.Mutex
	seen map[soundKey]struct{} // guarded by mu
}

type soundKey struct {
	ino metadata.Ino
	off int64 // of the piece, in this node's object
}

func (s *sounds) has(p stagein.PieceSum) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.seen[soundKey{p.Ino, p.Off}]
	return ok
}

func (s *sounds) add(p stagein.PieceSum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = make(map[soundKey]struct{})
	}
	s.seen[soundKey{p.Ino, p.Off}] = struct{}{}
}

// sound returns when [off, off+n) of this node's object of ino is what was
// staged: what is not is fetched again. EIO if it cannot be. There is no sum for
// the pieces of a striped file that was staged while it was read by several nodes, or is of
// more than manifest.MaxChunks chunks.
func (d *Daemon) sound(ctx context.Context, ino metadata.Ino, off, n int64) error {
	f, _ := d.fill.get(ino.Dataset())
	x, ok := d.table.get(ino.Dataset())
	if f == nil || !ok {
		return nil
	}
	ps, err := f.Touched(ino, off, n)
	if err != nil {
		return err
	}
	for _, p := range ps {
		if d.sounds.has(p) {
			continue
		}
		if p.Sum == ([16]byte{}) && p.Whole {
			if p.Sum, _, err = x.table.Record(ino); err != nil {
				return err
			}
		}
		if err := d.soundPiece(ctx, f, p); err != nil {
			return err
		}
		d.sounds.add(p)
	}
	return nil
}

func (d *Daemon) soundPiece(ctx context.Context, f *stagein.Fill, p stagein.PieceSum) error {
	bad := d.comparePiece(ctx, p)
	if bad == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	log := d.log.WithError(bad).WithField("inode", p.Ino.String()).WithField("offset", p.Off)
	failed, err := f.Again(ctx, []metadata.Ino{p.Ino})
	if err == nil {
		err = failed[p.Ino]
	}
	if err == nil {
		err = d.comparePiece(ctx, p)
	}
	if err != nil {
		log.WithField("why", err.Error()).Error("an object is not what was staged, and cannot be fetched again: bivouac verify names the file")
		return fmt.Errorf("inode %v: is not what was staged: %w", p.Ino, syscall.EIO)
	}
	d.Spawn(func(ctx context.Context) { d.dropPagesEverywhere(ctx, []metadata.Ino{p.Ino}) }) // may wait for this read
	log.Warn("an object was not what was staged: it was fetched again")
	return nil
}

// comparePiece reads a piece of an object and compares it.
func (d *Daemon) comparePiece(ctx context.Context, p stagein.PieceSum) error {
	c := stagein.NewChecker(p.Sum, p.Len)
	if err := d.readObject(ctx, p.Ino, p.Off, p.Len, c); err != nil {
		return err
	}
	return c.Check()
}

// handleReadSummed is a read whose bytes the reader compares when they arrive.
func (d *Daemon) handleReadSummed(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	q, err := d.readable(ctx, r)
	switch {
	case errors.Is(err, stagein.ErrDisplaced):
		err = d.sendDisplaced(ctx, &q, resp)
	case err == nil:
		err = d.sendSound(ctx, &q, resp)
	}
	if err != nil {
		return err
	}
	resp.Body = &wire.SumResp{Sum: wire.Sum(resp.Data)}
	return nil
}

// handleReadHere is handleReadSummed of what nobody has to wait for.
func (d *Daemon) handleReadHere(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	var q wire.ReadReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	if !d.has(q.Ino, q.Off, int64(q.Len)) {
		return fmt.Errorf("inode %v: is not here: %w", q.Ino, syscall.EAGAIN)
	}
	return d.handleReadSummed(ctx, r, resp)
}

func (d *Daemon) sendSound(ctx context.Context, q *wire.ReadReq, resp *rpc.Response) error {
	if q.Ino.Sealed() {
		if err := d.sound(ctx, q.Ino, q.Off, int64(q.Len)); err != nil {
			return err
		}
	}
	return d.readInto(ctx, ctx, q, resp)
}

func (d *Daemon) handleWriteSummed(ctx context.Context, r *rpc.Request, _ *rpc.Response) error {
	var q wire.SummedWriteReq
	if err := wire.Parse(r.Body, &q); err != nil {
		return err
	}
	if err := wire.CheckSum(r.Data, q.Sum); err != nil {
		return fmt.Errorf("inode %v at %d: %w", q.Ino, q.Off, err)
	}
	return d.write(ctx, q.Ino, r.Data, q.Off)
}
