package training

// Waits counts reads by the time that they waited. Bucket i counts those that waited at most First*2^i seconds; the
// last bucket also counts all longer ones.
type Waits struct {
	First   float64 `json:"first,omitempty"`
	Buckets []int64 `json:"buckets,omitempty"`
	Seconds float64 `json:"seconds"` // sum over all reads
}

// Count returns the number of reads.
func (w *Waits) Count() (n int64) {
	for _, b := range w.Buckets {
		n += b
	}
	return n
}

// add adds sign times v. It ignores a v with other buckets; these do not occur, since all nodes of a job run the same
// version.
func (w *Waits) add(v Waits, sign int64) {
	if len(w.Buckets) == 0 {
		w.First, w.Buckets = v.First, make([]int64, len(v.Buckets))
	}
	if w.First != v.First || len(w.Buckets) != len(v.Buckets) {
		return
	}
	for i, b := range v.Buckets {
		w.Buckets[i] += sign * b
	}
	w.Seconds += float64(sign) * v.Seconds
}

// Quantile returns an upper bound, in seconds, for the fraction q of the reads.
func (w *Waits) Quantile(q float64) float64 {
	all, n := w.Count(), int64(0)
	if all == 0 {
		return 0
	}
	last := max(len(w.Buckets)-2, 0)
	for i := range last {
		if n += w.Buckets[i]; n > int64(q*float64(all)) {
			return w.bound(i)
		}
	}
	return w.bound(last)
}

func (w *Waits) bound(i int) float64 { return w.First * float64(int64(1)<<min(i, 62)) }

// UpTo returns how many reads waited at most each bound, in the form that Prometheus uses.
func (w *Waits) UpTo() map[float64]uint64 {
	m, n := make(map[float64]uint64), int64(0)
	for i := range max(len(w.Buckets)-1, 0) {
		n += w.Buckets[i]
		m[w.bound(i)] = uint64(max(n, 0))
	}
	return m
}
