package pagecache

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestShown: changes by this node keep the st_mtime in replies to the kernel; a change by another node gives a new one.
func TestShown(t *testing.T) {
	at := func(ctime, mtime metadata.Time) metadata.Attr { return metadata.Attr{Ctime: ctime, Mtime: mtime} }
	var s Shown
	s.Opened(at(10, 5))
	steps := []struct {
		what string
		do   func()
		a    metadata.Attr
		want metadata.Time
	}{
		{"unchanged", func() {}, at(10, 5), 5},
		{"own write", func() { s.Changed(10, 20) }, at(20, 20), 5},
		{"another", func() { s.Changed(20, 21) }, at(21, 21), 5},
		{"write there that set st_mtime back", func() {}, at(30, 5), 30},
		{"own write after it", func() { s.Changed(30, 31) }, at(31, 31), 30},
		{"own write, and one there before it", func() { s.Changed(40, 41) }, at(41, 41), 41},
		{"own write, and one there after it", func() { s.Changed(41, 42) }, at(50, 41), 50},
		{"an overtaken answer", func() {}, at(42, 42), 42},
		{"and one that was not", func() {}, at(50, 41), 50},
		{"own writes whose answers are swapped", func() { s.Changed(51, 52); s.Changed(50, 51) }, at(52, 52), 52},
		{"own write that the pages do not show", func() { s.Missed(); s.Changed(52, 53) }, at(53, 53), 53},
		{"own write after it", func() { s.Changed(53, 54) }, at(54, 54), 54},
		{"opened anew", func() { s.Opened(at(54, 7)); s.Changed(54, 55) }, at(55, 55), 7},
	}
	for _, x := range steps {
		x.do()
		if got := s.Mtime(x.a); got != x.want {
			t.Errorf("%s: st_mtime %d, want %d", x.what, got, x.want)
		}
	}
}
