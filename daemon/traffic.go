package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/metadata"
)

// Traffic and Rates are the file data moved by this node's mount.
type (
	Traffic = node.Traffic
	Rates   = node.Rates
)

// Activity counts the work of this node's mount and its client since their start.
type Activity struct {
	Traffic
	MetaLocal, MetaRemote, MetaSealed int64                     // metadata calls, by where they were answered
	Times                             map[string]training.Waits // of the kernel's requests, by operation
	Sources                           []SourceStatus            // the places from which datasets were read
	Reads                             map[metadata.DatasetID]training.Reads
}

// SourceStatus holds this node's measurements of a place from which it reads datasets: a node or the source.
type SourceStatus struct {
	Place       string  `json:"place"`       // a host, "source", or "this node"
	State       string  `json:"state"`       // fast, slow, failed or idle
	Latency     float64 `json:"latency"`     // seconds of a small read; 0: unknown
	Bandwidth   float64 `json:"bandwidth"`   // bytes per second of one read; 0: unknown
	Share       float64 `json:"share"`       // share of the reads of the last seconds, up to 1
	Reads       int64   `json:"reads"`       // since the start
	Replicas    int64   `json:"replicas"`    // of Reads, those of replicas
	Failures    int64   `json:"failures"`    // reads that failed or were not answered in time
	Bytes       int64   `json:"bytes"`       // since the start
	Outstanding int     `json:"outstanding"` // reads now
}

const (
	sampleEvery = time.Second
	samples     = 10 // rates are means over so many samples
)

// meter records the traffic of the last seconds.
type meter struct {
	mu   sync.Mutex
	now  func() Activity // guarded by mu; nil before there is a mount
	past []sample        // guarded by mu; oldest first
}

type sample struct {
	at time.Time
	Traffic
}

// SetActivity sets the function that returns the mount's counters. The program wires it to a client.
func (d *Daemon) SetActivity(f func() Activity) { d.meter.set(f, d.datasets.Fills.PassedThrough) }

// set has the meter measure f. through returns the bytes that f counts as read from this node's drives although they
// came from the source.
func (m *meter) set(f func() Activity, through func() int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = func() Activity {
		a := f()
		a.ReadSource = through()
		a.ReadLocal = max(a.ReadLocal-a.ReadSource, 0)
		return a
	}
}

// meterLoop takes samples until ctx ends.
func (d *Daemon) meterLoop(ctx context.Context) {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case at := <-t.C:
			d.meter.take(at)
			takeTraining(d, at)
			if n++; n%saveEvery == 0 {
				d.training.Save()
			}
		}
	}
}

func (m *meter) take(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil {
		return
	}
	m.past = append(m.past, sample{at, m.now().Traffic})
	if len(m.past) > samples {
		m.past = m.past[1:]
	}
}

// activity returns the mount's counters; false before there is a mount.
func (m *meter) activity() (Activity, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil {
		return Activity{}, false
	}
	return m.now(), true
}

// read returns the traffic so far and its mean rates since the oldest sample.
func (m *meter) read(at time.Time) (t Traffic, r Rates) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil {
		return t, r
	}
	t = m.now().Traffic
	if len(m.past) == 0 {
		return t, r
	}
	old := m.past[0]
	s := at.Sub(old.at).Seconds()
	if s <= 0 {
		return t, r
	}
	rate := func(now, then int64) float64 { return float64(now-then) / s }
	return t, Rates{
		ReadLocal: rate(t.ReadLocal, old.ReadLocal), ReadRemote: rate(t.ReadRemote, old.ReadRemote),
		ReadSource: rate(t.ReadSource, old.ReadSource),
		WriteLocal: rate(t.WriteLocal, old.WriteLocal), WriteRemote: rate(t.WriteRemote, old.WriteRemote),
		Passthrough: rate(t.Passthrough, old.Passthrough), Prefetched: rate(t.Prefetched, old.Prefetched),
	}
}
