package pagecache

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

func TestFresh(t *testing.T) {
	var tab Table
	first, second, lost := Version{Ctime: 1, Epoch: 1}, Version{Ctime: 2, Epoch: 1}, Version{Ctime: 2, Epoch: 2}
	restarted := Version{Ctime: 2, Epoch: 2, Home: 1}
	steps := []struct {
		dropped, asked Version
		want           bool
	}{
		{Version{}, first, false},
		{first, first, true},
		{Version{}, second, false},
		{second, second, true},
		{Version{}, first, false},
		{Version{}, lost, false},
		{lost, lost, true},
		{Version{}, restarted, false},
		{restarted, restarted, true},
	}
	for i, s := range steps {
		if s.dropped != (Version{}) {
			tab.Dropped(16, s.dropped)
		}
		if got := tab.Fresh(16, s.asked); got != s.want {
			t.Errorf("step %d: Fresh(%v) = %t, want %t", i, s.asked, got, s.want)
		}
		if tab.Fresh(17, s.asked) {
			t.Errorf("step %d: another file is fresh", i)
		}
	}
}

// TestBounded: the most recently opened files are remembered, and at most twice maxFiles.
func TestBounded(t *testing.T) {
	var tab Table
	v := Version{Ctime: 1}
	tab.Dropped(1, v)
	for i := range metadata.Ino(3 * maxFiles) {
		tab.Dropped(100+i, v)
		if i%1000 == 0 && !tab.Fresh(1, v) {
			t.Fatalf("a file that is opened again and again was forgotten after %d others", i)
		}
	}
	if n := len(tab.files[0]) + len(tab.files[1]); n > 2*maxFiles || n < maxFiles {
		t.Errorf("%d files are remembered, want from %d to %d", n, maxFiles, 2*maxFiles)
	}
	if tab.Fresh(100, v) {
		t.Error("a file of long ago is remembered")
	}
}
