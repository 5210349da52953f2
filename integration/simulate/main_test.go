package simulate

import (
	"testing"

	"github.com/bivouacfs/bivouac/integration/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
