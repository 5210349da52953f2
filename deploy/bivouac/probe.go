package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/simulate"
	"github.com/bivouacfs/bivouac/metadata"
)

// The bounds of a probe.
const (
	probeFiles   = 5000
	probeReaders = 16
	probeTime    = 3 * time.Second // for each part
)

// probeFor measures the properties of a device that are not set by flags.
func probeFor(c *cobra.Command, device, dir string, d *simulate.Device) error {
	if dir == "" {
		return nil
	}
	p, err := probe(c.Context(), dir)
	if err != nil {
		return fmt.Errorf("probe of %s: %w", dir, err)
	}
	if device == "source" { // a file takes three requests there
		p.Latency /= 3
	}
	fmt.Fprintf(c.ErrOrStderr(), "bivouac: %s, measured on this node: %s/s with %d readers, %v of latency\n", dir, metadata.FormatBytes(p.Bandwidth), probeReaders,
		p.Latency.Round(time.Microsecond))
	if !c.Flags().Changed(device + "-latency") {
		d.Latency = p.Latency
	}
	if !c.Flags().Changed(device + "-bandwidth") {
		d.Bandwidth = p.Bandwidth
	}
	return nil
}

// probe reads files below dir: first one byte of each with one reader, then whole files with several.
func probe(ctx context.Context, dir string) (d simulate.Device, err error) {
	files, err := someFiles(ctx, dir)
	if err != nil {
		return d, err
	}
	rand.Shuffle(len(files), func(a, b int) { files[a], files[b] = files[b], files[a] })
	var took []time.Duration
	for began := time.Now(); len(took) < min(64, len(files)) && time.Since(began) < probeTime; {
		at := time.Now()
		if _, err := readCold(ctx, files[len(took)], 1); err != nil {
			return d, err
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	d.Latency = took[len(took)/2]
	bytes, began := atomic.Int64{}, time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for r := range probeReaders {
		g.Go(func() error {
			for i := r; i < len(files) && time.Since(began) < probeTime; i += probeReaders {
				n, err := readCold(ctx, files[i], 1<<62)
				if bytes.Add(n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	d.Bandwidth = int64(float64(bytes.Load()) / time.Since(began).Seconds())
	if err == nil && d.Bandwidth == 0 {
		err = errors.New("its files are empty: name a directory with data")
	}
	return d, err
}

// someFiles finds regular files.
func someFiles(ctx context.Context, dir string) (files []string, err error) {
	began := time.Now()
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && path == dir:
			return err
		case err != nil: // a part that this user may not read
			return fs.SkipDir
		case ctx.Err() != nil:
			return ctx.Err()
		case e.Type().IsRegular():
			files = append(files, path)
		}
		if len(files) == probeFiles || len(files) > 0 && time.Since(began) > probeTime {
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("no files are below it: name a directory with files of the dataset")
	}
	return files, err
}

// readCold reads up to n bytes of a file, bypassing the page cache of this node, for a few seconds at most.
func readCold(ctx context.Context, path string, n int64) (read int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()                                         // read only
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // only advice
	buf, began := make([]byte, min(n, 1<<20)), time.Now()
	for read < n && ctx.Err() == nil && time.Since(began) < probeTime {
		k, err := f.Read(buf)
		if read += int64(k); errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return read, err
		}
	}
	return read, ctx.Err()
}
