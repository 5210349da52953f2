package raftstore

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// The kinds of a Command.
const (
	// KindNodes sets the states and the addresses of Nodes, in one epoch. It fails with EINVAL if a node does not
	// exist; nodes that already have that state and address are ignored.
	KindNodes = "nodes"
	// KindAddDataset registers Dataset in the phase Staging under a new ID. It fails with EEXIST if a dataset of that
	// name has not ended.
	KindAddDataset = "dataset-add"
	// KindSetDataset advances the dataset Dataset.ID to Dataset's phase, digest, counts, error and time of sealing. It
	// fails with ENOENT if there is none, and with ESTALE if it is further advanced: a phase never goes back, and a
	// dataset that is Sealed or Failed does not change. The next Attempt may name another Coordinator while the dataset
	// is Staging, if the proposal has the current Reading. A proposal of another attempt, or of another coordinator of
	// this attempt, fails with ESTALE.
	KindSetDataset = "dataset-set"
	// KindSetPlan sets the Plan of the dataset Dataset.ID; "": no plan. It fails with ENOENT if there is no such
	// dataset, and with ESTALE if it has ended.
	KindSetPlan = "plan-set"
	// KindRemoveDataset makes the dataset Dataset.ID Removed: ENOENT if there is none, and ESTALE if it is Sealed and
	// Dataset.Phase is Failed. Error is the reason, unless the dataset has one already.
	KindRemoveDataset = "dataset-remove"
	// KindCopied records that each home needs a partner from now on.
	KindCopied = "copied"
	// KindPartner records that Partner has a copy of the records of the node Home, as proposed by the node that has
	// stood in for Home since Seat; 0 is Home itself. It fails with ESTALE if the copy may have missed changes.
	KindPartner = "partner"
	// KindRestored records that all files with copies have their full number of copies, by the map of Epoch. It changes
	// nothing if nodes have joined or left since.
	KindRestored = "restored"
	// KindClosing records that the job is ending.
	KindClosing = "closing"
)

// Command is a change of the View to be agreed on.
type Command struct {
	Kind    string           `json:"kind"`
	Nodes   []cluster.Change `json:"nodes,omitempty"`
	Dataset cluster.Dataset  `json:"dataset,omitzero"`
	Home    metadata.NodeID  `json:"home,omitempty"`
	Seat    metadata.Epoch   `json:"seat,omitempty"`
	Partner cluster.Partner  `json:"partner,omitzero"`
	Epoch   metadata.Epoch   `json:"epoch,omitempty"`
}

// Apply returns the View after c. It depends only on its arguments and never modifies v. With an error, or if c changes
// nothing, it returns v itself.
func Apply(v cluster.View, c Command) (cluster.View, error) {
	switch c.Kind {
	case KindNodes:
		return setNodes(v, c.Nodes)
	case KindAddDataset:
		return addDataset(v, c.Dataset)
	case KindSetDataset:
		return setDataset(v, c.Dataset)
	case KindSetPlan:
		return setPlan(v, c.Dataset)
	case KindRemoveDataset:
		return removeDataset(v, c.Dataset)
	case KindCopied:
		if v.Copied {
			return v, nil
		}
		v.Copied = true
		return next(v), nil
	case KindPartner:
		return setPartner(v, c)
	case KindRestored:
		m, ok := v.Map.WithRestored(c.Epoch)
		if !ok {
			return v, nil
		}
		v.Map = m
		return next(v), nil
	case KindClosing:
		if v.Closing {
			return v, nil
		}
		v.Closing = true
		return next(v), nil
	}
	return v, fmt.Errorf("command %q: %w", c.Kind, syscall.EINVAL)
}

func next(v cluster.View) cluster.View {
	v.Version++
	return v
}

func setNodes(v cluster.View, changes []cluster.Change) (cluster.View, error) {
	due := make([]cluster.Change, 0, len(changes))
	for _, c := range changes {
		n, ok := v.Map.Node(c.ID)
		if !ok {
			return v, fmt.Errorf("node %d of %d: %w", c.ID, len(v.Map.Nodes), syscall.EINVAL)
		}
		if n.State != c.State || n.Addr != c.Addr {
			due = append(due, c)
		}
	}
	if len(due) == 0 {
		return v, nil
	}
	v.Map = v.Map.With(due)
	return next(v), nil
}

func setPartner(v cluster.View, c Command) (cluster.View, error) {
	if n, ok := v.Map.Node(c.Home); ok && (n.Seat().Since == c.Seat && n.Second() == c.Partner || n.Seat() == c.Partner) {
		return v, nil
	}
	m, ok := v.Map.WithPartner(c.Home, c.Seat, c.Partner)
	if !ok {
		return v, fmt.Errorf("node %d is no partner of node %d since epoch %d: %w", c.Partner.Node, c.Home, c.Partner.Since, syscall.ESTALE)
	}
	v.Map = m
	return next(v), nil
}

func addDataset(v cluster.View, d cluster.Dataset) (cluster.View, error) {
	if d.Name == "" {
		return v, fmt.Errorf("dataset without a name: %w", syscall.EINVAL)
	}
	if d.Phase != cluster.Staging {
		return v, fmt.Errorf("new dataset %s is %v: %w", d.Name, d.Phase, syscall.EINVAL)
	}
	if o, ok := v.Active(d.Name); ok {
		return v, fmt.Errorf("dataset %s from %s is %v: %w", o.Name, o.Source, o.Phase, syscall.EEXIST)
	}
	if len(v.Datasets) >= maxDatasets {
		return v, fmt.Errorf("dataset %s: the job has had %d datasets: %w", d.Name, len(v.Datasets), syscall.ENOSPC)
	}
	d.ID = metadata.DatasetID(len(v.Datasets) + 1)
	v.Datasets = append(slices.Clip(v.Datasets), d)
	return next(v), nil
}

// maxDatasets follows from the bits of an Ino for its dataset.
const maxDatasets = metadata.MaxNodes - 1

func setDataset(v cluster.View, d cluster.Dataset) (cluster.View, error) {
	i := int(d.ID) - 1
	if i < 0 || i >= len(v.Datasets) {
		return v, fmt.Errorf("dataset %d: %w", d.ID, syscall.ENOENT)
	}
	n := v.Datasets[i]
	n.Phase, n.Digest, n.Fill, n.Error, n.Sealed = d.Phase, d.Digest, d.Fill, d.Error, d.Sealed
	n.Files, n.Dirs, n.Bytes, n.SourceSize, n.SourceBytes, n.Skipped = d.Files, d.Dirs, d.Bytes, d.SourceSize, d.SourceBytes, d.Skipped
	n.Adopted, n.AdoptedBytes = d.Adopted, d.AdoptedBytes
	n.Missing, n.Reading = d.Missing, n.Reading || d.Reading
	was := v.Datasets[i]
	again := d.Attempt == was.Attempt+1 && was.Phase == cluster.Staging && d.Phase == cluster.Staging && d.Reading == was.Reading
	if again {
		n.Attempt, n.Coordinator = d.Attempt, d.Coordinator
	}
	switch {
	case d.Attempt != n.Attempt:
		return v, fmt.Errorf("dataset %s is in attempt %d, not %d: %w", was.Name, was.Attempt, d.Attempt, syscall.ESTALE)
	case d.Coordinator != n.Coordinator:
		return v, fmt.Errorf("dataset %s is coordinated by node %d in attempt %d, not by %d: %w", was.Name, was.Coordinator, was.Attempt, d.Coordinator, syscall.ESTALE)
	case n == was:
		return v, nil
	case was.Phase >= cluster.Sealed || n.Phase < was.Phase:
		return v, fmt.Errorf("dataset %s is %v and cannot become %v: %w", was.Name, was.Phase, n.Phase, syscall.ESTALE)
	}
	v.Datasets = slices.Clone(v.Datasets)
	v.Datasets[i] = n
	return next(v), nil
}

func setPlan(v cluster.View, d cluster.Dataset) (cluster.View, error) {
	i := int(d.ID) - 1
	switch {
	case i < 0 || i >= len(v.Datasets):
		return v, fmt.Errorf("dataset %d: %w", d.ID, syscall.ENOENT)
	case v.Datasets[i].Phase.Ended():
		return v, fmt.Errorf("dataset %s is %v: %w", v.Datasets[i].Name, v.Datasets[i].Phase, syscall.ESTALE)
	case v.Datasets[i].Plan == d.Plan:
		return v, nil
	}
	v.Datasets = slices.Clone(v.Datasets)
	v.Datasets[i].Plan = d.Plan
	return next(v), nil
}

func removeDataset(v cluster.View, d cluster.Dataset) (cluster.View, error) {
	i := int(d.ID) - 1
	if i < 0 || i >= len(v.Datasets) {
		return v, fmt.Errorf("dataset %d: %w", d.ID, syscall.ENOENT)
	}
	n := v.Datasets[i]
	switch {
	case n.Phase == cluster.Removed, n.Phase == d.Phase:
		return v, nil
	case !d.Phase.Ended():
		return v, fmt.Errorf("removal of dataset %s: phase %v: %w", n.Name, d.Phase, syscall.EINVAL)
	case d.Phase == cluster.Failed && n.Phase == cluster.Sealed:
		return v, fmt.Errorf("dataset %s is ready: %w", n.Name, syscall.ESTALE)
	}
	n.Phase = cluster.Removed
	n.Error = cmp.Or(n.Error, d.Error)
	v.Datasets = slices.Clone(v.Datasets)
	v.Datasets[i] = n
	return next(v), nil
}

// result is the FSM's answer to a command.
type result struct {
	view cluster.View
	err  error
}

// fsm holds the View that results from the log.
type fsm struct{ board *board }

var _ raft.FSM = fsm{}

// Apply applies a log entry.
func (f fsm) Apply(l *raft.Log) any {
	var c Command
	if err := json.Unmarshal(l.Data, &c); err != nil {
		return result{f.board.get(), fmt.Errorf("log entry %d: %v: %w", l.Index, err, syscall.EINVAL)}
	}
	v, err := Apply(f.board.get(), c)
	if err == nil {
		f.board.set(v)
	}
	return result{v, err}
}

// Snapshot returns the View, which is immutable.
func (f fsm) Snapshot() (raft.FSMSnapshot, error) { return snapshot(f.board.get()), nil }

// Restore replaces the View.
func (f fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	var v cluster.View
	if err := json.NewDecoder(r).Decode(&v); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	f.board.set(v)
	return nil
}

type snapshot cluster.View

// Persist writes the View to the sink.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(cluster.View(s)); err != nil {
		_ = sink.Cancel() // never fails
		return err
	}
	return sink.Close()
}

// Release has nothing to release.
func (s snapshot) Release() {}

// board publishes the View and its changes.
type board struct {
	mu      sync.Mutex
	view    cluster.View  // guarded by mu
	changed chan struct{} // closed when view changes; guarded by mu
}

func newBoard(v cluster.View) *board { return &board{view: v, changed: make(chan struct{})} }

func (b *board) get() cluster.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.view
}

func (b *board) set(v cluster.View) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v.Version == b.view.Version {
		return
	}
	b.view = v
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}
