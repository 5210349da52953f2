package tar

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

func TestNumeric(t *testing.T) {
	for s, want := range map[string]int64{
		"0000644\x00": 0o644, "   644 \x00": 0o644, "": 0, "\x00\x00": 0, "77777777777": 0o77777777777,
		"\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00": 256,
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe": -2,
		"\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff": math.MaxInt64,
	} {
		if got, err := numeric([]byte(s)); got != want || err != nil {
			t.Errorf("numeric(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"8", "x", "-1", "1 2", "\x80\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00", "\x81\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
		if got, err := numeric([]byte(s)); err == nil {
			t.Errorf("numeric(%q) = %d", s, got)
		}
	}
}

func TestPAXTime(t *testing.T) {
	for s, want := range map[string]metadata.Time{
		"1": 1e9, "1.5": 15e8, "-1.5": -15e8, "0.000000001": 1, "1.0000000019": 1e9 + 1, "-0.5": -5e8,
	} {
		if got, err := paxTime(s); got != want || err != nil {
			t.Errorf("paxTime(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x", "1.x", "1.2.3", ".5", "1e3"} {
		if got, err := paxTime(s); err == nil {
			t.Errorf("paxTime(%q) = %d", s, got)
		}
	}
	if got, err := paxTime("99999999999999"); err != nil || got < math.MaxInt64/2 {
		t.Errorf("a time that does not fit = %d, %v", got, err)
	}
}

func TestPAXRecords(t *testing.T) {
	keep := func(string, string) error { return nil }
	for _, bad := range []string{"x", "5 a=b", "6 a=b\n\n", "4 =\n", "99 a=b\n", "-1 a=b\n", "8 noeq\n", "6 \x00=b\n", "0 a=b\n", "12", "3 \n"} {
		if err := paxRecords([]byte(bad), keep); err == nil {
			t.Errorf("paxRecords(%q) is accepted", bad)
		}
	}
	var o overrides
	if err := paxRecords([]byte("6 a=b\n15 path=a=b\n/c\n9 size=5\n"), o.pax); err != nil || o.path != "a=b\n/c" || *o.size != 5 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestParserBigSize parses a member whose size does not fit in octal digits.
func TestParserBigSize(t *testing.T) {
	for _, format := range []tar.Format{tar.FormatGNU, tar.FormatPAX} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h := &tar.Header{Name: "big", Size: 1 << 40, Format: format, ModTime: time.Unix(5, 0)}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		var g Parser
		for block := range slices.Chunk(b.Bytes(), source.BlockSize) {
			step, err := g.Add(block)
			if err != nil {
				t.Fatal(err)
			}
			if (step == Member) != (g.Pos() == int64(b.Len())) {
				t.Errorf("%v: step %d at %d", format, step, g.Pos())
			}
		}
		if g.Item.Size != 1<<40 || g.Item.Off != int64(b.Len()) || g.Item.Path != "big" {
			t.Errorf("%v: %+v", format, g.Item)
		}
		if !bytes.Equal(g.raw, b.Bytes()) {
			t.Errorf("%v: Raw returns other bytes", format)
		}
	}
}

func TestParserBoundsExtensions(t *testing.T) {
	var g Parser
	b := make([]byte, source.BlockSize)
	copy(b, "name")
	copy(b[257:], "ustar\x0000")
	copy(b[124:], "77777777")
	b[156] = 'x'
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	if _, err := g.Add(b); err == nil || !errors.Is(err, syscall.EBADMSG) {
		t.Errorf("%v, want EBADMSG", err)
	}
}

func FuzzParser(f *testing.F) {
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: "d/" + strings.Repeat("n", 90), Size: 3, Format: format})
		f.Add(b.Bytes())
	}
	for _, more := range []bool{false, true} {
		f.Add(sparseHeader(more, false))
		f.Add(sparseHeader(more, true))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var g Parser
		for len(b) >= source.BlockSize {
			// A wrong checksum would be rejected at once.
			block := bytes.Clone(b[:source.BlockSize])
			copy(block[148:], "        ")
			sum := 0
			for _, c := range block {
				sum += int(c)
			}
			copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
			step, err := g.Add(block)
			if err != nil {
				return
			}
			if step == Member {
				if p, err := source.CleanPath(g.Item.Path); err != nil || p != g.Item.Path || g.Item.Size < 0 {
					t.Fatalf("%+v: %v", g.Item, err)
				}
				if m := g.Item.Sparse; m != nil && (m.Check() != nil || m.Size != g.Item.Size || g.Item.Head > MaxHeaders) {
					t.Fatalf("%+v: a map that does not add up: %+v", g.Item, m)
				}
			}
			if step != More {
				g.Reset(g.Pos())
			}
			b = b[source.BlockSize:]
		}
	})
}

// sparseHeader returns the header of a sparse file as written by GNU tar or star, followed by a block of more entries.
func sparseHeader(more, star bool) []byte {
	b := make([]byte, 2*source.BlockSize)
	copy(b, "holes")
	copy(b[124:], "00000000012 ")
	copy(b[156:], "S")
	at, size := gnuSparse, gnuSize
	copy(b[257:], "ustar  \x00")
	if star {
		at, size = starSparse, starSize
		copy(b[257:], "ustar\x0000")
		copy(b[508:], "tar\x00")
	}
	copy(b[size:], "00000010000 ")
	copy(b[at:], "00000000000 00000000005 00000001000 00000000005 ")
	if more {
		copy(b[at+24:], "00000001000 00000000002 ")
		copy(b[source.BlockSize:], "00000002000 00000000003 ")
		b[map[bool]int{false: gnuMore, true: starMore}[star]] = 1
	}
	return b
}
