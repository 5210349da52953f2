package fsclient_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// countedHome leases everything and counts its calls for open files.
type countedHome struct {
	takenHome
	calls *atomic.Int64
}

func (h countedHome) Open(ctx context.Context, by metadata.Holder, ino metadata.Ino, o metadata.Opening) (metadata.Holding, error) {
	h.calls.Add(1)
	return h.Home.Open(ctx, by, ino, o)
}

func (h countedHome) OpenAhead(ctx context.Context, by metadata.Holder, files []metadata.OpenAhead) ([]metadata.Attr, metadata.Run, error) {
	h.calls.Add(1)
	return h.Home.OpenAhead(ctx, by, files)
}

func (h countedHome) GetattrLease(ctx context.Context, ino metadata.Ino, by metadata.NodeID) (metadata.Attr, metadata.Lease, error) {
	h.calls.Add(1)
	return h.takenHome.GetattrLease(ctx, ino, by)
}

func (h countedHome) LookupLease(ctx context.Context, dir metadata.Ino, name string, by metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	h.calls.Add(1)
	return h.takenHome.LookupLease(ctx, dir, name, by)
}

// countedData counts the reads of a node's data.
type countedData struct {
	datapath.Store
	calls *atomic.Int64
}

func (d countedData) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	d.calls.Add(1)
	return d.Store.ReadAt(ctx, ino, p, off)
}

func (d countedData) ReadMany(ctx context.Context, rs []datapath.RangeRead, buf []byte, _ bool) error {
	d.calls.Add(1)
	for i := range rs {
		n, err := d.Store.ReadAt(ctx, rs[i].Ino, buf[:rs[i].Len], rs[i].Off)
		rs[i].Data, buf = buf[:n], buf[rs[i].Len:]
		if rs[i].Err = err; err == nil && int64(n) < rs[i].Len {
			rs[i].Err = syscall.EIO
		}
	}
	return nil
}

// smallFiles creates n files in a directory on node 0, and a client on node 1 that counts its calls to other nodes.
func smallFiles(t *testing.T, n int) (j *job, writer, reader *fsclient.Client, dir metadata.Ino, calls *atomic.Int64) {
	t.Helper()
	j = newJob(t, 3)
	writer = j.clients[0]
	dir = dirOn(t, writer, 0)
	for i := range n {
		create(t, writer, dir, fmt.Sprint("f", i), 3000+i)
	}
	calls = new(atomic.Int64)
	j.meta[0] = countedHome{takenHome{j.homes[0]}, calls}
	for _, i := range []int{0, 2} {
		j.data[i] = countedData{j.data[i], calls}
	}
	reader = j.client(t, 1, nil)
	if _, _, err := reader.GetattrLeased(ctx, dir); err != nil {
		t.Fatal(err)
	}
	return j, writer, reader, dir, calls
}

// begin reads the first files, so that the next ones are read ahead.
func begin(t *testing.T, c *fsclient.Client, dir metadata.Ino) {
	t.Helper()
	for i := range first {
		openRead(t, c, dir, i)
	}
}

// first is the number of files that begin reads.
const first = 20

// openRead looks up file i, opens it, reads it and closes it.
func openRead(t *testing.T, c *fsclient.Client, dir metadata.Ino, i int) []byte {
	t.Helper()
	e, _, err := c.LookupLeased(ctx, dir, fmt.Sprint("f", i))
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Open(ctx, e.Ino)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 8192)
	n, err := f.Read(ctx, p, 0, fsclient.ReadOpts{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return p[:n]
}

// TestSmallFilesInOrder: small files of another node that are read one after the other cost far less than a call each.
func TestSmallFilesInOrder(t *testing.T) {
	const n = 400
	_, _, c, dir, calls := smallFiles(t, n)
	before := calls.Load()
	for i := range n {
		if got := openRead(t, c, dir, i); !bytes.Equal(got, pattern(3000+i)) {
			t.Fatalf("file %d: %d bytes, not those that were written", i, len(got))
		}
	}
	if took := calls.Load() - before; took > n/4 {
		t.Errorf("%d files took %d calls to other nodes", n, took)
	}
}

// TestSmallFilesOfALargeDirectory: the same for a directory that needs several listing requests, listed or not.
func TestSmallFilesOfALargeDirectory(t *testing.T) {
	const n, most = 2500, 600
	for name, list := range map[string]bool{"after lookups": false, "after a listing": true} {
		_, _, c, dir, calls := smallFiles(t, n)
		if list {
			for l, after, end := c.List(dir), "", false; !end; {
				es, last, err := l.Read(ctx, after, 1024)
				if err != nil {
					t.Fatal(err)
				}
				after, end = es[len(es)-1].Name, last
			}
		}
		before := calls.Load()
		for i := range most {
			if got := openRead(t, c, dir, i); !bytes.Equal(got, pattern(3000+i)) {
				t.Fatalf("%s: file %d: %d bytes, not those that were written", name, i, len(got))
			}
		}
		if took := calls.Load() - before; took > most/2 {
			t.Errorf("%s: %d files took %d calls to other nodes", name, most, took)
		}
	}
}

// TestReadAheadAndChanged: a file that another node changes between its read-ahead and its open is read again.
func TestReadAheadAndChanged(t *testing.T) {
	const n = 60
	_, writer, c, dir, _ := smallFiles(t, n)
	begin(t, c, dir)
	want := bytes.Repeat([]byte{1}, 3000)
	for i := first; i < n; i++ {
		e, err := writer.Lookup(ctx, dir, fmt.Sprint("f", i))
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Open(ctx, e.Ino) // keeps it from being idle
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.WriteFile(ctx, *e.Attr, want, 0); err != nil { // in place; its home recalls the attributes:
			t.Fatal(err)
		}
		c.Revoke([]metadata.LeaseKey{{Ino: e.Ino}})
		if got := openRead(t, c, dir, i); !bytes.Equal(got[:3000], want) {
			t.Fatalf("file %d: old bytes", i)
		}
		if err := f.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReadAheadAndWritten: a reader sees what this node writes to a file that was read ahead.
func TestReadAheadAndWritten(t *testing.T) {
	const n = 60
	_, _, c, dir, _ := smallFiles(t, n)
	begin(t, c, dir)
	for i := first; i < n; i++ {
		e, _, err := c.LookupLeased(ctx, dir, fmt.Sprint("f", i))
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Open(ctx, e.Ino)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(ctx, []byte("new"), 0); err != nil {
			t.Fatal(err)
		}
		if got := openRead(t, c, dir, i); !bytes.Equal(got[:3], []byte("new")) {
			t.Fatalf("file %d: %q", i, got[:3])
		}
		if err := f.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReadAheadAndRecalledLate: an open that saw a change by another node reads that change, even if the lease recall
// is still in flight.
func TestReadAheadAndRecalledLate(t *testing.T) {
	const n = 60
	_, writer, c, dir, _ := smallFiles(t, n)
	begin(t, c, dir)
	want := bytes.Repeat([]byte{1}, 3000)
	for i := first; i < n; i++ {
		e, err := writer.Lookup(ctx, dir, fmt.Sprint("f", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.WriteFile(ctx, *e.Attr, want, 0); err != nil {
			t.Fatal(err)
		}
		f, err := c.OpenToMap(ctx, e.Ino) // always asks the home
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 3000)
		if _, err := f.Read(ctx, p, 0, fsclient.ReadOpts{}); err != nil || !bytes.Equal(p, want) {
			t.Fatalf("file %d: old bytes, %v", i, err)
		}
		if err := f.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// slowHome delays its reply to OpenAhead until it is allowed, and counts the files closed before that.
type slowHome struct {
	countedHome
	may    chan struct{}
	closed *atomic.Int64
}

func (h slowHome) OpenAhead(ctx context.Context, by metadata.Holder, files []metadata.OpenAhead) ([]metadata.Attr, metadata.Run, error) {
	<-h.may
	return h.countedHome.OpenAhead(ctx, by, files)
}

func (h slowHome) Closed(ctx context.Context, by metadata.Holder, files []metadata.Opened) error {
	select {
	case <-h.may:
	default:
		h.closed.Add(int64(len(files)))
	}
	return h.countedHome.Closed(ctx, by, files)
}

// TestReadAheadOfASlowHome: a reader does not wait for long, and a file that is being opened ahead is not reported as
// closed, since the home might open it afterwards, for ever.
func TestReadAheadOfASlowHome(t *testing.T) {
	const n = 60
	j, _, _, dir, calls := smallFiles(t, n)
	home := slowHome{countedHome{takenHome{j.homes[0]}, calls}, make(chan struct{}), new(atomic.Int64)}
	j.meta[0] = home
	c := j.client(t, 1, nil)
	if _, _, err := c.GetattrLeased(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for i := range n { // all are read, with or without read-ahead
		if got := openRead(t, c, dir, i); !bytes.Equal(got, pattern(3000+i)) {
			t.Fatalf("file %d: %d bytes, not those that were written", i, len(got))
		}
	}
	if n := home.closed.Load(); n > 0 {
		t.Errorf("%d files closed before the home had answered", n)
	}
	close(home.may)
}

// TestReadAheadAndUnlinked: files that were read ahead and that another node unlinked release their space.
func TestReadAheadAndUnlinked(t *testing.T) {
	const n = 60
	j, writer, c, dir, _ := smallFiles(t, n)
	begin(t, c, dir)
	for i := range n {
		e, err := writer.Unlink(ctx, dir, fmt.Sprint("f", i))
		if err != nil {
			t.Fatal(err)
		}
		c.Revoke([]metadata.LeaseKey{{Ino: e.Ino}, {Ino: dir, Name: e.Name}})
	}
	j.noObjects(t)
}
