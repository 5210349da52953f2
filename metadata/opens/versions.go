package opens

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/bivouacfs/bivouac/metadata"
)

// doubt records that nodes may have bytes of a file that no home knows about: its size does not show where those bytes
// are, and its version does not show that it has changed.
func (r *Registry) doubt(ino metadata.Ino, f *file) {
	r.unsure[ino] = struct{}{}
	r.renew(ino, f)
}

// runAfter returns the Holding.Run of a home with the given run; 0 until all nodes have answered after a restart.
func (r *Registry) runAfter(run metadata.Run) metadata.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.recovering > 0 {
		return 0
	}
	return run + r.recovered
}

// thawed gives the file a new version if its freeze has ended without a size: its data may already be cut.
func (r *Registry) thawed(ino metadata.Ino, f *file) {
	if number, was := r.frozen[ino]; was && !f.appends.Frozen() {
		delete(r.frozen, ino)
		r.over.Add(number, struct{}{})
		r.renew(ino, f)
	}
}

// over is a set of numbers of ended truncations.
type over = simplelru.LRU[uint64, struct{}]

// maxOver limits the remembered numbers: more than the truncations that can fail while one request is in flight.
const maxOver = 1 << 14

func newOver() *over {
	o, _ := simplelru.NewLRU[uint64, struct{}](maxOver, nil) // it fails only for a size of 0
	return o
}

// endFreezes ends the freezes whose time has passed.
func (r *Registry) endFreezes(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ino := range r.frozen {
		f := r.file(ino)
		f.home().EndFreeze(now)
		r.thawed(ino, f)
	}
}

// renew schedules a new version for the file, because its bytes may have changed without one.
func (r *Registry) renew(ino metadata.Ino, f *file) {
	r.outdate(ino, f)
	f.renew = true
}

// outdate adds the file to the list of files to publish.
func (r *Registry) outdate(ino metadata.Ino, f *file) {
	if !f.grown && !f.renew {
		r.outdated = append(r.outdated, ino)
	}
	r.wake()
}

// takeOutdated returns, and clears, the files whose size or version must be published.
func (r *Registry) takeOutdated() []metadata.Ino {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.outdated
	r.outdated = nil
	return all
}

// publication begins to publish the size of a file, and with renew also its version; published ends that.
func (r *Registry) publication(ino metadata.Ino) (was round, renew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	n, _ := f.home().Truncations()
	renew = f.renew
	f.grown, f.renew, f.publishing = false, false, true
	return round{truncations: n}, renew
}

// published ends the publication that publication began.
func (r *Registry) published(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file(ino)
	f.publishing = false
	r.settle(ino, f)
}

// publishOutdated publishes the sizes of files whose appends waited for a client that has died, and gives a new version
// to files whose bytes may have changed without one: nodes may have old pages. A version is st_ctime; st_mtime stays,
// because most of these files were only read.
func (f *Files) publishOutdated(ctx context.Context) {
	for _, ino := range f.takeOutdated() {
		was, renew := f.publication(ino)
		a, err := f.cfg.Store.Getattr(ctx, ino)
		if err == nil {
			_, err = f.publish(ctx, a, was)
		}
		if err == nil && renew {
			_, err = f.cfg.Store.Setattr(ctx, ino, metadata.Change{Set: metadata.GrowSize})
		}
		f.published(ino)
		switch {
		case errors.Is(err, syscall.ENOENT):
		case err != nil:
			f.cfg.Log.WithError(err).WithField("inode", ino.String()).Debug("size and version of a file not published: other nodes may see old bytes until its next change")
		case f.cfg.Changed != nil:
			f.cfg.Changed(ctx, ino)
		}
	}
}
