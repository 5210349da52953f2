package rebuild

import (
	"testing"

	"github.com/bivouacfs/bivouac/integration/leaktest"
)

// TestMain finds goroutines that the tests leave behind.
func TestMain(m *testing.M) { leaktest.Main(m) }
