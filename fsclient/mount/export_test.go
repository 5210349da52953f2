package mount

// For the tests.
const (
	MaxReads  = maxReads
	MaxWrites = maxWrites
)
