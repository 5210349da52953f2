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

// resize cuts the data first and sets the size then: after a crash in between the
// file has its old length, and zeros from the new end on. f is nil if the file is not
// open here. A freeze that is over before the size is set makes it start again: then a
// larger size may have been published of which the data was not cut.
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
			return a, fmt.Errorf("inode %v: to wait for appends and to cut its data took longer than %v, %d times: %w", ino, appends.FreezeTime, try, syscall.EBUSY)
		}
	}
}

const (
	truncateTries = 5                      // how often a truncate starts; what is cut already takes no time again
	truncatePause = 100 * time.Millisecond // between them, for those that have waited for its end
	thawTime      = 2 * time.Second        // for the end of a freeze; later it ends by itself
)

// cutAndSet is one try of resize.
func cutAndSet(ctx context.Context, c *Client, s metadata.NodeStore, f *File, ino metadata.Ino, ch metadata.Change) (a metadata.Attr, err error) {
	ch.Freeze = 1 + rand.Uint64N(math.MaxUint64)
	defer func() {
		if err != nil { // also if the answer to the freeze is lost
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawTime)
			defer cancel()
			thaw(ctx, c, s, ino, ch.Freeze) // by that the file gets a new version
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

// widen makes a.Size as large as the writes that the home does not know of. It
// returns the generation for settle; f may be nil.
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

// freeze keeps the size of the file from growing until it is set, waits for the appends of all nodes, and
// returns the attributes. f may be nil.
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

// inCrowd repeats a request that waits for truncates, of which too many wait at the home (EUSERS).
func inCrowd[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	for pauses := retry.New(10*time.Millisecond, 500*time.Millisecond, 0.5); ; {
		a, err := ask()
		if !errors.Is(err, syscall.EUSERS) {
			return a, err
		}
		if !pauses.Wait(ctx) {
			return a, fmt.Errorf("too many nodes wait for truncates of files with the same home: %w", wait.Errno(ctx))
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
