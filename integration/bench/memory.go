package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

var memoryFigure = figure{
	name: "memory",
	about: "the most resident memory of any daemon while 64 threads on node 0 read a large file that is striped over four nodes, in pieces of 1 MiB; beside the sum " +
		"of what it says at its start that it takes",
	run: memory,
}

const (
	armFormula = "formula"
	readers    = 64
)

func memory(ctx context.Context, b *bench) error {
	d, err := b.staged(ctx)
	if err != nil {
		return err
	}
	mount := b.camp.state.Nodes[0].Mount
	for _, how := range []string{"cached", "direct"} {
		row := "64 readers, " + how
		err := b.interleave(ctx, arm{armBivouac, func(context.Context, int) error {
			if err := forget(mount); err != nil {
				return err
			}
			peak, err := peakOf(b.camp.pids(), func() error {
				c, err := spawn("many-read", filepath.Join(mount, d.big), how)
				if err != nil {
					return err
				}
				_, err = together([]*child{c})
				return err
			})
			b.take(row, "MiB", armBivouac, peak)
			return err
		}}, arm{armFormula, func(context.Context, int) error {
			k, err := b.camp.counters(0)
			b.take(row, "MiB", armFormula, float64(k.Memory.Total())/(1<<20))
			return err
		}})
		if err != nil {
			return err
		}
		b.aim(row, "MiB", "<= 1.0")
	}
	return nil
}

// peakOf returns the peak resident memory of any of the processes during work, in MiB.
func peakOf(pids []int, work func() error) (float64, error) {
	for _, pid := range pids {
		if err := os.WriteFile(proc(pid, "clear_refs"), []byte("5"), 0); err != nil { // resets VmHWM
			return 0, err
		}
	}
	if err := work(); err != nil {
		return 0, err
	}
	most := 0.0
	for _, pid := range pids {
		kib, err := highWater(pid)
		if err != nil {
			return 0, err
		}
		most = max(most, float64(kib)/1024)
	}
	return most, nil
}

func proc(pid int, file string) string { return filepath.Join("/proc", strconv.Itoa(pid), file) }

// highWater returns the VmHWM of a process, in KiB.
func highWater(pid int) (int64, error) {
	b, err := os.ReadFile(proc(pid, "status"))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			return strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(v), []byte("kB")))), 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d has no VmHWM: %w", pid, syscall.ENODATA)
}

// manyRead is worker code: each thread reads the file from a different offset, and all threads together read it
// twice.
func manyRead(path string, direct bool) error {
	flags := os.O_RDONLY
	if direct {
		flags |= syscall.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	pieces := st.Size() / piece
	return timed(func() error {
		errs := make([]error, readers)
		var wg sync.WaitGroup
		for t := range int64(readers) {
			wg.Go(func() {
				p, err := unix.Mmap(-1, 0, piece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
				for i := int64(0); i < 2*pieces/readers && err == nil; i++ {
					_, err = unix.Pread(int(f.Fd()), p, (t*pieces/readers+i)%pieces*piece)
				}
				errs[t] = err
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}
