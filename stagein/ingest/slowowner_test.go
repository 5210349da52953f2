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

// TestSlowOwner: an owner that stores one piece after another slows the reader down to its own pace, for every kind of
// archive (back-pressure): the reader is never further ahead of the stored data than its buffers allow.
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
				// One compressed byte accounts for at least one stored byte.
				if ahead := s.FS.Read.Load() - stored.Load(); ahead > most.Load() {
					most.Store(ahead)
				}
			}
			s.FS.OnRead = func(string, int64) { look() }
			turn := make(chan struct{}, 1) // only one piece is stored at a time
			s.Target = &stageintest.MemTarget{OnPut: func(_ metadata.NodeID, _ metadata.Ino, n int) error {
				turn <- struct{}{}
				for range 100 { // let the readers run as far as they can
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
			// Headers, padding and the directory of a zip archive are read but never stored.
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
