package ingest

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// counter counts the bytes that a scan, or a part, reads from the source, in a file that
// outlives the daemon. A read counts when it is asked for, so bytes in flight when the
// daemon is killed may count without having come.
type counter struct {
	f    *os.File
	n    *atomic.Int64
	kept atomic.Int64 // what the file says
}

// countEvery is how many bytes may be read without being in the file.
const countEvery = 64 << 10

// countFile counts the scan of an attempt.
func (s *Stager) countFile(ds cluster.Dataset) string {
	return filepath.Join(s.attemptDir(ds), "scanned")
}

// readFile counts all tries of a part on this node.
func (s *Stager) readFile(id metadata.DatasetID, part int) string {
	return s.cfg.Data.Files.Path(id, "read-"+strconv.Itoa(part))
}

// newCounter goes on from n.
func newCounter(path string, n *atomic.Int64) (*counter, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	c := &counter{f: f, n: n}
	c.kept.Store(n.Load())
	return c, nil
}

func (c *counter) close() { _ = c.f.Close() } // every write was checked

// of is fs with its reads counted.
func (c *counter) of(fs source.FS) source.FS { return source.Paced(fs, c.add) }

func (c *counter) add(n int64) error {
	now, kept := c.n.Add(n), c.kept.Load()
	if now-kept < countEvery || !c.kept.CompareAndSwap(kept, now) {
		return nil
	}
	if _, err := c.f.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(now)), 0); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}

// readCount is what a counter has written; 0 if there is none.
func readCount(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil || len(b) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}
