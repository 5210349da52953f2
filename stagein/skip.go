package stagein

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Skip is something that could not be read and is left out of the dataset (OnErrorSkip). It is a line of JSON.
type Skip struct {
	Path  source.Name `json:"path"` // of the thing in the source, or of the archive
	Error string      `json:"error"`
}

// LeftOut returns the Skip for a record that makes no tree with the others, as manifest.BuildConfig's Leave has it.
func (p *Plan) LeftOut(r *manifest.Record, why error) Skip {
	in, at := p.Source, ""
	if n := int(r.From.Source); r.From.Off > 0 && n < len(p.Origins.Sources) {
		in = p.Origins.Sources[n].Path
	}
	if r.From.Off > 0 {
		at = fmt.Sprintf(" with its data at offset %d", r.From.Off)
	}
	return Skip{source.Name(r.Path), fmt.Sprintf("%s: member%s: %v", in, at, why)}
}

// skip leaves something out because of err; it returns err if that is not allowed.
func (s *Share) skip(path string, err error) error {
	if err == nil || s.cfg.Plan.OnError != OnErrorSkip || !skippable(err) {
		return err
	}
	b, e := json.Marshal(Skip{source.Name(path), err.Error()})
	if e != nil {
		return e
	}
	s.count.skipped.Add(1)
	return s.rec.skip(s.cfg.Skipped, append(b, '\n'))
}

// skippable reports whether err is about the source, and not about the job.
func skippable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var put *putError
	if errors.As(err, &put) {
		return false
	}
	for _, job := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EHOSTDOWN, syscall.ESHUTDOWN, syscall.ECANCELED, syscall.EPROTO, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, job) {
			return false
		}
	}
	return true
}

// putError is a failure to store.
type putError struct {
	node metadata.NodeID
	err  error
}

func (e *putError) Error() string { return e.err.Error() }
func (e *putError) Unwrap() error { return e.err }

// takeBack removes what was stored of an object, of which no put is under way.
func (s *Share) takeBack(ctx context.Context, o *object) error {
	for _, node := range o.order {
		if err := s.cfg.Target.Remove(ctx, node, o.ino); err != nil {
			return fmt.Errorf("take back %v from %s: %w", o.ino, s.host(node), err)
		}
	}
	return nil
}
