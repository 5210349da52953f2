package posix

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"

	"github.com/bivouacfs/bivouac/integration/testcluster"
)

// refused is which tests of the suite the mount fails, and why.
var refused = map[string]string{
	"FcntlFlockLocksFile": "it wants a process to be in conflict with itself, which POSIX forbids",
	"OpenSymlinkRace":     "two replacements in a row between lookup and open are ESTALE",
	"Tmpfile":             "O_TMPFILE is EOPNOTSUPP",
}

// TestPosix runs the suite of go-fuse in the live realm of four nodes, where
// most directories and files are homed on other nodes.
func TestPosix(t *testing.T) { suite(t) }

// TestPosixOneProcessor does so where the mount's server and the test share one
// thread of Go.
func TestPosixOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	suite(t)
}

func suite(t *testing.T) {
	t.Helper()
	c := pitch(t, testcluster.Config{})
	for i, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			if why, ok := refused[name]; ok {
				t.Skip(why)
			}
			dir := filepath.Join(c.mounts[i%len(c.mounts)].Scratch, name)
			check(t, os.Mkdir(dir, 0o755))
			posixtest.All[name](t, dir)
		})
	}
}
