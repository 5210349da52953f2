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

// Share is one node's share of a stage-out.
type Share struct {
	job.StageOut
	Self   int // this node's position among the N that copy
	N      int
	Settle time.Duration                                            // see stageout.Config
	Memory *stageout.Memory                                         // see there; copyShare sets it
	Trust  bool                                                     // see there
	Help   func(ctx context.Context, k int, p stageout.Piece) error // see there
	Writer string                                                   // see there
	Gone   []string                                                 // see there
	Failed func(stageout.Failure)                                   // see there
}

// CopyFunc copies a share. The program implements it with a client.
type CopyFunc func(ctx context.Context, s Share) (stageout.Result, error)

// PieceFunc copies a piece of a file for another node.
type PieceFunc func(ctx context.Context, p stageout.Piece) error

const (
	// scanPart limits the search for files to 1/scanPart of the time, so that a large tree costs the target and the
	// other nodes little.
	scanPart = 10
	// finalMargin is the part of the deadline reserved for the steps after the copy.
	finalMargin = 5 * time.Second
	// giveUp is how long a copy may take to stop when its time is up. A copy to a hung target takes longer.
	giveUp = time.Second
	// listTime is how long a write of a failure list may take.
	listTime = 2 * time.Second
)

// Config configures a Copier.
type Config struct {
	Node   node.Node
	Tasks  *tasks.Runner
	Job    *job.File
	Every  time.Duration // between two background scans
	Settle time.Duration // how long a file must be unwritten before it is copied
	Ready  func() bool   // reports whether the mount is served
}

// Copier copies this node's shares of the stage-outs.
type Copier struct {
	cfg     Config
	name    string // of the job, even when requeued; jobs of bivouac up share an ID
	copy    atomic.Pointer[CopyFunc]
	piece   atomic.Pointer[PieceFunc]
	began   int64        // start of this daemon, in ns: helpers may remember tasks of an earlier one
	pieces  atomic.Int64 // numbers the pieces given to other nodes; with began, their task IDs
	last    atomic.Value // target, a string, of the last copy that is not one of the job's own
	targets sync.Map     // by target directory: a chan *stageout.Memory that is empty during a copy there

	mu        sync.Mutex
	stop      context.CancelFunc // guarded by mu; ends the background scans
	done      chan struct{}      // guarded by mu; closed when they have ended
	status    []Status           // guarded by mu; in the order of the job's StageOut
	failures  []*Failures        // guarded by mu; same order; nil: nothing fails
	unwritten string             // guarded by mu; why copies may lack this node's last writes; "": they do not
}

// Status is the progress of this node with a stage-out.
type Status struct {
	job.StageOut
	Files     int64         `json:"files"` // copied by this node so far
	Bytes     int64         `json:"bytes"`
	Unsettled int64         `json:"unsettled"`       // skipped by the last scan: written too recently
	Failed    int64         `json:"failed"`          // in the last scan
	Error     string        `json:"error,omitempty"` // the first of those errors
	At        metadata.Time `json:"at,omitempty"`    // of the last scan
}

// New returns a Copier and registers its tasks.
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

// SetCopy sets the functions that read scratch and copy it.
func (c *Copier) SetCopy(f CopyFunc, piece PieceFunc) {
	c.copy.Store(&f)
	c.piece.Store(&piece)
}

// Start begins to copy in the background the files that Final would copy.
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

// Stop ends the background scans and waits. Final retries the failures so far.
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

// SetUnwritten records that the last writes of this node failed: copies by any node may lack them.
func (c *Copier) SetUnwritten(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwritten = short(fmt.Sprintf("the copy may lack recent writes on %s: %v", c.cfg.Job.Hosts[c.cfg.Job.Self], err))
}

// Failures returns the current failures of this node's copies.
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

// Status returns this node's progress with each stage-out of the job.
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

// scan copies the settled files of one stage-out once. A directory that does not exist yet is not a failure.
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

// note records a scan. It returns the error of a failed scan if the previous scan did not fail. Failures are reported
// from the second scan on, because a file that fails once may have been removed meanwhile.
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

// assign sets the position of s among the nodes that serve in m, and their help; false if this node is not among them.
func (c *Copier) assign(s *Share, m cluster.Map) bool {
	return c.place(s, node.Participants(m))
}

// place sets the position of s among nodes, and their help; false if this node is not one of them.
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

// keep returns the memory of an ended copy, and drops that of the previous target that is not one of the job's own.
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
			default: // the copy to it that is in progress calls keep later
			}
		}
	}
	return s.Memory
}

// copyShare copies a share when no other copy to the same target is in progress. A copy to a hung target is abandoned
// soon after ctx ends; until it ends, no other copy to that target begins.
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
