package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

func manyOf(files []metadata.Attr) ([]datapath.RangeRead, []byte) {
	rs, n := make([]datapath.RangeRead, len(files)), int64(0)
	for i, a := range files {
		rs[i] = datapath.RangeRead{Ino: a.Ino, Len: a.Size}
		n += a.Size
	}
	return rs, make([]byte, n)
}

// TestReadMany: one call returns several remote files from their objects; a missing one fails alone.
func TestReadMany(t *testing.T) {
	t.Parallel()
	c, far := remoteSamples(t)
	status := func() (calls, sent int64) {
		s := c.Nodes[1].Status(context.Background()).RPC
		return s.Requests[wire.OpReadMany], s.FileOut
	}
	calls, sent := status()
	far = append(far, metadata.Attr{Ino: metadata.SealedIno(far[0].Ino.Dataset(), 0, 1<<20), Size: sampleSize})
	rs, buf := manyOf(far)
	if err := c.Nodes[0].Client.ReadMany(context.Background(), 1, rs, buf); err != nil {
		t.Fatal(err)
	}
	for i := range rs {
		r := &rs[i]
		switch {
		case i == len(rs)-1:
			if !errors.Is(r.Err, syscall.EAGAIN) || len(r.Data) > 0 {
				t.Errorf("a file without an object: %v, want EAGAIN", r.Err)
			}
		case r.Err != nil || len(r.Data) != sampleSize || r.Data[0] == 0 || !bytes.Equal(r.Data, bytes.Repeat(r.Data[:1], sampleSize)):
			t.Errorf("%v: %d bytes, %v", r.Ino, len(r.Data), r.Err)
		}
	}
	after, out := status()
	if want := int64(len(far)-1) * sampleSize; after-calls != 1 || out-sent != want {
		t.Errorf("%d calls, %d bytes sent from files, want 1 and %d", after-calls, out-sent, want)
	}
}

// BenchmarkReadMany reads ranges of remote files one by one and in batches; an op is a file.
func BenchmarkReadMany(b *testing.B) {
	c, far := remoteSamples(b)
	for len(far) < 32 {
		far = append(far, far...)
	}
	far = far[:32]
	for _, size := range []int64{4 << 10, 32 << 10, sampleSize} {
		rs, buf := manyOf(far)
		for i := range rs {
			rs[i].Len = size
		}
		measure := func(name string, step int, read func(i int) error) {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				b.SetBytes(size)
				start := processor(b)
				for i := 0; i < b.N; i += step {
					if err := read(i % len(far)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((processor(b)-start).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
			})
		}
		measure("single", 1, func(i int) error {
			_, err := c.Nodes[0].Client.ReadFile(context.Background(), far[i], buf[:size], 0)
			return err
		})
		measure("batch", len(rs), func(int) error { return c.Nodes[0].Client.ReadMany(context.Background(), 1, rs, buf) })
	}
}

// processor returns the processor time of this process.
func processor(t testing.TB) time.Duration {
	t.Helper()
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
