package opens

// Stats counts open files and orphans.
type Stats struct {
	Open    int `json:"open"`    // files that at least one node has open
	Orphans int `json:"orphans"` // files without a name
	Awaited int `json:"awaited"` // nodes that have not reported their open files yet
}

// Stats returns the counts.
func (r *Registry) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Stats{Awaited: r.awaited}
	for _, f := range r.files {
		if len(f.holders) > 0 {
			s.Open++
		}
		if f.orphan {
			s.Orphans++
		}
	}
	return s
}
