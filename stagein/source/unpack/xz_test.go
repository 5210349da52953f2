package unpack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// xzBlocks packs b in blocks of n bytes; starts is the offset of each block, and of the index.
func xzBlocks(t testing.TB, b []byte, n int) (p []byte, starts []int) {
	t.Helper()
	var out bytes.Buffer
	w, err := xz.WriterConfig{BlockSize: int64(n), CheckSum: xz.CRC32, DictCap: xzDict(n)}.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	p = closed(t, w, b, &out)
	size := (int(binary.LittleEndian.Uint32(p[len(p)-8:])) + 1) * 4
	index, at := p[len(p)-xzFooter-size:], xzHead
	count, k := binary.Uvarint(index[1:])
	for index = index[1+k:]; count > 0; count-- {
		starts = append(starts, at)
		in, i := binary.Uvarint(index)
		_, o := binary.Uvarint(index[i:])
		at, index = at+padded(int(in)), index[i+o:]
	}
	return p, append(starts, at)
}

// TestXzEndsBetweenBlocks: a file that is truncated at the start of a block, or in its header, is reported as
// truncated.
func TestXzEndsBetweenBlocks(t *testing.T) {
	data := mixedBytes(rand.New(rand.NewPCG(51, 52)), 40_000)
	p, starts := xzBlocks(t, data, 5000)
	for i, at := range starts {
		for _, more := range []int{0, 1, 3, 7, 12} {
			for _, parallel := range []bool{true, false} {
				b := slices.Clone(p[:at+more])
				pool := source.NewPool(8, 1024)
				if parallel {
					pool = source.NewPool(64, 512<<10)
				}
				got, err := unpackSome(pool, source.TarXz, b)
				var damage *DamageError
				if !errors.As(err, &damage) || !damage.Cut || !bytes.HasPrefix(data, got) || len(got) < 5000*i/source.BlockSize*source.BlockSize {
					t.Errorf("cut %d bytes behind block %d: %d bytes, %v, want what is before it, and that the rest is missing", more, i, len(got), err)
				}
			}
		}
	}
}

// unpackSome is what Unpack gives of b, and why that is all.
func unpackSome(pool *source.Pool, kind source.Kind, b []byte) (got []byte, err error) {
	ctx := context.Background()
	u := Open(ctx, kind, nil, source.ReadRegion(ctx, bytes.NewReader(b), "f", 0, int64(len(b)), pool, 2), pool)
	defer u.Close()
	for {
		p, err := u.Next()
		if err != nil {
			return got, err
		}
		got = append(got, p.B...)
		p.Release()
	}
}

// fixedSum corrects the checksum at the end of a header or an index.
func fixedSum(b []byte) {
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.ChecksumIEEE(b[:len(b)-4]))
}

// FuzzXz damages what surrounds the data of blocks, with valid checksums, and compares with the serial decoder.
func FuzzXz(f *testing.F) {
	for i := range 32 {
		f.Add(uint64(i), uint16(i*600), uint8(i), uint8(i*7), uint8(1<<(i%8)))
	}
	f.Add(uint64(9), uint16(9821), uint8('!'), uint8(0xa7), uint8(2))     // was thousands of blocks
	f.Add(uint64(35), uint16(5454), uint8(0x12), uint8(0x9c), uint8('*')) // a dictionary of 2 GiB
	f.Fuzz(func(t *testing.T, seed uint64, n uint16, part, at, flip uint8) {
		r := rand.New(rand.NewPCG(seed, 53))
		size := 1 + int(n)%20_000
		p, starts := xzBlocks(t, mixedBytes(r, size), max(1+r.IntN(6000), size/60))
		end := starts[len(starts)-1]
		var b []byte
		switch {
		case part%4 == 0: // the footer, whose checksum comes first
			b = p[len(p)-xzFooter:]
			b[4+int(at)%8] ^= flip
			binary.LittleEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:10]))
		case part%4 == 1:
			b = p[end : len(p)-xzFooter]
		case part%4 == 2:
			k := starts[r.IntN(len(starts)-1)]
			b = p[k : k+(int(p[k])+1)*4]
		default: // the header of the stream
			p[6+int(at)%2] ^= flip
			binary.LittleEndian.PutUint32(p[8:], crc32.ChecksumIEEE(p[6:8]))
		}
		if part%4 == 1 || part%4 == 2 {
			b[int(at)%(len(b)-4)] ^= flip
			fixedSum(b)
		}
		if part%4 == 2 {
			if _, err := parseXzHeader(b); err != nil && strings.Contains(err.Error(), "dictionary is larger") {
				return // the library takes it, with up to 4 GiB
			}
		}
		_, _ = bothWays(t, source.TarXz, p) // compares
	})
}

// TestXzHeaders: headers are parsed as they are written, and none causes a panic.
func TestXzHeaders(t *testing.T) {
	for _, c := range []struct {
		b    string
		want xzHeader
		ok   bool
	}{
		{"\x02\x00\x21\x01\x16\x00\x00\x00", xzHeader{12, -1, -1, 8 << 20}, true},
		{"\x02\xc0\x05\x06\x21\x01\x00\x00", xzHeader{12, 5, 6, 4 << 10}, true},
		{"\x02\x80\x86\x01\x21\x01\x1e\x00", xzHeader{12, -1, 134, 128 << 20}, true},
		{"\x02\x00\x21\x01\x1f\x00\x00\x00", xzHeader{}, false}, // a large dictionary
		{"\x02\x01\x04\x00\x21\x01\x16\x00", xzHeader{}, false}, // the x86 filter
		{"\x02\x04\x21\x01\x16\x00\x00\x00", xzHeader{}, false},
		{"\x02\x00\x21\x02\x16\x00\x00\x00", xzHeader{}, false},
		{"\x02\x00\x21\x01\x16\x00\x01\x00", xzHeader{}, false},
		{"\x02\x40\xff\xff\xff\xff\xff\xff", xzHeader{}, false},
		{"\x02\x00\x21\x01", xzHeader{}, false},
		{"\x02", xzHeader{}, false},
	} {
		b := append([]byte(c.b), 0, 0, 0, 0)
		fixedSum(b)
		c.want.length = len(b)
		if got, err := parseXzHeader(b); (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%q: %+v, %v, want %+v", c.b, got, err, c.want)
		}
		b[len(b)-1] ^= 1
		if _, err := parseXzHeader(b); err == nil {
			t.Errorf("%q: its checksum was not looked at", c.b)
		}
	}
}

// TestXzIndexIsBounded: an index cannot claim more memory than the blocks before it justify.
func TestXzIndexIsBounded(t *testing.T) {
	p, starts := xzBlocks(t, []byte("data"), 10)
	end := starts[len(starts)-1]
	bad := append(slices.Clone(p[:end+1]), binary.AppendUvarint(nil, 1<<60)...)
	bad = append(bad, bytes.Repeat([]byte{1}, 1<<20)...)
	if _, err := unpackSome(source.NewPool(8, 1024), source.TarXz, bad); err == nil || !strings.Contains(err.Error(), "the index is of 1152921504606846976 blocks, there are 1") {
		t.Errorf("%v", err)
	}
	pool := source.NewPool(8, 1024)
	cut := func(z *xzFormat, b []byte) error {
		in := compressed(context.Background(), b, pool)
		defer in.from.Close()
		return z.cut(&feed{in: in}, new(batch))
	}
	if err := cut(xzFrom(RestartPoint{At: xzAt(0, 1)}), bad[end:]); err != errXzMany {
		t.Errorf("behind a place: %v, want %v", err, errXzMany)
	}
	z := newXz(smallSizes)
	for _, z.at = range []xzState{{in: true, check: 1, n: xzBlockMost - 1}, {in: true, check: 1, n: xzBlockMost}} {
		many := z.at.n == xzBlockMost
		if err := cut(z, p[xzHead:]); (err == errXzMany) != many || !many && err != nil {
			t.Errorf("one more block: %v", err)
		}
	}
}
