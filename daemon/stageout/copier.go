package stageout

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// Share is one node's part of a stage-out.
type Share struct {
	job.StageOut
	Self   int // this node's place among the N that copy
	N      int
	Settle time.Duration                                            // see stageout.Config
	Memory *stageout.Memory                                         // see there; copyShare sets it
	Trust  bool                                                     // see there
	Help   func(ctx context.Context, k int, p stageout.Piece) error // see there
	Writer string                                                   // see there
	Gone   []string                                                 // see there
	Failed func(stageout.Failure)                                   // see there
}

// CopyFunc copies a share. The program wires it to a client.
type CopyFunc func(ctx context.Context, s Share) (stageout.Result, error)

// PieceFunc copies a piece of a file for another node.
type PieceFunc func(ctx context.Context, p stageout.Piece) error

const (
	// scanPart limits the time spent looking for files to 1/scanPart of the total, so
	// that a large tree costs the target and the other nodes little.
	scanPart = 10
	// finalMargin is the part of the deadline that is left for the rest of the end.
	finalMargin = 5 * time.Second
	// giveUp is how long a copy may take to end when its time is over. A target that does not answer takes longer.
	giveUp = time.Second
	// listTime is how long it may take to write a list of failures.
	listTime = 2 * time.Second
)

// Config is what a Copier needs.
type Config struct {
	Node   node.Node
	Tasks  *tasks.Runner
	Job    *job.File
	Every  time.Duration // between two background scans
	Settle time.Duration // a file that was written to more recently is not copied yet
	Ready  func() bool   // reports whether the mount is served
}

// Copier is this node's part of the stage-outs.
type Copier struct {
	cfg     Config
	name    string // of the job, also when it is requeued; jobs of bivouac up share an ID
	copy    atomic.Pointer[CopyFunc]
	piece   atomic.Pointer[PieceFunc]
	began   int64        // of this daemon, in ns: helpers may remember the tasks of an earlier one
	pieces  atomic.Int64 // pieces that other nodes were asked to copy; with began, their task IDs
	last    atomic.Value // the target, a string, of the last copy that is not one of the job's own
	targets sync.Map     // by target directory: a chan *stageout.Memory that is empty during a copy there

	mu        sync.Mutex
	stop      context.CancelFunc // guarded by mu; ends the background scans
	done      chan struct{}      // guarded by mu; closed when they have ended
	status    []Status           // guarded by mu; in the order of the job's StageOut
	failures  []*Failures        // guarded by mu; likewise; nil if nothing fails
	unwritten string             // guarded by mu; why copies may lack what this node wrote last; "": they do not
}

// Status is how far this node's part of a stage-out is.
type Status struct {
	job.StageOut
	Files     int64         `json:"files"` // copied by this node so far
	Bytes     int64         `json:"bytes"`
	Unsettled int64         `json:"unsettled"`       // skipped by the last scan: written to too recently
	Failed    int64         `json:"failed"`          // in the last scan
	Error     string        `json:"error,omitempty"` // the first of those
	At        metadata.Time `json:"at,omitempty"`    // of the last scan
}

// New makes a copier and registers its tasks.
func New(cfg Config) *Copier {
	j := cfg.Job
	c := &Copier{cfg: cfg, name: fmt.Sprintf("%s.%d.%s", j.ID, j.UID, filepath.Dir(j.Dirs.Mount)), began: time.Now().UnixNano(), failures: make([]*Failures, len(cfg.Job.StageOut))}
	for _, o := range cfg.Job.StageOut {
		c.status = append(c.status, Status{StageOut: o})
	}
	cfg.Tasks.Register(kindShare, tasks.KindOf(c.prepareShare))
	cfg.Tasks.Register(kindPiece, tasks.KindOf(c.preparePiece))
	return c
}

// SetCopy gives the copier its way to read scratch.
func (c *Copier) SetCopy(f CopyFunc, piece PieceFunc) {
	c.copy.Store(&f)
	c.piece.Store(&piece)
}

// Start begins to copy in the background what Final would copy.
func (c *Copier) Start() {
	stopped, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.mu.Lock()
	c.stop, c.done = stop, done
	c.mu.Unlock()
	c.cfg.Node.Spawn(func(ctx context.Context) {
		defer close(done)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stopped, cancel)()
		if len(c.cfg.Job.StageOut) > 0 {
			c.background(ctx)
		}
	})
}

// Stop ends the background scans and waits. What failed so far is retried by Final.
func (c *Copier) Stop() {
	c.mu.Lock()
	stop, done := c.stop, c.done
	c.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
	for i := range c.cfg.Job.StageOut {
		c.setFailures(i, nil)
	}
}

func (c *Copier) setFailures(i int, f *Failures) {
	c.mu.Lock()
	c.failures[i] = f
	c.mu.Unlock()
}

// SetUnwritten notes that the last writes of this node failed: copies by any node may lack them.
func (c *Copier) SetUnwritten(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwritten = short(fmt.Sprintf("writes on %s may be missing in what was copied: %v", c.cfg.Job.Hosts[c.cfg.Job.Self], err))
}

// Failures is what cannot be copied on this node.
func (c *Copier) Failures() []Failures {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Failures
	for i, f := range c.failures {
		sum := Failures{StageOut: c.cfg.Job.StageOut[i], Final: true}
		if f != nil {
			sum = *f
			sum.Causes = slices.Clone(f.Causes)
		}
		if c.unwritten != "" {
			sum.add(Cause{Reason: c.unwritten})
		}
		if len(sum.Causes) > 0 {
			all = append(all, sum)
		}
	}
	return all
}

// Status is how far this node is with each stage-out of the job.
func (c *Copier) Status() []Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.status)
}

func (c *Copier) background(ctx context.Context) {
	rest := c.cfg.Every
	for node.Pause(ctx, rest) == nil {
		began := time.Now()
		for i, o := range c.cfg.Job.StageOut {
			c.scan(ctx, i, Share{StageOut: o, Settle: c.cfg.Settle, Trust: true})
		}
		rest = max(c.cfg.Every, scanPart*time.Since(began))
	}
}

// scan copies once what is settled of one stage-out. A directory that does not exist
// yet is no failure.
func (c *Copier) scan(ctx context.Context, i int, s Share) {
	if !c.cfg.Ready() || !c.assign(&s, c.cfg.Node.View().Map) {
		return
	}
	failed := &failureList{from: s.From, sum: Failures{StageOut: s.StageOut}}
	s.Failed = failed.add
	r, err := c.copyShare(ctx, s)
	if ctx.Err() != nil || errors.Is(err, syscall.ENOENT) && r.Failed == 0 {
		return
	}
	first := c.note(i, r, err, failed.end(err))
	log := c.cfg.Node.Log().WithField("from", s.From).WithField("to", s.To)
	if first != "" {
		log.WithField("failed", r.Failed).WithField("error", first).Warn("stage-out incomplete so far: it is retried until the job ends")
	}
	if r.Files > 0 {
		log.WithField("files", r.Files).WithField("bytes", r.Bytes).Debug("copied out")
	}
}

// note records a scan. It returns the error of a scan that failed after one that did
// not. Failures are reported from the second scan on: what fails once may be a file
// that was removed meanwhile.
func (c *Copier) note(i int, r stageout.Result, err error, failures *Failures) (first string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := &c.status[i]
	was := st.Error
	c.failures[i] = nil
	if was != "" {
		c.failures[i] = failures
	}
	st.Files, st.Bytes, st.At = st.Files+r.Files, st.Bytes+r.Bytes, metadata.TimeOf(time.Now())
	st.Unsettled, st.Failed, st.Error = r.Unsettled, r.Failed, ""
	if len(r.Errors) > 0 {
		st.Error = r.Errors[0]
	} else if err != nil {
		st.Error = err.Error()
	}
	if was != "" {
		return ""
	}
	return st.Error
}

// assign gives s its place among the nodes that serve in m, and their help; false if
// this node is not among them.
func (c *Copier) assign(s *Share, m cluster.Map) bool {
	return c.place(s, node.Participants(m))
}

// place gives s its place among nodes, and their help; false if this node is not one of them.
func (c *Copier) place(s *Share, nodes []metadata.NodeID) bool {
	s.Self, s.N, s.Help = slices.Index(nodes, c.cfg.Node.Self()), len(nodes), c.helpOf(nodes)
	for i := range c.cfg.Job.Hosts {
		id := metadata.NodeID(i)
		switch writer := fmt.Sprintf("%s.%d", c.name, id); {
		case id == c.cfg.Node.Self():
			s.Writer = writer
		case !slices.Contains(nodes, id):
			s.Gone = append(s.Gone, writer)
		}
	}
	return s.Self >= 0
}

// keep returns what is kept of the memory of a copy that has ended: that of the job's own targets, and of the last other.
func (c *Copier) keep(s Share) *stageout.Memory {
	to := filepath.Clean(s.To)
	if slices.ContainsFunc(c.cfg.Job.StageOut, func(o job.StageOut) bool { return filepath.Clean(o.To) == to }) {
		return s.Memory
	}
	if last, _ := c.last.Swap(to).(string); last != to {
		if x, ok := c.targets.Load(last); ok {
			memory := x.(chan *stageout.Memory)
			select {
			case <-memory:
				memory <- new(stageout.Memory)
			default: // a copy to it is under way, and comes here
			}
		}
	}
	return s.Memory
}

// copyShare copies a share when no other copy to the same target is under way. A copy to a target that does not answer is left
// behind soon after ctx ends; until it ends, no other one to that target begins.
func (c *Copier) copyShare(ctx context.Context, s Share) (stageout.Result, error) {
	f := c.copy.Load()
	if f == nil {
		return stageout.Result{}, fmt.Errorf("the mount of this node is not ready: try again later: %w", syscall.EAGAIN)
	}
	memory := make(chan *stageout.Memory, 1)
	memory <- new(stageout.Memory)
	if x, ok := c.targets.LoadOrStore(filepath.Clean(s.To), memory); ok {
		memory = x.(chan *stageout.Memory)
	}
	select {
	case s.Memory = <-memory:
	case <-ctx.Done():
		return stageout.Result{}, ctx.Err()
	}
	var r stageout.Result
	copied := make(chan error, 1)
	go func() {
		var err error
		r, err = (*f)(ctx, s)
		memory <- c.keep(s)
		copied <- err
	}()
	select {
	case err := <-copied:
		return r, err
	case <-ctx.Done():
	}
	select {
	case err := <-copied:
		return r, err
	case <-time.After(giveUp):
		return stageout.Result{}, fmt.Errorf("%s does not answer: %w", s.To, ctx.Err())
	}
}
