package training

// Waits counts how long reads have waited. Bucket i has those that took no longer than
// First*2^i seconds; the last one has all longer ones.
type Waits struct {
	First   float64 `json:"first,omitempty"`
	Buckets []int64 `json:"buckets,omitempty"`
	Seconds float64 `json:"seconds"` // of all reads together
}

// Count is the number of reads.
func (w *Waits) Count() (n int64) {
	for _, b := range w.Buckets {
		n += b
	}
	return n
}

// add adds sign times v. Waits of other buckets are not added: another version cannot be a node
// of the job.
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

// Quantile is the bound below which the fraction q of the reads lies, in seconds.
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

// UpTo is how many reads took no longer than each bound, as Prometheus wants it.
func (w *Waits) UpTo() map[float64]uint64 {
	m, n := make(map[float64]uint64), int64(0)
	for i := range max(len(w.Buckets)-1, 0) {
		n += w.Buckets[i]
		m[w.bound(i)] = uint64(max(n, 0))
	}
	return m
}
