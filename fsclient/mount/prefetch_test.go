package mount_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// oracle predicts the files that a test puts in.
type oracle struct {
	next  chan metadata.Ino
	later chan metadata.Ino
	reads atomic.Int64
}

func newOracle() *oracle {
	return &oracle{next: make(chan metadata.Ino), later: make(chan metadata.Ino, 100)}
}

func (o *oracle) Read(metadata.Ino)                  { o.reads.Add(1) }
func (o *oracle) Waited(metadata.Ino, time.Duration) {}
func (o *oracle) Later(ino metadata.Ino)             { o.later <- ino }

func (o *oracle) Next(ctx context.Context) (metadata.Ino, error) {
	select {
	case ino := <-o.next:
		return ino, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// foretold is a job whose mount 0 prefetches what the oracle predicts.
func foretold(t *testing.T) (*job, *oracle) {
	t.Helper()
	o := newOracle()
	return startJob(t, &job{backings: -1, covered: true, next: o}), o
}

// stored waits until mount 0 has put n files into the page cache.
func (j *job) stored(t *testing.T, n int64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got := j.mounts[0].Stats().Prefetched
		switch {
		case got == n:
			return
		case got > n, time.Now().After(deadline):
			t.Fatalf("%d files were stored, want %d", got, n)
		}
	}
}

// known makes the kernel look a file up, and returns its inode.
func (j *job) known(t *testing.T, i int) metadata.Ino {
	t.Helper()
	return metadata.Ino(stat(t, j.file(0, i)).Ino)
}

// begun is file 1, which is being prefetched until release is called.
func (j *job) begun(t *testing.T, o *oracle) (ino metadata.Ino, release func()) {
	t.Helper()
	ino = j.known(t, 1)
	hang := make(chan struct{})
	j.hang.Store(&hang)
	o.next <- ino
	j.awaitHung(t, 1)
	return ino, func() {
		j.hang.Store(nil)
		close(hang)
	}
}

// TestPrefetch: reads of prefetched files cost no request and have the right bytes; reads
// of others are noted.
func TestPrefetch(t *testing.T) {
	j, o := foretold(t)
	const told = sealedFiles / 2
	for i := range told {
		o.next <- j.known(t, i)
	}
	j.stored(t, told)
	for _, c := range []struct{ first, end, reads int }{{0, told, 0}, {told, sealedFiles, sealedFiles - told}} {
		was, asked := j.mounts[0].Stats().Calls, o.reads.Load()
		for i := c.first; i < c.end; i++ {
			wantFile(t, j.file(0, i), sealedContent(i))
		}
		if n, noted := j.calls(0, was)["read"], o.reads.Load()-asked; n != int64(c.reads) || noted != n {
			t.Errorf("of the files %d to %d %d are read and %d noted, want %d", c.first, c.end, n, noted, c.reads)
		}
	}
}

// TestPrefetchOfUnusable: unknown inodes, directories and files that are not staged delay
// no other file.
func TestPrefetchOfUnusable(t *testing.T) {
	j, o := foretold(t)
	dir := metadata.Ino(stat(t, filepath.Join(j.dirs[0], "data", "set", "train")).Ino)
	ino := j.known(t, 1)
	j.away.Store(true)
	o.next <- ino
	if got := <-o.later; got != ino {
		t.Errorf("Later(%v), want %v", got, ino)
	}
	j.away.Store(false)
	unknown := metadata.Ino(stat(t, j.file(1, 5)).Ino)
	for _, none := range []metadata.Ino{dir, metadata.SealedIno(j.sealed.set.ID, 0, 1<<20), unknown} {
		o.next <- none
	}
	o.next <- ino
	j.stored(t, 1)
}

// TestPrefetchBesideDrop: pages that are dropped during a prefetch are not stored
// afterwards.
func TestPrefetchBesideDrop(t *testing.T) {
	j, o := foretold(t)
	ino, release := j.begun(t, o)
	j.mounts[0].DropPages([]metadata.Ino{ino})
	release()
	j.stored(t, 1)
	was := j.mounts[0].Stats().Calls
	wantFile(t, j.file(0, 1), sealedContent(1))
	if n := j.calls(0, was)["read"]; n != 1 {
		t.Errorf("%d reads of dropped pages", n)
	}
}

// TestPrefetchBesideReader: a reader of a file that is being prefetched gets all of it by
// its own read.
func TestPrefetchBesideReader(t *testing.T) {
	j, o := foretold(t)
	_, release := j.begun(t, o)
	read := make(chan struct{})
	go func() {
		defer close(read)
		wantFile(t, j.file(0, 1), sealedContent(1))
	}()
	j.awaitHung(t, 2)
	release()
	<-read
	j.stored(t, 1)
	wantFile(t, j.file(0, 1), sealedContent(1))
}

// TestPrefetchEnds: a cover ends during a prefetch.
func TestPrefetchEnds(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) }) // after the covers were taken away, which waits for their end
	j, o := foretold(t)
	inos := []metadata.Ino{j.known(t, 0), j.known(t, 1), j.known(t, 2)}
	j.hang.Store(&hang)
	for _, ino := range inos {
		o.next <- ino
	}
	j.awaitHung(t, int64(len(inos)))
}
