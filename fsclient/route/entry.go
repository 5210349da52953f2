package route

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const (
	moveWait      = 15 * time.Second      // for a directory whose entries are moving
	firstPause    = time.Millisecond      // before a retry; doubled for each further retry
	longestPause  = 32 * time.Millisecond // but not longer
	freeRedirects = 4                     // followed without a pause
)

// Split returns the epoch in which a directory was split into shards; 0 if it is not split, as far as this node knows.
func (r *Router) Split(dir metadata.Ino) metadata.Epoch { return r.shards.Epoch(dir) }

// Shards returns where the entries are of a directory that was split in the epoch e.
func (r *Router) Shards(ctx context.Context, e metadata.Epoch) (cluster.ShardMap, error) {
	m, err := r.MapOf(ctx, e)
	if err != nil {
		return cluster.ShardMap{}, err
	}
	return m.ShardMap(e), nil
}

// Entry returns the store that keeps the entry name of dir, as far as this node knows.
func (r *Router) Entry(ctx context.Context, dir metadata.Ino, name string) (metadata.NodeStore, error) {
	e := r.shards.Epoch(dir)
	m, err := r.MapOf(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("directory %v: %w", dir, err)
	}
	s, err := r.Meta(m.EntryHome(dir, name, e))
	if err != nil {
		return nil, fmt.Errorf("entry %q of %v: %w", name, dir, err)
	}
	return s, nil
}

// At calls fn with the store that keeps the entry name of dir. If the entry has moved, it calls fn again.
func At[T any](ctx context.Context, r *Router, dir metadata.Ino, name string, fn func(metadata.NodeStore) (T, error)) (T, error) {
	return Do(ctx, r, func() (v T, err error) {
		s, err := r.Entry(ctx, dir, name)
		if err != nil {
			return v, err
		}
		return fn(s)
	})
}

// Do calls fn, which calls the node that keeps an entry. It calls fn again if the node answers that the entry is
// elsewhere or is moving.
func Do[T any](ctx context.Context, r *Router, fn func() (T, error)) (T, error) {
	try := attempts{backoff: retry.New(firstPause, longestPause, 0)}
	for {
		v, err := fn()
		if err == nil || !r.retry(ctx, &try, err) {
			return v, final(err)
		}
	}
}

// attempts counts the redirects and pauses of a call.
type attempts struct {
	redirects int
	backoff   retry.Backoff
	waited    time.Duration
}

// final converts an error for the application, which must not retry by itself.
func final(err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EREMOTE) {
		return fmt.Errorf("%v: %w", err, syscall.EIO)
	}
	return err
}

// retry reports whether a call that failed with err must be repeated now.
func (r *Router) retry(ctx context.Context, try *attempts, err error) bool {
	var e *metadata.Redirect
	switch {
	case errors.As(err, &e):
		r.shards.Learn(e)
		if try.redirects++; try.redirects < freeRedirects {
			return true
		}
	case !errors.Is(err, syscall.EAGAIN):
		return false
	}
	pause := try.backoff.Next()
	if try.waited += pause; try.waited > moveWait {
		return false
	}
	return retry.Pause(ctx, pause)
}
