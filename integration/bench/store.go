package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

// storeWorker runs the operations of pebbleWorker on a node's store, by direct calls: the cost of an operation at its
// home without the call to it.
func storeWorker(op, dir, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	s, err := pebblestore.Open(pebblestore.Config{Dir: dir})
	if err != nil {
		return err
	}
	ctx := context.Background()
	name := func(i int) string { return "p0-" + strconv.Itoa(i) }
	create := func(i int) error {
		_, err := s.Create(ctx, metadata.RootIno, name(i), metadata.New{Mode: syscall.S_IFREG | 0o644})
		return err
	}
	do := map[string]func(i int) error{
		"create": create,
		"stat":   func(i int) error { _, err := s.Lookup(ctx, metadata.RootIno, name(i)); return err },
		"unlink": func(i int) error { _, err := s.Unlink(ctx, metadata.RootIno, name(i)); return err },
	}[op]
	if do == nil {
		return fmt.Errorf("unknown work %q: %w", op, syscall.EINVAL)
	}
	if op != "create" {
		err = times(n, create)
	}
	return errors.Join(err, timed(func() error { return times(n, do) }), s.Close())
}
