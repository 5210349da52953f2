package ingest_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestSlowOwner: an owner that takes one piece after another slows the reader down
// to his own pace, whatever it reads: never is more read than there are buffers
// for, beyond what is stored.
func TestSlowOwner(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 60 {
		members = append(members, stageintest.TarFile(string(rune('a'+i%26))+string(rune('a'+i/26)), stageintest.RandBytes(r, 5000)))
	}
	for _, name := range []string{"a.tar", "a.tar.gz", "a.zip"} {
		t.Run(name, func(t *testing.T) {
			const memory, piece = 64 << 10, 2048
			s := jobtest.NewRack(t, 1, "/src/"+name, stagein.Options{})
			s.Lim, s.Memory = jobtest.Bounds{Piece: piece, Carry: 1024}, memory
			archive := stageintest.PackAs(t, name, members)
			s.FS.Add(s.Path, source.TypeRegular|0o644, archive)
			var stored, most atomic.Int64
			look := func() {
				// A compressed byte stands for one that is stored, or for less.
				if ahead := s.FS.Read.Load() - stored.Load(); ahead > most.Load() {
					most.Store(ahead)
				}
			}
			s.FS.OnRead = func(string, int64) { look() }
			turn := make(chan struct{}, 1) // one is stored at a time
			s.Target = &stageintest.MemTarget{OnPut: func(_ metadata.NodeID, _ metadata.Ino, n int) error {
				turn <- struct{}{}
				for range 100 { // whoever can read on does
					runtime.Gosched()
				}
				look()
				stored.Add(int64(n))
				<-turn
				return nil
			}}
			if _, err := s.Run(context.Background()); err != nil {
				t.Fatal(err)
			}
			// Headers and padding are read, and never stored; so is the directory of a zip archive.
			spare := int64(len(archive)) - min(stored.Load(), int64(len(archive))) + 64<<10
			if bound := memory + spare; most.Load() > bound || most.Load() == 0 {
				t.Errorf("%d bytes of %d were read ahead of what was stored, %d is the most", most.Load(), len(archive), bound)
			}
			if len(archive) < 3*memory {
				t.Error("the archive is too small to show anything")
			}
		})
	}
}
