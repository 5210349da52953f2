package fsclient

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// resize first cuts the data and then sets the size: after a crash in between the file has its old length, and zeros
// from the new end on. f is nil if the file is not open here. If the freeze ends before the size is set, resize starts
// again: a larger size may have been published meanwhile, whose data was not cut.
func resize(ctx context.Context, c *Client, s metadata.NodeStore, f *File, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	if ch.Size < 0 {
		return metadata.Attr{}, fmt.Errorf("inode %v: size %d: %w", ino, ch.Size, syscall.EINVAL)
	}
	if f != nil {
		if err := f.drain(ctx); err != nil {
			return metadata.Attr{}, err
		}
		if err := f.lockSize(ctx); err != nil {
			return metadata.Attr{}, err
		}
		defer f.sizeTurn.Unlock()
		if err := f.app.turn.Lock(ctx); err != nil {
			return metadata.Attr{}, err
		}
		defer f.app.turn.Unlock()
	}
	for try := 1; ; try++ {
		a, err := cutAndSet(ctx, c, s, f, ino, ch)
		switch {
		case !errors.Is(err, syscall.ECANCELED):
			return a, err
		case try == truncateTries || !retry.Pause(ctx, truncatePause):
			return a, fmt.Errorf("inode %v: truncate not finished within %v in %d attempts: retry: %w", ino, appends.FreezeTime, try, syscall.EBUSY)
		}
	}
}

const (
	truncateTries = 5                      // how often a truncate starts; data that is already cut takes no time again
	truncatePause = 100 * time.Millisecond // between tries, for callers that waited for the truncate to end
	thawTime      = 2 * time.Second        // to end a freeze; later it ends by itself
)

// cutAndSet makes one try of resize.
func cutAndSet(ctx context.Context, c *Client, s metadata.NodeStore, f *File, ino metadata.Ino, ch metadata.Change) (a metadata.Attr, err error) {
	ch.Freeze = 1 + rand.Uint64N(math.MaxUint64)
	defer func() {
		if err != nil { // also if the answer to the freeze is lost
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawTime)
			defer cancel()
			thaw(ctx, c, s, ino, ch.Freeze) // this gives the file a new version
		} else if f != nil {
			f.cutOff()
		}
	}()
	if a, err = freeze(ctx, c.holder(), s, f, ino, ch.Freeze); err != nil {
		return metadata.Attr{}, err
	}
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
		gen := f.widen(&a)
		if err = cut(ctx, c, &a, ch.Size); err != nil {
			return metadata.Attr{}, err
		}
		defer func() {
			if f != nil && err == nil {
				f.settle(a, gen)
			}
		}()
	}
	a, err = s.Setattr(context.WithoutCancel(ctx), ino, ch)
	return a, err
}

// cut removes the data of the file a behind size.
func cut(ctx context.Context, c *Client, a *metadata.Attr, size int64) error {
	if size >= a.Size {
		return nil
	}
	order, err := c.nodes.Order(ctx, a.Ino, a.Layout)
	if err != nil {
		return err
	}
	return c.data.Cut(ctx, a, order, size)
}

// widen raises a.Size to cover the writes that the home does not know of. It returns the generation for settle; f may
// be nil.
func (f *File) widen(a *metadata.Attr) (gen uint64) {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a.Size = max(a.Size, f.end, f.reserved)
	f.later = 0
	return f.gen
}

// freeze keeps the size of the file from growing until a size is set, waits for the appends of all nodes, and returns
// the attributes. f may be nil.
func freeze(ctx context.Context, by metadata.Holder, s metadata.NodeStore, f *File, ino metadata.Ino, number uint64) (metadata.Attr, error) {
	o, err := opensOf(s)
	if err != nil {
		return metadata.Attr{}, err
	}
	q := metadata.Append{Ino: ino}
	if f != nil {
		f.mu.Lock()
		q = f.app.Settlement(ino, f.written())
		f.mu.Unlock()
	}
	q.Freeze = number
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	for {
		pl, err := inCrowd(ctx, func() (metadata.Place, error) { return o.Append(ctx, by, q) })
		if err != nil || pl.Off >= 0 {
			return pl.Attr, err
		}
	}
}

// inCrowd repeats a request that fails with EUSERS because too many truncates already wait at the home.
func inCrowd[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	for pauses := retry.New(10*time.Millisecond, 500*time.Millisecond, 0.5); ; {
		a, err := ask()
		if !errors.Is(err, syscall.EUSERS) {
			return a, err
		}
		if !pauses.Wait(ctx) {
			return a, fmt.Errorf("too many truncates wait at the file's home: %w", wait.Errno(ctx))
		}
	}
}

// thaw ends a freeze after which no size was set.
func thaw(ctx context.Context, c *Client, s metadata.NodeStore, ino metadata.Ino, number uint64) {
	o, err := opensOf(s)
	if err == nil {
		_, err = o.Append(ctx, c.holder(), metadata.Append{Ino: ino, Freeze: number, Thaw: true})
	}
	if err != nil {
		c.cfg.Log.WithError(err).WithField("inode", ino.String()).Debug("end of a failed truncate not delivered: writers of the file wait for the home's time limit")
	}
}
