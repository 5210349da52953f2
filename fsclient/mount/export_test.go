package mount

// For the tests.
const (
	MaxReads  = maxReads
	MaxWrites = maxWrites
	// DirectThreads is how many threads may be stuck in a write.
	DirectThreads = directThreads
)
