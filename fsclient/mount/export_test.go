package mount

// For the tests.
const (
	MaxReads  = maxReads
	MaxWrites = maxWrites
	// DirectWrites is how many threads may be stuck in a write.
	DirectWrites = directWrites
)
