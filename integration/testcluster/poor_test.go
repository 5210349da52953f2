package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// poorConn is a connection that breaks after a number of bytes.
type poorConn struct {
	net.Conn
	left atomic.Int64
	slow time.Duration // delay of each read
	end  func(net.Conn) error
}

const poorPiece = 16 << 10

func (c *poorConn) Read(p []byte) (int, error) {
	if c.slow > 0 {
		<-time.After(c.slow)
		p = p[:min(len(p), poorPiece)]
	}
	if c.left.Load() <= 0 {
		return 0, c.end(c.Conn)
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left.Load())])
	c.left.Add(-int64(n))
	return n, err
}

// TestPoorWire: peers that are slow, disconnect, or reset in the middle of a message cause no error and no wrong
// byte, and leave nothing behind at either end.
func TestPoorWire(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex // guards r
	bytesLeft := func(most int64) int64 {
		mu.Lock()
		defer mu.Unlock()
		return 1 + r.Int64N(most)
	}
	reset := func(c net.Conn) error {
		_ = c.(*net.TCPConn).SetLinger(0) // makes a reset likely; the outcome is the same without
		_ = c.Close()
		return syscall.ECONNRESET
	}
	c := Start(t, Config{Nodes: 4, Timing: daemon.Timing{Report: 30 * time.Millisecond, Down: Patience}})
	ms := c.Mount(t, 0, 1)
	if err := os.Mkdir(filepath.Join(ms[1].Scratch, "far"), 0o755); err != nil { // whose home is another node
		t.Fatal(err)
	}
	for _, way := range []struct {
		what string
		poor func(net.Conn) *poorConn
	}{
		{"slow", func(conn net.Conn) *poorConn {
			p := &poorConn{Conn: conn, slow: time.Millisecond}
			p.left.Store(1 << 60)
			return p
		}},
		{"half closed", func(conn net.Conn) *poorConn {
			p := &poorConn{Conn: conn, end: func(net.Conn) error { return io.EOF }}
			p.left.Store(bytesLeft(4 << 20))
			return p
		}},
		{"reset", func(conn net.Conn) *poorConn {
			p := &poorConn{Conn: conn, end: reset}
			p.left.Store(bytesLeft(4 << 20))
			return p
		}},
	} {
		t.Run(way.what, func(t *testing.T) {
			c.Tamper(0, func(_ int, conn net.Conn) net.Conn { return way.poor(conn) })
			before := c.Nodes[0].Peers().Stats().Lost
			var wg sync.WaitGroup
			for i := range 3 {
				f, err := os.OpenFile(filepath.Join(ms[0].Scratch, "far", fmt.Sprint(way.what, i)), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o644)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					w := &worker{file: f}
					for round := range 4 {
						if err := w.round(round); err != nil {
							t.Error(err)
						}
					}
					if err := f.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if lost := c.Nodes[0].Peers().Stats().Lost - before; lost == 0 && way.what != "slow" {
				t.Error("no call was lost: the connections were not so poor")
			}
			c.Tamper(0, nil)
			c.wantNoBuffers(t)
		})
	}
}

// badDisk is a disk with file errors while a flag is set.
type badDisk struct {
	chunkstore.FS
	fault atomic.Pointer[diskFault]
}

type diskFault struct {
	read, write error
}

func (d *badDisk) now() diskFault {
	if f := d.fault.Load(); f != nil {
		return *f
	}
	return diskFault{}
}

func (d *badDisk) Open(path string, flags int) (chunkstore.File, error) {
	f, err := d.FS.Open(path, flags)
	if err != nil {
		return nil, err
	}
	return &badFile{f, d}, nil
}

type badFile struct {
	chunkstore.File
	disk *badDisk
}

func (f *badFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.disk.now().read; err != nil {
		n, _ := f.File.ReadAt(p[:len(p)/2], off) // a partial read
		return n, err
	}
	return f.File.ReadAt(p, off)
}

func (f *badFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.disk.now().write; err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], off)
		return n, err
	}
	return f.File.WriteAt(p, off)
}

// TestBadDisk: an error of another node's disk is returned by the read or write that met it, and by no other; earlier
// data is readable when the disk works again.
func TestBadDisk(t *testing.T) {
	t.Parallel()
	disk := &badDisk{FS: chunkstore.Machine}
	c := Start(t, Config{Nodes: 2, Disk: func(i int) chunkstore.FS {
		if i == 1 {
			return disk
		}
		return nil
	}})
	m := c.Mount(t, 0)[0]
	f, err := os.OpenFile(filepath.Join(m.Scratch, "f"), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const chunk = 1 << 20
	old := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, chunk) }
	const chunks = 8 // on both nodes in turn
	for i := range chunks {
		if _, err := f.WriteAt(old(i), int64(i*chunk)); err != nil {
			t.Fatal(err)
		}
	}
	for _, no := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		disk.fault.Store(&diskFault{read: syscall.EIO, write: no})
		failed := 0
		for i := range chunks {
			got := make([]byte, chunk)
			_, err := f.ReadAt(got, int64(i*chunk))
			_, werr := f.WriteAt(old(i), int64(i*chunk))
			switch {
			case err == nil && werr == nil && bytes.Equal(got, old(i)): // on the working disk
			case errors.Is(err, syscall.EIO) && errors.Is(werr, no):
				failed++
			default:
				t.Errorf("chunk %d on a bad disk: read %v, write %v, want EIO and %v", i, err, werr, no)
			}
		}
		if failed != chunks/2 {
			t.Errorf("%d of %d chunks failed, want half", failed, chunks)
		}
		disk.fault.Store(nil)
		for i := range chunks {
			got := make([]byte, chunk)
			if _, err := f.ReadAt(got, int64(i*chunk)); err != nil || !bytes.Equal(got, old(i)) {
				t.Errorf("chunk %d on the disk that is well again: %v, as it was: %v", i, err, bytes.Equal(got, old(i)))
			}
		}
		c.wantNoBuffers(t)
	}
}

// TestShortObject: a node that has less of a sealed file than it should returns an error, never zeros.
func TestShortObject(t *testing.T) {
	t.Parallel()
	c, far := remoteSamples(t)
	a := far[0]
	if err := c.Nodes[1].Data().Truncate(context.Background(), a.Ino, sampleSize/2); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, sampleSize)
	if n, err := c.Nodes[0].Client.ReadFile(context.Background(), a, p, 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of half an object = %d bytes, %v, want EIO", n, err)
	}
	if n, err := c.Nodes[0].Client.ReadFile(context.Background(), a, p[:1000], 0); n != 1000 || err != nil {
		t.Errorf("read of what is there = %d bytes, %v", n, err)
	}
	c.wantNoBuffers(t)
}

// deafConn is a connection to a machine that has lost power: it delivers nothing and reports no error.
type deafConn struct {
	net.Conn
	closed chan struct{}
	once   *sync.Once
}

func (c *deafConn) Read([]byte) (int, error) {
	<-c.closed
	return 0, net.ErrClosed
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestSilentNode: a call to a node that is declared lost stops waiting.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 4})
	ctx := context.Background()
	a := put(t, c.Nodes[3], metadata.RootIno, "f", make([]byte, 1<<20), metadata.Layout{Kind: metadata.Local, Node: 3})
	a.Size = 1 << 20
	p := make([]byte, a.Size)
	if _, err := c.Nodes[0].Client.ReadFile(ctx, a, p, 0); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 100)
	c.Tamper(0, func(to int, conn net.Conn) net.Conn {
		if to != 3 {
			return conn
		}
		// The peer answers the handshake, and nothing after it.
		return &quietConn{deafConn: deafConn{conn, make(chan struct{}), new(sync.Once)}, asked: asked}
	})
	read := make(chan error, 1)
	go func() {
		_, err := c.Nodes[0].Client.ReadFile(ctx, a, p, 0)
		read <- err
	}()
	<-asked
	c.Cut(3)
	err := <-read
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("read = %v, want ECONNRESET or EHOSTDOWN, and no timeout", err)
	}
	if n := c.Nodes[0].Peers().Stats().TimedOut; n != 0 {
		t.Errorf("%d calls waited as long as they could", n)
	}
}

// quietConn goes deaf with the first frame after the handshake.
type quietConn struct {
	deafConn
	wrote atomic.Int64
	asked chan<- struct{}
}

// handshake is the number of bytes that a client writes for the handshake.
const handshake = wire.HelloSize + wire.ProofSize

func (c *quietConn) Write(p []byte) (int, error) {
	if c.wrote.Add(int64(len(p))) > handshake {
		c.asked <- struct{}{}
	}
	return c.Conn.Write(p)
}

func (c *quietConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.wrote.Load() > handshake { // also if it was read before
		return c.deafConn.Read(p)
	}
	return n, err
}
