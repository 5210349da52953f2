package stageout

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
)

// NotifyTime is how long a write to the job's output may take.
const NotifyTime = 4 * time.Second

// Notifier writes stage-out failures to the job's output, for the user.
type Notifier struct {
	n        node.Process
	saved    string                     // file that keeps the output's path for a restart of the daemon
	add      func(Output, string) error // Output.add, except in tests
	patience time.Duration              // limit for a write to the output
	own      *Output                    // used if no node has the job's output; nil if there is none

	mu       sync.Mutex
	to       *Output               // guarded by mu; nil if the output is not on this node, or not a file
	notified map[job.StageOut]bool // guarded by mu; failures already reported while the job runs
	heard    []Failures            // guarded by mu; failures of all nodes, as last sent by the leader
}

// NewNotifier returns a Notifier. It uses the job's output known to an earlier run of this daemon, if there is one.
func NewNotifier(n node.Process, j *job.File) *Notifier {
	t := &Notifier{
		n: n, saved: filepath.Join(j.Dirs.Run, "output.json"), add: Output.add, patience: NotifyTime,
		own: ownOutput(j), notified: make(map[job.StageOut]bool),
	}
	t.recall()
	return t
}

func (t *Notifier) recall() {
	b, err := os.ReadFile(t.saved)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var o Output
	if err == nil {
		err = errors.Join(json.Unmarshal(b, &o), o.validate())
	}
	if err != nil {
		t.n.Log().WithError(err).WithField("file", t.saved).Warn("path of the job's output is lost: failures of the stage-out are only in this log")
		return
	}
	t.set(o)
}

// SetOutput sets the job's output, and saves it for a restart of the daemon.
func (t *Notifier) SetOutput(o Output) error {
	if err := o.validate(); err != nil {
		return err
	}
	t.set(o)
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return os.WriteFile(t.saved, b, 0o600)
}

// HasOutput reports whether the job's output is on this node.
func (t *Notifier) HasOutput() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to != nil
}

func (t *Notifier) set(o Output) {
	t.mu.Lock()
	t.to = &o
	t.mu.Unlock()
}

// placeLocked returns the file to write to; nil if there is none.
func (t *Notifier) placeLocked() *Output {
	if t.to == nil {
		return t.own
	}
	return t.to
}

// Hear receives the failures of all nodes, if this node notifies the user, and writes the new ones.
func (t *Notifier) Hear(all []Failures) {
	if fresh := t.hear(all); len(fresh) > 0 {
		t.n.Spawn(func(context.Context) { t.notify(fresh) })
	}
}

// hear returns the failures that were not reported to the user yet while the job runs.
func (t *Notifier) hear(all []Failures) (fresh []Failures) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard = all
	o := t.placeLocked()
	for _, f := range all {
		if !f.Final && !t.notified[f.StageOut] && o != nil && o.Append {
			t.notified[f.StageOut] = true
			fresh = append(fresh, f)
		}
	}
	return fresh
}

// Final writes the final failures. own are those known to this node: the node with the job's output uses them if the
// leader has sent none.
func (t *Notifier) Final(own []Failures) { t.notify(t.final(own)) }

func (t *Notifier) final(own []Failures) []Failures {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to == nil {
		own = nil
	}
	var last []Failures
	for _, all := range [][]Failures{t.heard, own} {
		for _, f := range all {
			if f.Final && len(f.Causes) > 0 {
				last = append(last, f)
			}
		}
		if len(last) > 0 {
			return last
		}
	}
	return nil
}

func (t *Notifier) notify(all []Failures) {
	if err := t.write(all); err != nil {
		t.n.Log().WithError(err).Warn("job output not written: failures of the stage-out are only in this log")
	}
}

// write writes a line for each failure.
func (t *Notifier) write(all []Failures) error {
	t.mu.Lock()
	o := t.placeLocked()
	t.mu.Unlock()
	text := ""
	for _, f := range all {
		if len(f.Causes) > 0 {
			text += f.line()
		}
	}
	if o == nil || text == "" {
		return nil
	}
	return t.put(*o, text)
}

// Tell writes lines while the job runs, unless the job's own writes would overwrite them.
func (t *Notifier) Tell(lines string) {
	t.mu.Lock()
	o := t.placeLocked()
	t.mu.Unlock()
	if o == nil || !o.Append {
		return
	}
	t.n.Spawn(func(context.Context) {
		if err := t.put(*o, lines); err != nil {
			t.n.Log().WithError(err).WithField("text", lines).Warn("job output not written: these lines are only in this log")
		}
	})
}

// put appends text to the output.
func (t *Notifier) put(o Output, text string) error {
	return within(t.patience, o.Path, func() error { return t.add(o, text) })
}
