package training

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Limits of a node's log of a dataset; the oldest epochs are dropped first.
const (
	maxEpochs   = 2000
	maxMeasured = 1 << 14 // of all epochs together
)

// Following says how this node's prefetch follows a dataset's plan.
type Following struct {
	Digest string // "": no plan
	Epoch  int
	Single bool // the plan has one epoch: each new plan is the next epoch
}

// Log records the reads of the training on a node.
type Log struct {
	n    node.Node
	path string // of the file

	mu    sync.Mutex
	sets  map[metadata.DatasetID]*set // guarded by mu
	dirty bool                        // guarded by mu; not written to the file yet
}

// set is the log of a dataset. Its exported fields are stored in the file.
type set struct {
	Epochs   map[int]*Epoch            `json:"epochs"`
	Measured map[int]map[int]*Measured `json:"measured,omitempty"` // by epoch and rank
	Plan     string                    `json:"plan,omitempty"`     // digest of the newest plan
	Plans    int                       `json:"plans,omitempty"`    // plans before the newest one

	last Reads // this daemon's counts at the last Take
}

// Open reads the log of an earlier daemon of this node from the file path, if there is one.
func Open(n node.Node, path string) *Log {
	b, err := os.ReadFile(path)
	sets := make(map[metadata.DatasetID]*set)
	if err == nil {
		sets, err = decode(b)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Log().WithError(err).Warn("log of training epochs cannot be read: the report begins with the present epoch")
	}
	return &Log{n: n, path: path, sets: sets}
}

// decode parses a file written by Save. It returns a map even with an error.
func decode(b []byte) (map[metadata.DatasetID]*set, error) {
	sets := make(map[metadata.DatasetID]*set)
	if err := node.DecodeJSON(b, &sets); err != nil || sets == nil {
		return make(map[metadata.DatasetID]*set), err
	}
	maps.DeleteFunc(sets, func(_ metadata.DatasetID, s *set) bool { return s == nil })
	for _, s := range sets {
		s.init()
	}
	return sets, nil
}

func (s *set) init() {
	if s.Epochs == nil {
		s.Epochs = make(map[int]*Epoch)
	}
	if s.Measured == nil {
		s.Measured = make(map[int]map[int]*Measured)
	}
	maps.DeleteFunc(s.Epochs, func(_ int, e *Epoch) bool { return e == nil })
	for _, ranks := range s.Measured {
		maps.DeleteFunc(ranks, func(_ int, m *Measured) bool { return m == nil })
	}
}

// of returns the log of a dataset. The caller holds mu.
func (l *Log) of(id metadata.DatasetID) *set {
	s := l.sets[id]
	if s == nil {
		s = new(set)
		s.init()
		l.sets[id] = s
	}
	return s
}

// Take adds the reads of a dataset since the last call to the current epoch.
func (l *Log) Take(at time.Time, id metadata.DatasetID, now Reads, f Following) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(id)
	epoch := s.epoch(f)
	new, first := now.since(s.last), s.last.First == 0
	s.last = now
	if new.Places == (Places{}) && new.Waits.Count() == 0 {
		return
	}
	e := s.Epochs[epoch]
	if e == nil {
		e = &Epoch{Epoch: epoch, Began: metadata.TimeOf(at)}
		if first && now.First != 0 {
			e.Began = now.First
		}
		s.Epochs[epoch] = e
		s.trim()
	}
	e.Places.Add(new.Places, 1)
	e.Waits.add(new.Waits, 1)
	e.Ended = metadata.TimeOf(at)
	l.dirty = true
}

// since returns r less the earlier counts before. Prefetch counters restart with each plan.
func (r Reads) since(before Reads) Reads {
	if p, q := r.Prefetched, before.Prefetched; p.Samples < q.Samples || p.Bytes < q.Bytes {
		before.Prefetched = Count{}
	}
	d := Reads{Places: r.Places}
	d.Places.Add(before.Places, -1)
	d.Waits.add(r.Waits, 1)
	d.Waits.add(before.Waits, -1)
	return d
}

// epoch returns the current epoch.
func (s *set) epoch(f Following) int {
	if f.Digest == "" {
		return Unknown
	}
	if f.Digest != s.Plan {
		if s.Plan != "" {
			s.Plans++
		}
		s.Plan = f.Digest
	}
	if f.Single {
		return s.Plans
	}
	return max(f.Epoch, 0)
}

// trim drops the oldest epochs in excess of maxEpochs.
func (s *set) trim() {
	for len(s.Epochs) > maxEpochs {
		delete(s.Epochs, slices.Min(slices.Collect(maps.Keys(s.Epochs))))
	}
}

// Post records a rank's measurements of an epoch; a later Post of the same epoch replaces them.
func (l *Log) Post(m Measured) error {
	if err := m.check(); err != nil {
		return err
	}
	if ds, ok := l.n.View().Active(m.Dataset); ok {
		return l.post(ds.ID, m)
	}
	return fmt.Errorf("no dataset is named %q: bivouac status lists them: %w", m.Dataset, syscall.ENOENT)
}

func (l *Log) post(id metadata.DatasetID, m Measured) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(id)
	if s.Measured[m.Epoch] == nil {
		s.Measured[m.Epoch] = make(map[int]*Measured)
	}
	s.Measured[m.Epoch][m.Rank] = &m
	l.dirty = true
	n := 0
	for _, ranks := range s.Measured {
		n += len(ranks)
	}
	for _, e := range slices.Sorted(maps.Keys(s.Measured)) {
		if n > maxMeasured && e != m.Epoch {
			n -= len(s.Measured[e])
			delete(s.Measured, e)
		}
	}
	if n > maxMeasured {
		delete(s.Measured[m.Epoch], m.Rank)
		return fmt.Errorf("more than %d ranks on this node: %w", maxMeasured, syscall.EINVAL)
	}
	return nil
}

// Save writes the file. Calls must not overlap.
func (l *Log) Save() {
	l.mu.Lock()
	if !l.dirty {
		l.mu.Unlock()
		return
	}
	b, err := json.Marshal(l.sets)
	l.dirty = false
	l.mu.Unlock()
	if err == nil {
		err = node.ReplaceFile(l.path, b)
	}
	if err != nil {
		l.n.Log().WithError(err).Warn("log of training epochs not saved: they are missing from the report if this daemon restarts")
	}
}

// Here returns this node's record of a dataset's epochs, in order.
func (l *Log) Here(id metadata.DatasetID) []Epoch {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sets[id]
	if s == nil {
		return nil
	}
	var sum epochs
	for _, e := range s.Epochs {
		sum.add(*e)
	}
	for e, ranks := range s.Measured {
		r := &Ranks{}
		for _, m := range ranks {
			r.add(*m)
		}
		sum.add(Epoch{Epoch: e, Ranks: r})
	}
	return sum.list()
}

// epochs sums up epochs by number.
type epochs map[int]*Epoch

func (s *epochs) add(e Epoch) {
	if *s == nil {
		*s = make(epochs)
	}
	if (*s)[e.Epoch] == nil {
		(*s)[e.Epoch] = &Epoch{Epoch: e.Epoch}
	}
	(*s)[e.Epoch].merge(e)
}

func (s epochs) list() []Epoch {
	all := make([]Epoch, 0, len(s))
	for _, e := range s {
		e.StallP50, e.StallP99 = e.Waits.Quantile(0.5), e.Waits.Quantile(0.99)
		all = append(all, *e)
	}
	slices.SortFunc(all, func(a, b Epoch) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return all
}

// request asks a node for the epochs of a dataset.
type request struct {
	Dataset metadata.DatasetID `json:"dataset"`
}

// reply holds these epochs.
type reply struct {
	Epochs []Epoch `json:"epochs"`
}

// Handlers returns the handlers for calls from other nodes.
func (l *Log) Handlers() node.Handlers {
	return node.Handlers{wire.OpTraining: node.HandleJSON(func(_ context.Context, _ metadata.NodeID, q *request) (reply, error) {
		return reply{l.Here(q.Dataset)}, nil
	})}
}

// Epochs returns the epochs of a dataset, summed over the nodes, and the hosts that are down or did not answer: their
// reads are missing from the sums.
func (l *Log) Epochs(ctx context.Context, id metadata.DatasetID) (all []Epoch, missing []string) {
	var sum epochs
	node.AskAll(ctx, l.n, wire.OpTraining, request{id}, func(from cluster.Node, r reply, err error) {
		if err != nil {
			missing = append(missing, from.Host)
			return
		}
		for _, e := range r.Epochs {
			sum.add(e)
		}
	})
	slices.Sort(missing)
	return sum.list(), missing
}
