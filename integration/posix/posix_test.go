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

// refused maps each test of the suite that the mount fails to the reason.
var refused = map[string]string{
	"FcntlFlockLocksFile": "it wants a process to be in conflict with itself, which POSIX forbids",
	"OpenSymlinkRace":     "two replacements in a row between lookup and open are ESTALE",
	"Tmpfile":             "O_TMPFILE is EOPNOTSUPP",
}

// TestPosix runs the suite of go-fuse in scratch of four nodes, where most directories and files have remote homes.
func TestPosix(t *testing.T) { suite(t) }

// TestPosixOneProcessor does the same with one Go processor for the mount's server and the test.
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
