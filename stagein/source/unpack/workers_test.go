package unpack

import (
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// TestWorkers: a format that cannot be cut has one worker.
func TestWorkers(t *testing.T) {
	large, little := source.NewPool(64, 1<<20), source.NewPool(64, 1<<10)
	large.Help, little.Help = make(chan struct{}, 4), make(chan struct{}, 4)
	lone := source.NewPool(64, 1<<20)
	lone.Help = make(chan struct{}, 1)
	for _, c := range []struct {
		kind source.Kind
		pool *source.Pool
		want int
	}{
		{source.TarGzip, large, 4}, {source.TarZstd, large, 4}, {source.TarBzip2, large, 1}, {source.TarXz, large, 4},
		{source.TarGzip, little, 4}, {source.TarGzip, lone, 1},
	} {
		if got := workers(c.kind, c.pool); got != c.want {
			t.Errorf("workers(%s, %d bytes) = %d, want %d", c.kind, c.pool.Room()*c.pool.Size(), got, c.want)
		}
	}
}

// processor is the CPU time of this process.
func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
