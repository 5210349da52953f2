package accessplan

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/bivouacfs/bivouac/metadata"
)

// Range is a byte range of a file with its own number. The zero Range is the whole file.
type Range struct{ Off, Len int64 }

// splitRange splits PATH:OFFSET+LENGTH.
func splitRange(entry string) (path string, r Range, ok bool) {
	i := strings.LastIndexByte(entry, ':')
	if i <= 0 {
		return "", Range{}, false
	}
	off, n, found := strings.Cut(entry[i+1:], "+")
	if !found {
		return "", Range{}, false
	}
	var errs [2]error
	r.Off, errs[0] = strconv.ParseInt(off, 10, 64)
	r.Len, errs[1] = strconv.ParseInt(n, 10, 64)
	if errs[0] != nil || errs[1] != nil || r.Off < 0 || r.Len <= 0 || r.Off+r.Len < 0 {
		return "", Range{}, false
	}
	return entry[:i], r, true
}

// Range returns the byte range of a number.
func (n *Numbering) Range(number int) Range {
	if n.ranges == nil {
		return Range{}
	}
	return n.ranges[number]
}

// Ranged reports whether some numbers belong to ranges.
func (n *Numbering) Ranged() bool { return n.ranges != nil }

// index builds the index of ranges by file and offset.
func (n *Numbering) index() {
	n.within = make(map[metadata.Ino][]uint32)
	for i, ino := range n.inos {
		if ino != 0 {
			n.within[ino] = append(n.within[ino], uint32(i))
		}
	}
	for _, all := range n.within {
		slices.SortStableFunc(all, func(a, b uint32) int { return cmp.Compare(n.ranges[a].Off, n.ranges[b].Off) })
	}
}

// At returns the number of the last range of a file that begins at or before off, or at most slack bytes after off. For
// a whole file, it returns the file's number.
func (n *Numbering) At(ino metadata.Ino, off, slack int64) (number int, ok bool) {
	if n.ranges == nil {
		return n.Of(ino)
	}
	all := n.within[ino]
	i := sort.Search(len(all), func(i int) bool { return n.ranges[all[i]].Off >= off+slack })
	if i == 0 {
		return 0, false
	}
	r := n.ranges[all[i-1]]
	return int(all[i-1]), r.Len == 0 || off < r.Off+r.Len
}
