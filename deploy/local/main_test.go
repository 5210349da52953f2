package local

import (
	"testing"

	"github.com/bivouacfs/bivouac/integration/leaktest"
)

// TestMain fails if the tests leak goroutines.
func TestMain(m *testing.M) { leaktest.Main(m) }
