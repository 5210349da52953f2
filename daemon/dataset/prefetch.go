package dataset

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// Prefetch predicts which files of a dataset the readers of this node read next, once the
// dataset's files are being fetched.
type Prefetch struct {
	fills *Fills
	id    metadata.DatasetID
}

// Prefetch predicts the reads of a dataset, whose fill may not have begun yet.
func (f *Fills) Prefetch(id metadata.DatasetID) Prefetch { return Prefetch{f, id} }

// of is nil if there is no fill yet; then the channel is closed when another begins.
func (p Prefetch) of() (*fill.Predictor, <-chan struct{}) {
	x, begun := p.fills.get(p.id)
	if x == nil {
		return nil, begun
	}
	return x.Predictor(), nil
}

// Read notes that a reader begins to read a file.
func (p Prefetch) Read(ino metadata.Ino) {
	if x, _ := p.of(); x != nil {
		x.Observe(ino)
	}
}

// Waited notes how long a reader has waited for a file.
func (p Prefetch) Waited(ino metadata.Ino, took time.Duration) {
	if x, _ := p.of(); x != nil {
		x.Waited(ino, took)
	}
}

// Later has Next return a file again that cannot be read yet.
func (p Prefetch) Later(ino metadata.Ino) {
	if x, _ := p.of(); x != nil {
		x.Retry(ino)
	}
}

// Next waits for a file that will be read soon. An error says that there will be none.
func (p Prefetch) Next(ctx context.Context) (metadata.Ino, error) {
	for {
		x, begun := p.of()
		switch {
		case x != nil:
			return x.Next(ctx)
		case begun == nil:
			return 0, fmt.Errorf("the order of reads of dataset %d is not known: %w", p.id, syscall.ENOENT)
		}
		select {
		case <-begun:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
