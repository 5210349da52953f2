package stageout

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// Final copies this node's share, under the map m, of every stage-out of the job.
func (c *Copier) Final(ctx context.Context, m cluster.Map) error {
	var errs []error
	for i, o := range c.cfg.Job.StageOut {
		s := Share{StageOut: o}
		log := c.cfg.Node.Log().WithField("from", o.From).WithField("to", o.To)
		if !c.assign(&s, m) {
			log.Warn("this node was declared down: the other nodes copy its share")
			return nil
		}
		r, err := c.finish(ctx, i, s)
		for _, e := range r.Errors {
			log.WithField("error", e).Error("file not copied out")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("stage-out of %s to %s: %w%s", o.From, o.To, err, firstErrors(r)))
		}
		log.WithFields(map[string]any{"files": r.Files, "bytes": r.Bytes, "kept": r.Kept, "failed": r.Failed}).Info("staged out")
	}
	return errors.Join(errs...)
}

// finish copies the i-th share. It retries failures that may be temporary until no time is left.
func (c *Copier) finish(ctx context.Context, i int, s Share) (stageout.Result, error) {
	for {
		failed := &failureList{path: c.listPath(), from: s.From, sum: Failures{StageOut: s.StageOut, Final: true}}
		s.Failed = failed.add
		r, err := c.copyShare(ctx, s)
		deadline, ok := ctx.Deadline()
		retry := err != nil && (failed.temporary() || r.Failed == 0 && temporary(err)) && ok && time.Until(deadline) >= c.cfg.Every+finalMargin
		if retry {
			c.cfg.Node.Log().WithField("to", s.To).WithError(err).Warn("stage-out incomplete: retrying")
			retry = node.Pause(ctx, c.cfg.Every) == nil
		}
		if !retry {
			c.writeList(failed)
			c.setFailures(i, failed.end(err))
			return r, err
		}
	}
}

func (c *Copier) writeList(l *failureList) {
	switch wrote, err := l.write(); {
	case err != nil:
		c.cfg.Node.Log().WithError(err).WithField("list", l.path).Warn("list of files that were not copied out cannot be written")
	case wrote:
		c.cfg.Node.Log().WithField("list", l.path).Warn("stage-out incomplete: the files that were not copied are listed")
	}
}

// listPath returns the path of the list of this node's failures, beside the job's output; "" if the job has no submit
// directory.
func (c *Copier) listPath() string {
	j := c.cfg.Job
	if j.WorkDir == "" {
		return ""
	}
	return filepath.Join(j.WorkDir, fmt.Sprintf("bivouac-%s-%s.not-copied", j.ID, j.Hosts[j.Self]))
}

// temporary reports whether err may go away: a target that is full or does not answer, a node that comes back, a mount
// that is not ready yet.
func temporary(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT,
		syscall.EBUSY, syscall.EAGAIN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ECONNRESET, syscall.ENOTCONN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// firstErrors returns the first few errors of r, one per line; the log has more.
func firstErrors(r stageout.Result) string {
	const most, long = 5, 500
	s := ""
	for _, e := range r.Errors[:min(len(r.Errors), most)] {
		s += fmt.Sprintf("\n  not copied: %.*s", long, e)
	}
	return s
}
