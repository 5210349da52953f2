package fill

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
)

// keptKey identifies the bytes of a file across jobs: its place in the source, its size and modification time there,
// and those of its archive.
func keptKey(sources []archive.Origin, from *manifest.Origin, a *metadata.Attr) (key [16]byte, ok bool) {
	if int(from.Source) >= len(sources) || !from.Known() || from.Sparse {
		return key, false
	}
	src := &sources[from.Source]
	return xxh3.HashString128(fmt.Sprintf("%q %v %d %v, %q %d, %d %v",
		src.Path, src.Kind, src.Size, src.Mtime, from.Path, from.Off, a.Size, a.Mtime)).Bytes(), true
}

func adoptKept(f *Fill, from *manifest.Origin, a *metadata.Attr) (sum [16]byte, ok bool) {
	if f.cfg.Kept == nil {
		return sum, false
	}
	key, ok := keptKey(f.cfg.Origins.Sources, from, a)
	if !ok {
		return sum, false
	}
	return f.cfg.Kept(f.ctx, key, a.Ino)
}

// Keepable calls see for every file that is complete on this node and whose checksum is in the journal, so that a later
// job can adopt it (Config.Kept).
func (f *Fill) Keepable(see func(key [16]byte, a metadata.Attr, sum [16]byte)) error {
	sums, err := f.sums()
	if err != nil {
		return err
	}
	return f.cfg.Files.Located(func(from manifest.Origin, a metadata.Attr) bool {
		p := PieceID{Ino: a.Ino}
		sum, summed := sums[p]
		if summed && a.Layout.Kind == metadata.Local && f.present.has(p) {
			if key, ok := keptKey(f.cfg.Origins.Sources, &from, &a); ok {
				see(key, a, sum)
			}
		}
		return true
	})
}
