package fsclient

import (
	"math/bits"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

func TestParseChunk(t *testing.T) {
	for _, tt := range []struct {
		s    string
		want uint32
		ok   bool
	}{
		{"", 0, true},
		{"65536", 65536, true},
		{"64k", 65536, true},
		{"1M", 1 << 20, true},
		{"1G", 1 << 30, true},
		{"0", 0, false},
		{"M", 0, false},
		{"2G", 0, false},
		{"32K", 0, false},
		{"96K", 0, false},
		{"4294967296", 0, false},
		{"4194304K", 0, false},
		{"-1M", 0, false},
		{"1 M", 0, false},
		{"1MB", 0, false},
		{"1M\x00", 0, false},
	} {
		got, err := parseChunk(tt.s)
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("parseChunk(%q) = %d, %v, want %d, ok %v", tt.s, got, err, tt.want, tt.ok)
		}
	}
}

func FuzzParseChunk(f *testing.F) {
	f.Add("64K")
	f.Add("1048576")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseChunk(s)
		if err == nil && n != 0 && (bits.OnesCount32(n) != 1 || n < metadata.MinChunkSize || n > metadata.MaxChunkSize) {
			t.Fatalf("parseChunk(%q) = %d", s, n)
		}
		if err == nil && n == 0 && s != "" {
			t.Fatalf("parseChunk(%q) is the default", s)
		}
	})
}
