package stagein

// Progress is how far a share is, or the sum of several.
type Progress struct {
	SourceBytes int64 `json:"source_bytes"`      // read from the source, every one counted each time it is read
	SourceTotal int64 `json:"source_total"`      // to be read, if each is read once
	Bytes       int64 `json:"bytes"`             // of file data stored; what was taken back is not counted
	Files       int64 `json:"files"`             // regular files recorded
	Again       int64 `json:"again"`             // regions that were read again because of a wrong guess
	Skipped     int64 `json:"skipped"`           // things that could not be read and were left out
	Demand      int64 `json:"demand,omitempty"`  // pieces that were fetched because they were read
	Through     int64 `json:"through,omitempty"` // pieces that were read through, because there is no room for them
	// Adopted is the files that an earlier job has kept on the nodes, and AdoptedBytes theirs: they are not read from the source.
	Adopted      int64 `json:"adopted,omitempty"`
	AdoptedBytes int64 `json:"adopted_bytes,omitempty"`
	Shares       int64 `json:"shares,omitempty"` // how many this is the sum of
	Most         int64 `json:"most,omitempty"`   // Bytes of the one of them that has most
	Done         bool  `json:"done"`
	// First is the least number of samples that are there from the beginning of the order on:
	// AllFirst if that is all; 0 without an order of samples.
	First int64 `json:"first,omitempty"`
}

// AllFirst is the First of a share that has all samples of the order.
const AllFirst = 1 << 52

// Imbalance is the Bytes of the share that has most, over those of the mean one;
// 0 while there are none.
func (p *Progress) Imbalance() float64 {
	if p.Bytes <= 0 {
		return 0
	}
	return float64(p.Most) * float64(p.Shares) / float64(p.Bytes)
}

// Sum adds up the progress of shares. It is done when all are.
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
