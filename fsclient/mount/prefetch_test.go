package mount_test

import (
	"context"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient/prefetch"
	"github.com/bivouacfs/bivouac/metadata"
)

// memo records reads and keeps some files in memory.
type memo struct {
	mu    sync.Mutex
	pages prefetch.Pages          // guarded by mu; those of the last read
	reads []metadata.Ino          // guarded by mu
	kept  map[metadata.Ino][]byte // guarded by mu
}

func (m *memo) Read(_ context.Context, from prefetch.Pages, ino metadata.Ino, off, n int64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pages, m.reads = from, append(m.reads, ino)
	b := m.kept[ino]
	if off >= int64(len(b)) {
		return nil
	}
	return b[off:min(off+n, int64(len(b)))]
}

// noted returns the number of reads recorded since the last call.
func (m *memo) noted() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.reads)
	m.reads = nil
	return n
}

// keep keeps b in memory for a file.
func (m *memo) keep(ino metadata.Ino, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[ino] = b
}

// foretold returns a job with a memo for mount 0 that has recorded a read of file 0, and the page cache of mount 0.
func foretold(t *testing.T) (*job, *memo, prefetch.Pages) {
	t.Helper()
	m := &memo{kept: make(map[metadata.Ino][]byte)}
	j := startJob(t, &job{backings: -1, covered: true, next: m})
	wantFile(t, j.file(0, 0), sealedContent(0))
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.reads) != 1 || m.reads[0] != j.known(t, 0) || m.pages == nil || m.pages.Direct() {
		t.Fatalf("noted: %+v", m)
	}
	return j, m, m.pages
}

// known makes the kernel look up a file, and returns its inode.
func (j *job) known(t *testing.T, i int) metadata.Ino {
	t.Helper()
	return metadata.Ino(stat(t, j.file(0, i)).Ino)
}

// TestPrefetch: reads of stored files cost no request and return the right bytes, also in later epochs if their pages
// were dropped in between; reads of other files are recorded.
func TestPrefetch(t *testing.T) {
	j, m, p := foretold(t)
	const planned = sealedFiles / 2
	for epoch := range 3 {
		var dropped []metadata.Ino
		for i := range sealedFiles {
			dropped = append(dropped, j.known(t, i))
		}
		j.mounts[0].DropPages(dropped)
		for i := range planned {
			if !p.Store(dropped[i], 0, []byte(sealedContent(i)), p.Mark()) {
				t.Fatalf("epoch %d: file %d was not stored", epoch, i)
			}
		}
		m.noted()
		for _, c := range []struct{ first, end, reads int }{{0, planned, 0}, {planned, sealedFiles, sealedFiles - planned}} {
			was := j.mounts[0].Stats().Calls
			for i := c.first; i < c.end; i++ {
				wantFile(t, j.file(0, i), sealedContent(i))
			}
			if n := j.calls(0, was)["read"]; n != int64(c.reads) {
				t.Errorf("epoch %d: of the files %d to %d, %d are read, want %d", epoch, c.first, c.end, n, c.reads)
			}
		}
		if n := m.noted(); n != sealedFiles-planned {
			t.Errorf("epoch %d: %d reads recorded", epoch, n)
		}
	}
	if n := j.mounts[0].Stats().Prefetched; n != 3*planned {
		t.Errorf("%d files prefetched, want %d", n, 3*planned)
	}
}

// TestPrefetchKept: a read returns the bytes kept in memory.
func TestPrefetchKept(t *testing.T) {
	j, m, _ := foretold(t)
	served := j.mounts[0].Stats().Prefetched
	m.keep(j.known(t, 1), []byte(sealedContent(1)))
	j.away.Store(true) // its node has no data
	wantFile(t, j.file(0, 1), sealedContent(1))
	j.away.Store(false)
	if n := j.mounts[0].Stats().Prefetched - served; n != 1 {
		t.Errorf("%d files prefetched, want 1", n)
	}
}

// TestPrefetchUnknown: files that the kernel has not looked up are not stored in the page cache.
func TestPrefetchUnknown(t *testing.T) {
	j, _, p := foretold(t)
	for _, ino := range []metadata.Ino{metadata.SealedIno(j.sealed.set.ID, 0, 1<<20), metadata.Ino(stat(t, j.file(1, 5)).Ino)} {
		if p.Store(ino, 0, []byte("x"), p.Mark()) {
			t.Errorf("%v was stored", ino)
		}
	}
}

// TestPrefetchBesideDrop: bytes read before pages were dropped are not stored afterwards.
func TestPrefetchBesideDrop(t *testing.T) {
	j, _, p := foretold(t)
	ino, mark := j.known(t, 1), p.Mark()
	j.mounts[0].DropPages([]metadata.Ino{ino})
	p.Store(ino, 0, []byte(sealedContent(1)), mark)
	was := j.mounts[0].Stats().Calls
	wantFile(t, j.file(0, 1), sealedContent(1))
	if n := j.calls(0, was)["read"]; n != 1 {
		t.Errorf("%d reads of dropped pages", n)
	}
}
