package mount

// For the tests.
const (
	MaxReads  = maxReads
	MaxWrites = maxWrites
	// DirectWrites is how many threads may be stuck in a write.
	DirectWrites = directWrites
)

// ReadsUnderWay is how many reads have memory.
func (m *Mount) ReadsUnderWay() int { return len(m.fs.reads.slots) }
