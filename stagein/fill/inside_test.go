package fill

import (
	"io"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestUnreadableAreFew: the report of a source with many faults is short.
func TestUnreadableAreFew(t *testing.T) {
	f := &Fill{bad: newUnreadables(&Config{Log: stageintest.QuietLog(), Files: &stageintest.MemFiles{}})}
	ino := func(i int) metadata.Ino { return metadata.SealedIno(3, 0, uint32(i)) }
	for range 2 {
		for i := range 100 {
			f.bad.report(&metadata.Attr{Ino: ino(i)}, io.ErrUnexpectedEOF)
		}
	}
	if all, more := f.Unreadable(); len(all) != mostUnreadable || more != 100-mostUnreadable {
		t.Errorf("%d are named, and %d are not", len(all), more)
	}
	for i := range 100 {
		f.bad.forget(ino(i))
	}
	if all, more := f.Unreadable(); len(all) > 0 || more > 0 {
		t.Errorf("%d are named, and %d are not, after all were read", len(all), more)
	}
}

// TestReachable: a file of a compressed tar is read through from a restart point that is near enough.
func TestReachable(t *testing.T) {
	points := unpack.RestartPoints{{}, {At: 5, Off: 100}}
	f := &Fill{src: archive.Fetcher{Sources: []archive.Origin{{Kind: source.TarZstd, RestartPoints: points.Append(nil)}}}}
	for off, want := range map[int64]bool{99: true, 100 + maxUnpackedFor: true, 101 + maxUnpackedFor: false} {
		if got := f.reachable(manifest.Origin{Off: off}); got != want {
			t.Errorf("bytes at %d can be read through: %v, want %v", off, got, want)
		}
	}
}

// TestCutShortIsNotMissing: files that a pass did not come to are not reported as missing, for there is no reason.
func TestCutShortIsNotMissing(t *testing.T) {
	ino := metadata.SealedIno(3, 0, 1)
	f := &Fill{present: newPieceSet(), overflow: newOverflow(), unfetched: []PieceID{{Ino: ino}}}
	if n, why := f.Missing(); n != 0 || why != nil {
		t.Errorf("Missing() = %d, %v, want 0 without a reason", n, why)
	}
	f.lack = io.ErrUnexpectedEOF
	if n, why := f.Missing(); n != 1 || why == nil {
		t.Errorf("Missing() = %d, %v, want 1 and the reason", n, why)
	}
}
