package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

var writeFigure = figure{
	name:   "write",
	memory: 2 << 30,
	about: "one process on node 0 makes a file, writes it in pieces, one behind the other, and closes it: on its own node, striped over four, or appending to one that another node has; " +
		"beside the disk's directory (native), and the least that a FUSE server can do, which writes each request to a file there; processor time is of the writer and all servers",
	run: writes,
}

// writeCase is one way to write a file.
type writeCase struct {
	row   string
	size  int // of a piece
	n     int
	flags int
	dir   string // in scratch of the job
}

func writes(ctx context.Context, b *bench) error {
	raw, err := newRawSink(b)
	if err != nil {
		return err
	}
	defer raw.close()
	cases, err := b.writeCases()
	if err != nil {
		return err
	}
	for _, c := range cases {
		side := func(name, dir string, servers []int) arm {
			return arm{name, func(context.Context, int) error { return b.writeOnce(c, name, dir, servers) }}
		}
		err := b.interleave(ctx,
			side(armBivouac, c.dir, b.camp.pids()),
			side(armNative, b.home, nil),
			side(armRaw, raw.dir, []int{raw.cmd.Process.Pid}))
		if err != nil {
			return fmt.Errorf("%s: %w", c.row, err)
		}
	}
	return nil
}

func (b *bench) writeCases() ([]writeCase, error) {
	striped, err := b.camp.fresh(0, 0)
	if err != nil {
		return nil, err
	}
	local, err := b.camp.fresh(0, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Setxattr(local, "user.bivouac.layout", []byte("local"), 0); err != nil {
		return nil, fmt.Errorf("layout of %s: %w", local, err)
	}
	far, err := b.camp.away(0)
	if err != nil {
		return nil, err
	}
	return []writeCase{
		{"1 MiB writes, local", piece, b.amount(1024), 0, local},
		{"1 MiB writes, striped", piece, b.amount(1024), 0, striped},
		{"4 KiB writes, local", 4096, b.amount(20_000), 0, local},
		{"4 KiB writes, striped", 4096, b.amount(20_000), 0, striped},
		{"100-byte appends, home on another node", 100, b.amount(20_000), os.O_APPEND, far},
	}, nil
}

func (b *bench) writeOnce(c writeCase, name, dir string, servers []int) error {
	path := filepath.Join(dir, "pieces")
	w, err := spawn("piece-write", path, strconv.Itoa(c.size), strconv.Itoa(c.n), strconv.Itoa(c.flags))
	if err != nil {
		return err
	}
	used, err := charged(servers, func() (usage, error) { return together([]*child{w}) })
	if err == nil {
		b.take(c.row, "/s", name, float64(c.n)/used.wall.Seconds())
		if name != armNative { // the kernel's minimum cost is raw FUSE's
			b.take(c.row+", processor time", "us", name, used.micros(c.n))
		}
	}
	return errors.Join(err, os.Remove(path))
}

// pieceWrite is worker code: it writes n pieces to a new file, and closes it.
func pieceWrite(path string, size, n, flags int) error {
	p := noise(rand.New(rand.NewPCG(3, 4)), int64(size))
	return timed(func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|flags, 0o644)
		if err != nil {
			return err
		}
		for range n {
			if _, err := f.Write(p); err != nil {
				_ = f.Close() // the write's error is returned
				return err
			}
		}
		return f.Close()
	})
}

// pieceWorker is pieceWrite with arguments as strings.
func pieceWorker(path string, args []string) error {
	var v [3]int
	for i := range v {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			return err
		}
		v[i] = n
	}
	return pieceWrite(path, v[0], v[1], v[2])
}
