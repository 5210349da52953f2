package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

var coldRandomFigure = figure{
	name: "coldrandom",
	about: "row 6: reads of 4 KiB at random places of a file in scratch that is whole on node 1, each place once, by one process on node 0 whose mount has no pages of it; beside a " +
		"client of package rpc that asks a server of it for the same pieces, without FUSE, and one process on node 1, which has the file: through FUSE, without a call",
	run: coldRandom,
}

// armHere reads a local file. A remote read takes at least as long as that plus a bare RPC.
const armHere = "local"

const (
	coldRandomSize  = 64 << 20
	coldRandomReads = 4000
)

func coldRandom(ctx context.Context, b *bench) error {
	made, err := b.camp.fresh(1, 1)
	if err != nil {
		return err
	}
	if err := unix.Setxattr(made, "user.bivouac.layout", []byte("local"), 0); err != nil {
		return fmt.Errorf("layout of %s: %w", made, err)
	}
	size, reads := b.amount(coldRandomSize>>20)<<20, b.amount(coldRandomReads)
	if _, err := alone("stream-write", filepath.Join(made, "f"), strconv.Itoa(size)); err != nil {
		return err
	}
	path := filepath.Join(b.camp.same(made, 0), "f")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var pieces []rpcFile
	for _, off := range randomPlaces(int64(size), reads) {
		pieces = append(pieces, rpcFile{Ino: metadata.Ino(st.Ino), Size: 4096, Off: off})
	}
	const rate, calls = "6 random 4 KiB, cold, remote", "6 calls to other nodes for each read"
	mount := func(node int) string { return b.camp.state.Nodes[node].Mount }
	err = b.interleave(ctx,
		arm{armBivouac, func(ctx context.Context, _ int) error {
			if err := errors.Join(forget(mount(0)), b.expire(ctx)); err != nil {
				return err
			}
			var u usage
			n, err := b.camp.counted(func() (err error) {
				u, err = alone("cold-random", path, strconv.Itoa(reads))
				return err
			})
			b.take(rate, "/s", armBivouac, float64(reads)/u.wall.Seconds())
			b.take(calls, "", armBivouac, float64(n)/float64(reads))
			return err
		}},
		arm{armBare, func(context.Context, int) error {
			c, err := b.rpcReads(pieces, b.camp.store(1), 1)
			b.take(rate, "/s", armBare, c.rate(reads))
			return err
		}},
		arm{armHere, func(context.Context, int) error {
			if err := forget(mount(1)); err != nil {
				return err
			}
			u, err := alone("cold-random", filepath.Join(made, "f"), strconv.Itoa(reads))
			b.take(rate, "/s", armHere, float64(reads)/u.wall.Seconds())
			return err
		}})
	b.aim(rate, "/s", ">= 0.60")
	b.want(calls, "", "1")
	return err
}

// randomPlaces returns the offsets of n different blocks of a file.
func randomPlaces(size int64, n int) (offs []int64) {
	for _, i := range rand.New(rand.NewPCG(7, 8)).Perm(int(size / 4096))[:n] {
		offs = append(offs, int64(i)*4096)
	}
	return offs
}

// coldRandomRead is worker code.
func coldRandomRead(path string, n int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	p := make([]byte, 4096)
	return errors.Join(timed(func() error {
		for _, off := range randomPlaces(st.Size, n) {
			if _, err := unix.Pread(fd, p, off); err != nil {
				return err
			}
		}
		return nil
	}), unix.Close(fd))
}
