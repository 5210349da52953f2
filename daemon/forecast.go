package daemon

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// Forecast tells what the readers of this node read next of a dataset, once that is filled.
type Forecast struct {
	d  *Daemon
	id metadata.DatasetID
}

// Forecast is of a dataset whose fill may not have begun yet.
func (d *Daemon) Forecast(id metadata.DatasetID) Forecast { return Forecast{d, id} }

// of is nil if there is none, and a channel that is closed when there may be.
func (f Forecast) of() (*stagein.Forecast, <-chan struct{}) {
	x, begun := f.d.fill.get(f.id)
	if x == nil {
		return nil, begun
	}
	return x.Forecast(), nil
}

// Read takes note that somebody begins to read a file.
func (f Forecast) Read(ino metadata.Ino) {
	if x, _ := f.of(); x != nil {
		x.Read(ino)
	}
}

// Waited takes note that a reader has waited so long for a file.
func (f Forecast) Waited(ino metadata.Ino, took time.Duration) {
	if x, _ := f.of(); x != nil {
		x.Waited(ino, took)
	}
}

// Later has a file told again, which cannot be had yet.
func (f Forecast) Later(ino metadata.Ino) {
	if x, _ := f.of(); x != nil {
		x.Later(ino)
	}
}

// Next is a file that is read soon. It waits until there is one; an error is that there will be none.
func (f Forecast) Next(ctx context.Context) (metadata.Ino, error) {
	for {
		x, begun := f.of()
		switch {
		case x != nil:
			return x.Next(ctx)
		case begun == nil:
			return 0, fmt.Errorf("nobody knows in which order dataset %d is read: %w", f.id, syscall.ENOENT)
		}
		select {
		case <-begun:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
