package dataset

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// ScrubStats holds the results of this node's scrub since the daemon started.
type ScrubStats struct {
	Rounds   int64 `json:"rounds"` // completed passes over all datasets
	Files    int64 `json:"files"`  // files compared
	Bytes    int64 `json:"bytes"`
	Bad      int64 `json:"bad"`      // files that do not match their checksums and could not be repaired
	Repaired int64 `json:"repaired"` // files that did not match and were refetched
}

// scrub is the state of the background scrub.
type scrub struct {
	mu    sync.Mutex
	stats ScrubStats // guarded by mu
}

// Scrubbed returns the results of the scrub.
func (v *Verifier) Scrubbed() ScrubStats {
	v.scrub.mu.Lock()
	defer v.scrub.mu.Unlock()
	return v.scrub.stats
}

// Scrub repeatedly compares this node's part of each dataset with its checksums, with a pause between two rounds, and
// has files that differ refetched. It reads perSecond bytes per second, from the drive. Of striped files it compares
// the pieces that were fetched one by one; Verify compares the others.
func (v *Verifier) Scrub(ctx context.Context, pause time.Duration, perSecond int64) {
	if perSecond <= 0 {
		return
	}
	pace := rate.New(perSecond, nil)
	for node.Pause(ctx, pause) == nil {
		for _, ds := range v.n.View().Datasets {
			if ds.Phase != cluster.Sealed {
				continue
			}
			if err := v.scrubDataset(ctx, ds, pace); err != nil && ctx.Err() == nil {
				v.n.Log().WithError(err).WithField("dataset", ds.Name).Warn("scrub not finished: it is tried again in the next round")
			}
		}
		v.scrub.mu.Lock()
		v.scrub.stats.Rounds++
		v.scrub.mu.Unlock()
	}
}

func (v *Verifier) scrubDataset(ctx context.Context, ds cluster.Dataset, pace *rate.Bucket) error {
	x, ok := v.tables.get(ds.ID)
	if !ok {
		return nil // this node is still loading it
	}
	q := verifyRequest{Dataset: ds.ID}
	res, err := v.runPaced(ctx, &q, pace)
	if err != nil {
		return err
	}
	if res.Bad > 0 {
		err = v.repair(ctx, x, q, res)
	}
	v.scrub.mu.Lock()
	s := &v.scrub.stats
	s.Files, s.Bytes, s.Bad, s.Repaired = s.Files+res.Files, s.Bytes+res.Bytes, s.Bad+res.Bad, s.Repaired+res.Repaired
	v.scrub.mu.Unlock()
	for _, f := range res.BadFiles {
		log := v.n.Log().WithFields(logrus.Fields{"dataset": ds.Name, "file": string(f.Path), "mismatch": f.Error})
		if f.Repaired {
			log.Warn("scrub found a file that did not match its checksum: it was refetched")
		} else {
			log.Error("scrub found a file that does not match its checksum: run bivouac verify; replace this node's drive if more follow")
		}
	}
	return err
}
