package datapathtest

import (
	"bytes"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

func (t *T) allocated(ino metadata.Ino) int64 {
	t.Helper()
	n, err := t.s.Allocated(t.ctx(), ino)
	t.ok("Allocated", err)
	return n
}

func (t *T) data(ino metadata.Ino, off int64) datapath.Extent {
	t.Helper()
	e, err := t.s.Data(t.ctx(), ino, off)
	t.ok("Data", err)
	return e
}

func allocate(t *T) {
	p := pattern(10_000, 8)
	t.write(file, p, 0)
	t.ok("Allocate", t.s.Allocate(t.ctx(), file, 5000, 1<<20))
	t.reads(file, 20_000, 0, append(bytes.Clone(p), make([]byte, 10_000)...))
	if n := t.allocated(file); n < 1<<20+5000 || n > 1<<20+5000+16<<10 {
		t.Errorf("%d bytes are allocated of %d", n, 1<<20+5000)
	}
	if used := t.space().Used; used != t.allocated(file) {
		t.Errorf("%d bytes are used by an object of %d", used, t.allocated(file))
	}
	t.ok("Allocate of what is there", t.s.Allocate(t.ctx(), file, 0, 1<<20))
	t.reads(file, 10_000, 0, p)
	t.ok("Allocate of a new object", t.s.Allocate(t.ctx(), file+1, 1<<16, 1<<16))
	t.reads(file+1, 10, 100, make([]byte, 10))
	t.reads(file+1, 1<<17, 1<<16, make([]byte, 1<<16))
	if n := t.allocated(file + 1); n < 1<<16 || n > 1<<16+16<<10 {
		t.Errorf("%d bytes are allocated of %d", n, 1<<16)
	}
	if n := t.allocated(file + 2); n != 0 {
		t.Errorf("no object takes %d bytes", n)
	}
	t.fails("Allocate below 0", t.s.Allocate(t.ctx(), file, -1, 10), syscall.EINVAL)
	t.fails("Allocate of nothing", t.s.Allocate(t.ctx(), file, 0, 0), syscall.EINVAL)
	t.fails("Allocate past the end of numbers", t.s.Allocate(t.ctx(), file, math.MaxInt64-5, 10), syscall.EFBIG)
}

func punch(t *T) {
	p := pattern(1<<20, 9)
	t.write(file, p, 0)
	before := t.space().Used
	t.ok("Punch", t.s.Punch(t.ctx(), file, 100_001, 500_000))
	clear(p[100_001:600_001])
	t.reads(file, len(p)+1, 0, p)
	if got := before - t.space().Used; got < 500_000-2*4096 || got > 500_000 {
		t.Errorf("a hole of 500,000 bytes gives %d back", got)
	}
	t.ok("Punch over the end", t.s.Punch(t.ctx(), file, 1<<20-10, 1<<30))
	clear(p[1<<20-10:])
	t.reads(file, len(p)+1, 0, p)
	t.ok("Punch behind the end", t.s.Punch(t.ctx(), file, 1<<21, 10))
	t.reads(file, len(p)+1, 0, p)
	t.ok("Punch of no object", t.s.Punch(t.ctx(), file+1, 0, 10))
	if n := t.space().Objects; n != 1 {
		t.Errorf("%d objects, want 1", n)
	}
	t.fails("Punch below 0", t.s.Punch(t.ctx(), file, -1, 10), syscall.EINVAL)
	t.fails("Punch of nothing", t.s.Punch(t.ctx(), file, 0, 0), syscall.EINVAL)
	t.fails("Punch past the end of numbers", t.s.Punch(t.ctx(), file, 10, math.MaxInt64), syscall.EFBIG)
}

func data(t *T) {
	if e := t.data(file, 0); e != datapath.NoData {
		t.Errorf("Data of no object = %v", e)
	}
	t.write(file, pattern(1<<16, 10), 1<<20)
	t.write(file, pattern(1<<16, 11), 3<<20)
	first, second := datapath.Extent{From: 1 << 20, To: 1<<20 + 1<<16}, datapath.Extent{From: 3 << 20, To: 3<<20 + 1<<16}
	for _, tt := range []struct {
		off  int64
		want datapath.Extent
	}{
		{0, first}, {1 << 20, first}, {1<<20 + 5, datapath.Extent{From: 1<<20 + 5, To: first.To}},
		{first.To, second}, {2 << 20, second}, {second.To - 1, datapath.Extent{From: second.To - 1, To: second.To}},
		{second.To, datapath.NoData}, {math.MaxInt64 - 1, datapath.NoData},
	} {
		if got := t.data(file, tt.off); got != tt.want {
			t.Errorf("Data(%d) = %v, want %v", tt.off, got, tt.want)
		}
	}
	_, err := t.s.Data(t.ctx(), file, -1)
	t.fails("Data below 0", err, syscall.EINVAL)
}
