package stagein

import (
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// ZipParts cuts an archive into at most n ranges of about the same size, each of which begins at a member, the second not
// before least.
func ZipParts(x *zip.Index, n, least int64) []Part {
	var parts []Part
	first, off := 0, int64(0)
	cut := func(last int, end int64) {
		parts = append(parts, Part{Index: uint16(len(parts)), Off: off, End: end, Bytes: end - off, Items: x.Items[first:last]})
		first, off = last, end
	}
	for i := 1; i < len(x.Items) && int64(len(parts)) < n-1; i++ {
		at, before := x.Items[i].Off, x.Items[i-1].Off
		want := off + (x.Start-off)/(n-int64(len(parts)))
		if at < want || at < least {
			continue
		}
		if want-before < at-want && before > off && before >= least {
			cut(i-1, before)
			continue
		}
		cut(i, at)
	}
	cut(len(x.Items), x.Start)
	return parts
}
