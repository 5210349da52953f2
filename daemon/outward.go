package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// OutShare is one node's part of a stage-out.
type OutShare struct {
	job.StageOut
	Self   int // this node's place among the N that copy
	N      int
	Settle time.Duration                                            // see stageout.Config
	Memory *stageout.Memory                                         // see there
	Help   func(ctx context.Context, k int, p stageout.Piece) error // see there
	Failed func(stageout.Failure)                                   // see there
}

// OutFunc copies a share. The program wires it to a client.
type OutFunc func(ctx context.Context, s OutShare) (stageout.Result, error)

// PieceFunc copies a piece of a file for another node.
type PieceFunc func(ctx context.Context, p stageout.Piece) error

// SetOut gives the daemon its way to copy out of scratch.
func (d *Daemon) SetOut(f OutFunc, piece PieceFunc) {
	d.out.Store(&f)
	d.piece.Store(&piece)
}

const (
	// A look may take this part of the time at most, so that a large tree costs
	// the target and the others little.
	outPart = 10
	// outMargin is how much of the deadline is left for the rest of the end.
	outMargin = 5 * time.Second
)

// outward is what this node copies out while the job runs.
type outward struct {
	turns sync.Map // of a target: a chan struct{} that holds one who copies there

	mu     sync.Mutex
	stop   context.CancelFunc // guarded by mu; ends the loop
	done   chan struct{}      // guarded by mu; closed when the loop has ended
	status []OutStatus        // guarded by mu; by place in the job's StageOut
	bad    []*outTrouble      // guarded by mu; likewise: what does not make it, nil for nothing
}

// OutStatus is how far this node's part of a stage-out is.
type OutStatus struct {
	job.StageOut
	Files  int64         `json:"files"` // copied by this node so far
	Bytes  int64         `json:"bytes"`
	Fresh  int64         `json:"fresh"`           // left alone at the last look, because they were just written to
	Failed int64         `json:"failed"`          // at the last look
	Error  string        `json:"error,omitempty"` // the first of those
	At     metadata.Time `json:"at,omitempty"`    // of the last look
}

// startOutward begins to copy, as the job goes on, what its end would copy.
func (d *Daemon) startOutward() {
	ctx, stop := context.WithCancel(d.ctx)
	done := make(chan struct{})
	d.outward.mu.Lock()
	d.outward.stop, d.outward.done = stop, done
	for _, o := range d.job.StageOut {
		d.outward.status = append(d.outward.status, OutStatus{StageOut: o})
	}
	d.outward.bad = make([]*outTrouble, len(d.job.StageOut))
	d.outward.mu.Unlock()
	d.Spawn(func(context.Context) {
		defer close(done)
		if len(d.job.StageOut) > 0 {
			d.outwardLoop(ctx)
		}
	})
}

// stopOutward ends it and waits. What failed so far is tried again at the end.
func (d *Daemon) stopOutward() {
	d.outward.mu.Lock()
	stop, done := d.outward.stop, d.outward.done
	d.outward.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
	for i := range d.job.StageOut {
		d.outward.setTrouble(i, nil)
	}
}

func (o *outward) setTrouble(i int, t *outTrouble) {
	o.mu.Lock()
	o.bad[i] = t
	o.mu.Unlock()
}

// troubles is what does not make it on this node.
func (o *outward) troubles() []outTrouble {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []outTrouble
	for _, t := range o.bad {
		if t != nil {
			all = append(all, *t)
		}
	}
	return all
}

func (d *Daemon) outwardLoop(ctx context.Context) {
	memory := make([]stageout.Memory, len(d.job.StageOut))
	rest := d.cfg.Timing.Out
	for node.Pause(ctx, rest) == nil {
		began := time.Now()
		for i, o := range d.job.StageOut {
			d.outwardOnce(ctx, i, OutShare{StageOut: o, Settle: d.cfg.Timing.Settle, Memory: &memory[i]})
		}
		rest = max(d.cfg.Timing.Out, outPart*time.Since(began))
	}
}

// outwardOnce looks once at one stage-out. Who is not there yet is no failure.
func (d *Daemon) outwardOnce(ctx context.Context, i int, s OutShare) {
	m := d.View().Map
	if !d.ready.Load() || !d.deal(&s, m) {
		return
	}
	lost := &notCopied{from: s.From, trouble: outTrouble{StageOut: s.StageOut}}
	s.Failed = lost.add
	r, err := d.stageOut(ctx, s)
	if ctx.Err() != nil || errors.Is(err, syscall.ENOENT) && r.Failed == 0 {
		return
	}
	bad := lost.end(err)
	d.outward.mu.Lock()
	st := &d.outward.status[i]
	was := st.Error
	d.outward.bad[i] = nil
	if was != "" { // what fails once may be a file that was removed meanwhile
		d.outward.bad[i] = bad
	}
	st.Files, st.Bytes, st.At = st.Files+r.Files, st.Bytes+r.Bytes, now()
	st.Fresh, st.Failed, st.Error = r.Unsettled, r.Failed, ""
	if len(r.Errors) > 0 {
		st.Error = r.Errors[0]
	} else if err != nil {
		st.Error = err.Error()
	}
	is := st.Error
	d.outward.mu.Unlock()
	log := d.log.WithField("from", s.From).WithField("to", s.To)
	if is != "" && was == "" {
		log.WithField("failed", r.Failed).Warn("not copied out so far: " + is)
	}
	if r.Files > 0 {
		log.WithField("files", r.Files).WithField("bytes", r.Bytes).Debug("copied out")
	}
}

func (o *outward) read() []OutStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.status)
}

// deal gives s its place among the nodes that serve in m, and the help of the
// others; false if this node is none of them.
func (d *Daemon) deal(s *OutShare, m cluster.Map) bool {
	nodes := node.Participants(m)
	s.Self, s.N = slices.Index(nodes, d.job.Self), len(nodes)
	s.Help = d.helpOf(nodes)
	return s.Self >= 0
}

// helpOf is how one of nodes is asked to copy a piece.
func (d *Daemon) helpOf(nodes []metadata.NodeID) func(context.Context, int, stageout.Piece) error {
	return func(ctx context.Context, k int, p stageout.Piece) error {
		if k < 0 || k >= len(nodes) {
			return fmt.Errorf("node %d of %d: %w", k, len(nodes), syscall.EINVAL)
		}
		id := fmt.Sprintf("piece-%d-%d", d.job.Self, d.pieces.Add(1))
		err := d.runTask(ctx, nodes[k], taskReq{Task: id, Piece: &p}, func(taskState) {})
		if ctx.Err() != nil {
			d.abandon(nodes[k], id)
		}
		return err
	}
}

// preparePiece is prepare for a piece of a stage-out.
func (d *Daemon) preparePiece(p stageout.Piece) (func(context.Context) (*stageout.Result, error), error) {
	f := d.piece.Load()
	if f == nil || *f == nil || !filepath.IsAbs(p.To) || !filepath.IsLocal(p.Tmp) {
		return nil, fmt.Errorf("piece of %.200q in %.200q: %w", p.Tmp, p.To, syscall.EINVAL)
	}
	return func(ctx context.Context) (*stageout.Result, error) { return nil, (*f)(ctx, p) }, nil
}

// stageOut copies a share. What this node copies to one place it copies one
// after the other: both would write the same temporary files.
func (d *Daemon) stageOut(ctx context.Context, s OutShare) (stageout.Result, error) {
	f := d.out.Load()
	if f == nil {
		return stageout.Result{}, errors.New("this daemon has no mount to read scratch by")
	}
	turn, _ := d.outward.turns.LoadOrStore(filepath.Clean(s.To), make(chan struct{}, 1))
	mine := turn.(chan struct{})
	select {
	case mine <- struct{}{}:
		defer func() { <-mine }()
		return (*f)(ctx, s)
	case <-ctx.Done():
		return stageout.Result{}, ctx.Err()
	}
}

// finally copies the i-th share at the job's end. What failed for a reason that
// may pass is tried again until there is no time left.
func (d *Daemon) finally(ctx context.Context, i int, s OutShare) (stageout.Result, error) {
	for {
		lost := &notCopied{path: d.notCopiedPath(), from: s.From, trouble: outTrouble{StageOut: s.StageOut, Final: true}}
		s.Failed = lost.add
		r, err := d.stageOut(ctx, s)
		left, ok := ctx.Deadline()
		again := err != nil && lost.mayPass() && ok && time.Until(left) >= d.cfg.Timing.Out+outMargin
		if again {
			d.log.WithField("to", s.To).WithError(err).Warn("not all is copied out: once more")
			again = node.Pause(ctx, d.cfg.Timing.Out) == nil
		}
		if !again {
			lost.write(d)
			d.outward.setTrouble(i, lost.end(err))
			return r, err
		}
	}
}

// mayPass reports whether what failed may succeed a little later: a target that
// is full or away, a node that comes back.
func mayPass(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT,
		syscall.EBUSY, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ECONNRESET, syscall.ENOTCONN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// notCopiedPath is where the user finds the list of what this node could not
// copy: beside the job's output.
func (d *Daemon) notCopiedPath() string {
	if d.job.WorkDir == "" {
		return ""
	}
	return filepath.Join(d.job.WorkDir, fmt.Sprintf("bivouac-%s-%s.not-copied", d.job.ID, d.job.Hosts[d.job.Self]))
}

// notCopied is the whole list of what could not be copied.
type notCopied struct {
	path, from string

	mu      sync.Mutex
	lines   strings.Builder // guarded by mu
	passing bool            // guarded by mu: some of it failed for a reason that may pass
	trouble outTrouble      // guarded by mu; the sum
}

func (l *notCopied) add(f stageout.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passing = l.passing || mayPass(f.Err)
	l.trouble.addFailure(f)
	if l.path != "" {
		fmt.Fprintf(&l.lines, "%q: %v\n", filepath.Join(l.from, f.Name), f.Err)
	}
}

// end is the sum, or nil, of a run that ended with err.
func (l *notCopied) end(err error) *outTrouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		return nil
	}
	if len(l.trouble.Kinds) == 0 || errors.Is(err, context.DeadlineExceeded) {
		l.trouble.add(kindOf(err))
	}
	return &l.trouble
}

func (l *notCopied) mayPass() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passing
}

// write adds the list to the file, if there is anything in it.
func (l *notCopied) write(d *Daemon) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines.Len() == 0 {
		return
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.WriteString(l.lines.String())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		d.log.WithError(err).Warn("the list of what was not copied cannot be written")
		return
	}
	l.trouble.List, l.trouble.Lists = l.path, 1
	d.log.WithField("list", l.path).Warn("what was not copied is listed")
}
