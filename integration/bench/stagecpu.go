package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

var stageCPUFigure = figure{
	name:   "stage-cpu",
	memory: 4 << 30,
	about: "the same tar from memory, without limits: rate, and processor time for each byte (of all daemons, beside that of tar), " +
		"stores and target in memory or on the disk",
	run: stageCPU,
}

func stageCPU(ctx context.Context, b *bench) (err error) {
	shm, err := os.MkdirTemp("/dev/shm", "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(shm)) }()
	size, err := archive{"set.tar", b.amount(10_000), 107_374}.write(shm)
	if err != nil {
		return err
	}
	file := filepath.Join(shm, "set.tar")
	if err := readTwice(file); err != nil {
		return err
	}
	var arms []arm
	for _, where := range []struct{ name, dir string }{{"memory", shm}, {"disk", b.home}} {
		arms = append(arms,
			arm{armBivouac, func(ctx context.Context, _ int) error {
				s, err := b.stageIn(ctx, filepath.Join(where.dir, "job"), file, nil)
				b.takeSpeed(where.name, armBivouac, size, s.sealed, s.cpu)
				return err
			}},
			arm{armTar, func(ctx context.Context, _ int) error {
				dir := filepath.Join(where.dir, "tar")
				began := time.Now()
				cpu, err := untar(ctx, file, dir)
				b.takeSpeed(where.name, armTar, size, time.Since(began), cpu)
				return errors.Join(err, os.RemoveAll(dir))
			}})
	}
	err = b.interleave(ctx, arms...)
	b.aim("memory, processor", "ns/byte", "<= 1.5")
	return err
}

// readTwice reads a file twice, so that the kernel marks its pages active: a later reader does not pay for that.
func readTwice(file string) error {
	for range 2 {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		if _, err = io.Copy(struct{ io.Writer }{io.Discard}, f); errors.Join(err, f.Close()) != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

func (b *bench) takeSpeed(where, arm string, size int64, took, cpu time.Duration) {
	if took <= 0 {
		return // it failed
	}
	b.take(where+", processor", "ns/byte", arm, float64(cpu.Nanoseconds())/float64(size))
	b.take(where+", rate", "MB/s", arm, float64(size)/1e6/took.Seconds())
}
