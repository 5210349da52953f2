package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
)

var sumsFigure = figure{
	name: "checksums",
	about: "direct calls to a node's store of scratch data, in the page cache, by one thread; with checksums and without. A mount and a " +
		"network cost much more, so that what a process notices is less",
	run: sums,
}

const (
	armSums   = "checksums"
	armNoSums = "without"
	sumsSpan  = 64 << 20 // bytes of the object
	sumsUnit  = "MB per processor second"
)

// sumsCase is one way to use the store.
type sumsCase struct {
	row    string
	piece  int64
	random bool
	write  bool
	calls  int
}

var sumsCases = []sumsCase{
	{"1-MiB writes in sequence", 1 << 20, false, true, 512},
	{"1-MiB reads in sequence", 1 << 20, false, false, 512},
	{"random 4-KiB writes", 4 << 10, true, true, 40_000},
	{"random 4-KiB reads", 4 << 10, true, false, 40_000},
}

func sums(ctx context.Context, b *bench) error {
	stores := map[string]*chunkstore.Store{}
	for arm, memory := range map[string]int64{armSums: 0, armNoSums: -1} {
		dir := filepath.Join(b.home, "store-"+arm)
		s, err := chunkstore.Open(chunkstore.Config{Dirs: []string{dir}, Sums: memory})
		if err != nil {
			return err
		}
		defer func() { _ = errors.Join(s.Close(), os.RemoveAll(dir)) }() // the run's directory goes, too
		if err := useStore(ctx, s, sumsCase{piece: 1 << 20, write: true, calls: sumsSpan >> 20}); err != nil {
			return err
		}
		stores[arm] = s
	}
	for _, c := range sumsCases {
		c.calls = b.amount(c.calls)
		side := func(name string) arm {
			return arm{name, func(ctx context.Context, _ int) error {
				before := processorTime()
				err := useStore(ctx, stores[name], c)
				b.take(c.row, sumsUnit, name, float64(int64(c.calls)*c.piece)/1e6/(processorTime()-before).Seconds())
				return err
			}}
		}
		if err := b.interleave(ctx, side(armSums), side(armNoSums)); err != nil {
			return err
		}
		b.aim(c.row, sumsUnit, ">= 0.90")
	}
	return nil
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r) // it cannot fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// useStore makes the calls of a case.
func useStore(ctx context.Context, s *chunkstore.Store, c sumsCase) error {
	r := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, c.piece)
	for i := range p {
		p[i] = byte(i * 7)
	}
	for i := range c.calls {
		off := int64(i) * c.piece % sumsSpan
		if c.random {
			off = r.Int64N(sumsSpan/c.piece) * c.piece
		}
		if c.write {
			if err := s.WriteAt(ctx, metadata.FirstIno, p, off); err != nil {
				return err
			}
			continue
		}
		if n, err := s.ReadAt(ctx, metadata.FirstIno, p, off); err != nil || n != len(p) {
			return fmt.Errorf("read of %d bytes at %d: %d, %w", len(p), off, n, err)
		}
	}
	return nil
}
