package slowpfs

import (
	"testing"

	"github.com/bivouacfs/bivouac/integration/leaktest"
)

// TestMain finds goroutines that the tests leak.
func TestMain(m *testing.M) { leaktest.Main(m) }
