package mount_test

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// notYet lists the tests of the suite for features that the mount does not support.
var notYet = map[string]string{
	"FcntlFlockLocksFile": "it wants a process to be in conflict with itself, which POSIX forbids",
	"OpenSymlinkRace":     "two replacements in a row between lookup and open are ESTALE",
}

// TestPosix runs the suite of go-fuse in scratch, where half of the directories have their home on other nodes.
func TestPosix(t *testing.T) {
	j := newJob(t)
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			if why, ok := notYet[name]; ok {
				t.Skip(why)
			}
			dir := j.scratch(0, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			posixtest.All[name](t, dir)
		})
	}
}
