package main

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func TestCoverable(t *testing.T) {
	const memory = 8 << 30
	for _, tt := range []struct {
		what         string
		files, bytes int64
		want         bool
	}{
		{"small files", 1000, 1000 * 110 << 10, true},
		{"nothing", 0, 0, false},
		{"files without bytes", 10, 0, true},
		{"files of one request", 8, 8 * coverMean, true},
		{"larger files", 8, 8*coverMean + 8, false},
		{"half of the memory", 1 << 20, memory / 2, true},
		{"more than that", 1 << 20, memory/2 + 1, false},
	} {
		if got := coverable(cluster.Dataset{Files: tt.files, Bytes: tt.bytes}, memory); got != tt.want {
			t.Errorf("coverable of %s = %v, want %v", tt.what, got, tt.want)
		}
	}
	if machineMemory() < 64<<20 {
		t.Errorf("this machine has %d bytes of memory", machineMemory())
	}
}
