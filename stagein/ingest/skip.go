package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// skip leaves out the entry at path because of err, or returns err if that is not allowed.
func (s *Share) skip(path string, err error) error {
	if err == nil || s.cfg.Plan.OnError != stagein.OnErrorSkip || !skippable(err) {
		return err
	}
	b, e := json.Marshal(stagein.Skip{Path: source.Name(path), Error: err.Error()})
	if e != nil {
		return e
	}
	s.count.skipped.Add(1)
	return s.rec.Skip(s.cfg.Skipped, append(b, '\n'))
}

// skippable reports whether err concerns the source rather than the job.
func skippable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var put *putError
	if errors.As(err, &put) {
		return false
	}
	ofJob := []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EHOSTDOWN, syscall.ESHUTDOWN, syscall.ECANCELED, syscall.EPROTO, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, errPartly}
	return !slices.ContainsFunc(ofJob, func(e error) bool { return errors.Is(err, e) })
}

// errPartly reports that an archive that has changed cannot be left out.
var errPartly = errors.New("some of its members may be staged already, so on-error=skip cannot leave it out: stage a copy that nothing writes to")

// putError is a failure to store data on a node.
type putError struct {
	node metadata.NodeID
	err  error
}

func (e *putError) Error() string { return e.err.Error() }
func (e *putError) Unwrap() error { return e.err }

// takeBack removes the stored part of an object that has no put in flight.
func (s *Share) takeBack(ctx context.Context, o *stagein.Object) error {
	for _, node := range o.Nodes {
		if err := s.cfg.Target.Remove(ctx, node, o.Ino); err != nil {
			return fmt.Errorf("remove object %v on %s: %w", o.Ino, s.host(node), err)
		}
	}
	return nil
}

// listed refuses, or skips, names in the list that are in no archive.
func (s *Share) listed() error {
	o := &s.cfg.Plan.Options
	missing := s.sel.Unseen()
	if o.OnError != stagein.OnErrorSkip {
		return stagein.Unlisted(o.List, missing)
	}
	for _, m := range missing {
		if err := s.skip(m, stagein.NotThere(o.List)); err != nil {
			return err
		}
	}
	return nil
}

// wants reports whether an item of an archive is wanted, and sets its path in the dataset.
func (s *Share) wants(it *source.Item) bool {
	if !s.sel.Wanted(it) {
		return false
	}
	it.MoveUnder(string(s.cfg.Plan.Under))
	return true
}
