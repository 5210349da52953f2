package nodetest

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"syscall"
)

// KV is the table of a dataset (dataset.KV) in memory. The zero KV is empty.
type KV struct {
	mu   sync.Mutex
	keys []string
	vals map[string][]byte
}

// Ingest replaces the table by what src yields, in order.
func (m *KV) Ingest(_ context.Context, src func(yield func(k, v []byte) error) error) error {
	keys, vals := []string(nil), make(map[string][]byte)
	if err := src(func(k, v []byte) error {
		keys, vals[string(k)] = append(keys, string(k)), bytes.Clone(v)
		return nil
	}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys, m.vals = keys, vals
	return nil
}

// Get returns the value of k; ENOENT if there is none.
func (m *KV) Get(k []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.vals[string(k)]
	if !ok {
		return nil, syscall.ENOENT
	}
	return bytes.Clone(v), nil
}

// Scan calls fn with the entries in [from, to), to being nil for the end, until fn returns false.
func (m *KV) Scan(from, to []byte, fn func(k, v []byte) bool) error {
	m.mu.Lock()
	keys := slices.Clone(m.keys)
	m.mu.Unlock()
	at, _ := slices.BinarySearch(keys, string(from))
	for _, k := range keys[at:] {
		v, err := m.Get([]byte(k))
		if to != nil && k >= string(to) || err != nil || !fn([]byte(k), v) {
			return err
		}
	}
	return nil
}

// Drop empties the table.
func (m *KV) Drop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys, m.vals = nil, nil
	return nil
}
