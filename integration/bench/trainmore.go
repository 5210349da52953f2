package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/bivouacfs/bivouac/integration/slowpfs"
)

var trainOverflowFigure = figure{
	name:   "train-overflow",
	memory: 2 << 30,
	about:  "the same with room for 56 % of the files; Bivouac stages a plain tar, whose other members it reads from the source; the source itself is read as a directory",
	run:    trainOverflow,
}

func trainOverflow(ctx context.Context, b *bench) (err error) {
	sc, err := newSchool(ctx, b, 2048)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sc.close()) }()
	if err := sc.set.archive(filepath.Join(sc.s.under, "tree"), filepath.Join(sc.s.under, "set.tar")); err != nil {
		return err
	}
	const page = 4096
	for _, s := range sc.set.sizes {
		sc.room += (s + page - 1) / page * page
	}
	sc.room = sc.room / nodes * 56 / 100
	ways := []way{
		{name: wayChunk, rows: "5", source: "set.tar", sampler: "chunk", ready: readable, needs: []string{needPlan, needModule}},
		{name: wayNoPlan, source: "set.tar", sampler: "torch", ready: readable},
		{name: armDirect, sampler: "torch", dirs: sc.s.trees()},
	}
	last := make(map[string]outcome)
	err = sc.compare(ctx, ways, func(w way, o outcome) error {
		last[w.name] = o
		b.take("5 requests to the source, steady epochs", "of the files", w.name,
			o.perEpoch(func(e epochSeen) float64 { return float64(e.source.Total().Ops) })/float64(len(sc.set.sizes)))
		b.aim("5 requests to the source, steady epochs", "of the files", "<= 0.1")
		b.take("5 wait for a batch, 99 % quantile, steady epochs", "ms", w.name, 1000*quantile(o.waits(1), 0.99))
		b.aim("5 wait for a batch, 99 % quantile, steady epochs", "ms", "<= 0.3")
		b.take("bytes read of the source, steady epochs", "of the dataset", w.name,
			o.perEpoch(func(e epochSeen) float64 { return float64(e.source[slowpfs.Read].Bytes) })/float64(sc.set.total))
		b.take("processors busy", "%", w.name, 100*o.perEpoch(func(e epochSeen) float64 { return e.busy }))
		b.take("steady epoch", "s", w.name, o.perEpoch(func(e epochSeen) float64 { return e.seconds }))
		b.take("first batch", "s", w.name, o.first)
		b.take("bytes read of the source, first epoch", "of the dataset", w.name, float64(o.epochs[0].source[slowpfs.Read].Bytes)/float64(sc.set.total))
		return nil
	})
	return errors.Join(err, sc.simulated(last))
}

// archive makes a tar of the set in dir.
func (s images) archive(dir, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(f, 1<<20)
	w := tar.NewWriter(buf)
	for i, size := range s.sizes {
		h := &tar.Header{Name: s.path(i), Mode: 0o644, Size: size, ModTime: time.Unix(1_700_000_000, 0), Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if err = w.WriteHeader(h); err != nil {
			break
		}
		if err = addFile(w, filepath.Join(dir, s.path(i))); err != nil {
			break
		}
	}
	if err = errors.Join(err, w.Close(), buf.Flush(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func addFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	_, err = io.Copy(w, f)
	return err
}

var trainCutFigure = figure{
	name:   "train-cut",
	memory: 2 << 30,
	about: "the same, where one node's link is cut to a tenth in the middle of the second epoch; with replicas=2, so that reads can take another place, beside no replicas; " +
		"samples in a second from then on",
	run: trainCut,
}

// cutNode is the node whose link is cut.
const cutNode = nodes - 1

func trainCut(ctx context.Context, b *bench) (err error) {
	sc, err := newSchool(ctx, b, 2048)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sc.close()) }()
	perEpoch := (len(sc.set.sizes)/nodes + sc.t.batch - 1) / sc.t.batch
	var cut time.Time
	stepped := func(n int) error {
		if n != perEpoch*3/2 {
			return nil
		}
		cut = time.Now()
		return sc.net.Limit(cutNode, trainLink/10)
	}
	ways := []way{
		{name: waySelect, rows: "7", source: "tree", options: ",replicas=2", sampler: "torch", ready: sealed, stepped: stepped},
		{name: wayNoPlan, source: "tree", sampler: "torch", ready: sealed, stepped: stepped},
	}
	return sc.compare(ctx, ways, func(w way, o outcome) error {
		samples := (perEpoch*sc.t.epochs - perEpoch*3/2) * sc.t.batch * nodes
		b.take("7 samples in a second, with one link cut to a tenth", "/s", w.name, float64(samples)/o.ended.Sub(cut).Seconds())
		b.aim("7 samples in a second, with one link cut to a tenth", "/s", ">= 2")
		b.take("bytes read of the source, steady epochs", "of the dataset", w.name,
			o.perEpoch(func(e epochSeen) float64 { return float64(e.source[slowpfs.Read].Bytes) })/float64(sc.set.total))
		return sc.net.Limit(cutNode, trainLink)
	})
}
