package mount

// For the tests.
const (
	MaxReads  = maxReads
	MaxWrites = maxWrites
	// DirectWrites is the number of threads that may be stuck in a write.
	DirectWrites = directWrites
)

// ReadsUnderWay returns the number of reads that hold memory.
func (m *Mount) ReadsUnderWay() int { return len(m.fs.reads.slots) }
