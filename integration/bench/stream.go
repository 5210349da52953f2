package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

var streamFigure = figure{
	name:   "stream",
	memory: 2 << 30,
	about: "one process on node 0 reads or writes a large file in pieces of 1 MiB, striped over four nodes or (local) on its own (a sealed one of 60 MiB, again and again); native is one process with as many bytes in files on " +
		"the disk, bare sockets are a client that gets the same bytes by sendfile from a server without FUSE, or sends them to one that writes them to four files on the disk; " +
		"raw FUSE is the least that a FUSE server can do, which writes each request to a file on the disk",
	run: stream,
}

const (
	armSockets = "bare sockets"
	piece      = 1 << 20
)

func stream(ctx context.Context, b *bench) error {
	d, err := b.staged(ctx)
	if err != nil {
		return err
	}
	mount := b.camp.state.Nodes[0].Mount
	objects, size, err := b.camp.stripe(filepath.Join(mount, d.big))
	if err != nil {
		return err
	}
	if err := b.streamReads(ctx, mount, d.big, objects, size); err != nil {
		return err
	}
	if err := b.streamLocalReads(ctx, d.medium); err != nil {
		return err
	}
	if err := b.streamWrites(ctx, size); err != nil {
		return err
	}
	return b.streamLocalWrites(ctx, size)
}

// stripe returns the objects of a striped file on all nodes.
func (c *camp) stripe(path string) (objects []string, size int64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	var have int64
	for n := range nodes {
		o := c.objects([]sample{{ino: metadata.Ino(st.Ino), node: n}})[0]
		if fi, err := os.Stat(o); err == nil {
			objects, have = append(objects, o), have+fi.Size()
		}
	}
	if have != st.Size {
		return nil, 0, fmt.Errorf("%s: %d of %d bytes are on the nodes: %w", path, have, st.Size, syscall.EIO)
	}
	return objects, st.Size, nil
}

func mbs(bytes int64, u usage) float64 { return float64(bytes) / 1e6 / u.wall.Seconds() }

func (b *bench) streamReads(ctx context.Context, mount, big string, objects []string, size int64) error {
	const row = "read, striped"
	one := func(arm string, args ...string) error {
		c, err := spawn(args...)
		if err != nil {
			return err
		}
		u, err := together([]*child{c})
		b.take(row, "MB/s", arm, mbs(size, u))
		return err
	}
	list := filepath.Join(b.home, "stripe.list")
	if err := writeLines(list, objects); err != nil {
		return err
	}
	err := b.interleave(ctx,
		arm{armBivouac, func(context.Context, int) error {
			if err := forget(mount); err != nil {
				return err
			}
			return one(armBivouac, "stream-read", filepath.Join(mount, big), "1")
		}},
		arm{armSockets, func(context.Context, int) error {
			c, err := b.bareReads(objects, 1)
			b.take(row, "MB/s", armSockets, mbs(size, c.usage))
			return err
		}},
		arm{armNative, func(context.Context, int) error { return one(armNative, "read", list) }})
	b.aim(row, "MB/s", ">= 0.50")
	return err
}

// localTimes is how often a medium file is read from front to back.
const localTimes = 20

// streamLocalReads reads a file on the node that has it whole; the disk's cache is warm.
func (b *bench) streamLocalReads(ctx context.Context, m sample) error {
	node := b.camp.state.Nodes[m.node]
	object := b.camp.objects([]sample{m})[0]
	if _, err := b.readAll([]string{object}, 1); err != nil {
		return err
	}
	const row = "read, local"
	times := b.amount(localTimes)
	side := func(arm, mount, path string) func(context.Context, int) error {
		return func(context.Context, int) error {
			if mount != "" {
				if err := forget(mount); err != nil {
					return err
				}
			}
			c, err := spawn("stream-read", path, strconv.Itoa(times))
			if err != nil {
				return err
			}
			u, err := together([]*child{c})
			b.take(row, "MB/s", arm, mbs(int64(times)*m.size, u))
			return err
		}
	}
	err := b.interleave(ctx,
		arm{armBivouac, side(armBivouac, node.Mount, filepath.Join(node.Mount, m.path))},
		arm{armNative, side(armNative, "", object)})
	b.aim(row, "MB/s", ">= 0.90")
	return err
}

func (b *bench) streamWrites(ctx context.Context, size int64) error {
	dir, err := b.camp.fresh(0, 0)
	if err != nil {
		return err
	}
	const row = "write, striped"
	err = b.interleave(ctx,
		arm{armBivouac, func(context.Context, int) error { return b.streamWrite(row, armBivouac, dir, size) }},
		arm{armSockets, func(context.Context, int) error {
			c, err := b.bareWrites(size)
			b.take(row, "MB/s", armSockets, mbs(size, c.usage))
			return err
		}},
		arm{armNative, func(context.Context, int) error { return b.streamWrite(row, armNative, b.home, size) }})
	b.aim(row, "MB/s", ">= 0.50")
	return err
}

func (b *bench) streamLocalWrites(ctx context.Context, size int64) error {
	dir, err := b.camp.fresh(0, 0)
	if err != nil {
		return err
	}
	if err := unix.Setxattr(dir, "user.bivouac.layout", []byte("local"), 0); err != nil {
		return fmt.Errorf("layout of %s: %w", dir, err)
	}
	raw, err := newRawSink(b)
	if err != nil {
		return err
	}
	defer raw.close()
	const row = "write, local"
	err = b.interleave(ctx,
		arm{armBivouac, func(context.Context, int) error { return b.streamWrite(row, armBivouac, dir, size) }},
		arm{armNative, func(context.Context, int) error { return b.streamWrite(row, armNative, b.home, size) }},
		arm{armRaw, func(context.Context, int) error { return b.streamWrite(row, armRaw, raw.dir, size) }})
	b.aim(row, "MB/s", ">= 0.80")
	return err
}

// streamWrite has one process write a file of size bytes in dir.
func (b *bench) streamWrite(row, arm, dir string, size int64) error {
	path := filepath.Join(dir, "stream")
	c, err := spawn("stream-write", path, strconv.FormatInt(size, 10))
	if err != nil {
		return err
	}
	u, err := together([]*child{c})
	b.take(row, "MB/s", arm, mbs(size, u))
	return errors.Join(err, os.Remove(path))
}

// streamRead is worker code: it reads the whole file, in pieces, repeatedly.
func streamRead(path string, times int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	p, fd := make([]byte, piece), int(f.Fd())
	return timed(func() error {
		for off := int64(0); times > 0; {
			n, err := unix.Pread(fd, p, off)
			if err != nil {
				return err
			}
			if off += int64(n); n == 0 {
				off, times = 0, times-1
			}
		}
		return nil
	})
}

// streamWrite is worker code: it writes a new file of this size, opened write-only as by cp and torch.save, and
// closes it.
func streamWrite(path string, size int64) error {
	p := noise(rand.New(rand.NewPCG(3, 4)), piece)
	return timed(func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		for left := size; left > 0; left -= int64(len(p)) {
			if _, err := f.Write(p[:min(left, piece)]); err != nil {
				_ = f.Close() // the write's error is returned
				return err
			}
		}
		return f.Close()
	})
}

var randomFigure = figure{
	name:  "random",
	about: "4 KiB reads at random places of a sealed file of 60 MiB that is whole on node 0, by 16 threads there; beside the same object on the disk; caches of the disk full",
	run:   random,
}

const (
	randomThreads = 16
	randomReads   = 20000 // per thread: some tenths of a second
)

func random(ctx context.Context, b *bench) error {
	d, err := b.staged(ctx)
	if err != nil {
		return err
	}
	m := d.medium
	if _, err := b.readAll(b.camp.objects([]sample{m}), 1); err != nil { // the disk's cache is warm from here on
		return err
	}
	node := b.camp.state.Nodes[m.node]
	for _, how := range []string{"pread", "mmap"} {
		side := func(arm, mount, path string) func(context.Context, int) error {
			return func(context.Context, int) error {
				if mount != "" {
					if err := forget(mount); err != nil {
						return err
					}
				}
				c, err := spawn("random-read", how, path, strconv.Itoa(b.amount(randomReads)))
				if err != nil {
					return err
				}
				u, err := together([]*child{c})
				b.take(how, "/s", arm, float64(randomThreads*b.amount(randomReads))/u.wall.Seconds())
				return err
			}
		}
		err := b.interleave(ctx,
			arm{armBivouac, side(armBivouac, node.Mount, filepath.Join(node.Mount, m.path))},
			arm{armNative, side(armNative, "", b.camp.objects([]sample{m})[0])})
		if err != nil {
			return err
		}
		b.aim(how, "/s", ">= 0.80")
	}
	return nil
}

// randomRead is worker code: each thread makes this many reads.
func randomRead(how, path string, reads int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	fd := int(f.Fd()) // only once: for a file on a mount, which can be polled, each Fd is a system call
	read := func(p []byte, off int64) error {
		_, err := unix.Pread(fd, p, off)
		return err
	}
	if how == "mmap" {
		m, err := unix.Mmap(fd, 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		defer unix.Munmap(m)
		read = func(p []byte, off int64) error {
			copy(p, m[off:])
			return nil
		}
	}
	return timed(func() error {
		errs := make([]error, randomThreads)
		var wg sync.WaitGroup
		for t := range randomThreads {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(t), 5))
				p := make([]byte, 4096)
				for i := 0; i < reads && errs[t] == nil; i++ {
					errs[t] = read(p, r.Int64N(st.Size()/4096)*4096)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

// streamWorker selects the worker code.
func streamWorker(op string, args []string) error {
	switch {
	case op == "stream-read" && len(args) == 2:
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return streamRead(args[0], n)
	case op == "stream-write" && len(args) == 2:
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		return streamWrite(args[0], n)
	case op == "random-read" && len(args) == 3:
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return randomRead(args[0], args[1], n)
	}
	return fmt.Errorf("unknown work %q %q: %w", op, args, syscall.EINVAL)
}
