package stagein

import (
	"archive/tar"
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// tightTarget is nodes that have less room than was said, since others have filled it
// meanwhile: each takes so many bytes.
func tightTarget(bytes int64) *memTarget {
	var mu sync.Mutex
	took := make(map[metadata.NodeID]int64)
	return &memTarget{put: func(node metadata.NodeID, _ metadata.Ino, n int) error {
		mu.Lock()
		defer mu.Unlock()
		if took[node]+int64(n) > bytes {
			return syscall.ENOSPC
		}
		took[node] += int64(n)
		return nil
	}}
}

// TestFullInTheMiddle: when the room of a node is used up in the middle, whatever is read
// and by however many, the message names the node, what it needs and what it had, and says
// what to do.
func TestFullInTheMiddle(t *testing.T) {
	plain := tooLarge(t)
	says := func(t *testing.T, j *job, want ...string) {
		t.Helper()
		j.target = tightTarget(roomEach)
		j.free = func(metadata.NodeID) (int64, bool) { return 4 * roomEach, true }
		_, err := j.run(context.Background())
		want = append(want, " needs room for ", " at the least and had 1.2 MiB when the stage-in began (", ": no space left on device", moreRoom)
		if !errorHas(err, want...) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
	everyCodec(t, func(t *testing.T, c codec) {
		says(t, tarJob(c.pack(t, plain), 4), "unpack=no", "compressed offset")
	})
	t.Run("plain tar", func(t *testing.T) {
		j := tarJob(plain, 4)
		says(t, j, fmt.Sprintf("needs room for %s", size(int64(len(plain))/4)), "1.5 MiB in all): ")
	})
	t.Run("several", func(t *testing.T) {
		j, r := tarJob(nil, 4), seed(t)
		j.path = "/src/*"
		j.fs.add("/src", source.TypeDir|0o755, nil)
		delete(j.fs.nodes, "/src/a.tar")
		for i := range 4 {
			var members []member
			for k := range 15 {
				members = append(members, file(fmt.Sprint(i, "/f", k), randBytes(r, 25_000)))
			}
			j.fs.add(fmt.Sprintf("/src/%d.tgz", i), source.TypeRegular|0o644, codecs[0].pack(t, writeTar(t, tar.FormatGNU, members)))
		}
		says(t, j, "unpack=no")
	})
}
