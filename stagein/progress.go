package stagein

// Progress is the progress of a share, or the sum of several.
type Progress struct {
	SourceBytes int64 `json:"source_bytes"`      // read from the source; bytes read twice count twice
	SourceTotal int64 `json:"source_total"`      // to be read, if each byte is read once
	Bytes       int64 `json:"bytes"`             // of file data stored, without data removed again
	Files       int64 `json:"files"`             // regular files recorded
	Again       int64 `json:"again"`             // regions read again because a speculation failed
	Skipped     int64 `json:"skipped"`           // unreadable entries that were left out
	Demand      int64 `json:"demand,omitempty"`  // pieces fetched on demand
	Through     int64 `json:"through,omitempty"` // pieces read through because there is no room for them
	// Adopted counts files adopted from an earlier job, and AdoptedBytes their bytes: they are not read from the
	// source.
	Adopted      int64 `json:"adopted,omitempty"`
	AdoptedBytes int64 `json:"adopted_bytes,omitempty"`
	Shares       int64 `json:"shares,omitempty"` // number of shares in this sum
	Most         int64 `json:"most,omitempty"`   // Bytes of the share that has most
	Done         bool  `json:"done"`
	// First is the smallest number of samples, among the shares, that are present from the start of the order; AllFirst
	// if all are; 0 without a sample order.
	First int64 `json:"first,omitempty"`
}

// AllFirst is the First of a share that has all samples of the order.
const AllFirst = 1 << 52

// Imbalance returns the Bytes of the largest share divided by those of the average share; 0 if there are none.
func (p *Progress) Imbalance() float64 {
	if p.Bytes <= 0 {
		return 0
	}
	return float64(p.Most) * float64(p.Shares) / float64(p.Bytes)
}

// Sum returns the sum of the progress of shares. It is done when all shares are.
func Sum(ps []Progress) Progress {
	sum := Progress{Done: len(ps) > 0}
	if len(ps) > 0 {
		sum.First = AllFirst
	}
	for _, p := range ps {
		sum.First = min(sum.First, p.First)
		sum.SourceBytes += p.SourceBytes
		sum.SourceTotal += p.SourceTotal
		sum.Bytes += p.Bytes
		sum.Files += p.Files
		sum.Again += p.Again
		sum.Skipped += p.Skipped
		sum.Demand += p.Demand
		sum.Through += p.Through
		sum.Adopted += p.Adopted
		sum.AdoptedBytes += p.AdoptedBytes
		sum.Shares++
		sum.Most = max(sum.Most, p.Bytes)
		sum.Done = sum.Done && p.Done
	}
	return sum
}
