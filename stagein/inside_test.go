package stagein

import (
	"context"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestPlacesInsideWhereTight: in a member of gzip places are close to each other where its files may have to
// stay there, and where all fits as far apart as those want them who fetch again what a lost node had.
func TestPlacesInsideWhereTight(t *testing.T) {
	plain := stageintest.ManySmall(t, stageintest.Rand(t), 400, 18_000)
	archive := stageintest.GzipOneMember.Pack(t, plain)
	want, err := stageintest.TwinPacked(stageintest.GzipOneMember, archive)
	stageintest.NoError(t, err)
	for _, c := range []struct {
		each        int64
		least, most int // places
	}{{1 << 20, 60, 1000}, {1 << 40, 5, 9}} {
		j := spillJob(archive, c.each)
		j.stripe, j.lim.inside = 1<<20, 1<<20
		q := newQuota(c.each)
		j.quota, j.target = q, q.MemTarget
		got, err := j.run(context.Background())
		stageintest.NoError(t, err)
		stageintest.CheckTree(t, got, want)
		places, err := unpack.ParsePlaces(j.plan.Origins.Sources[0].Places)
		if n := len(places); err != nil || n < c.least || n > c.most {
			t.Errorf("%d bytes of room a node: %d places of %d bytes, %v, want %d to %d", c.each, n, len(plain), err, c.least, c.most)
		}
		if (j.spilled > 0) != (c.each == 1<<20) {
			t.Errorf("%d bytes of room a node: %d files stay in the source", c.each, j.spilled)
		}
	}
}

// TestOutlook: room is not taken to be enough for what may pack better than what came, nor for what nobody knows.
func TestOutlook(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		o    outlook
		want bool
	}{
		{outlook{left: 100 * gib, rest: gib / 2}, false},
		{outlook{left: 100 * gib, rest: gib}, true},
		{outlook{left: 100 * gib, rest: gib, packed: 1 << 20, out: 4 << 20}, true}, // too little to tell
		{outlook{left: 100 * gib, rest: gib, packed: gib, out: 4 * gib}, false},
		{outlook{left: 100 * gib, rest: 7 * gib, packed: gib, out: 4 * gib}, true},
		{outlook{left: 100 * gib, rest: gib, packed: 1 << 20, out: gib}, true},
		{outlook{left: -5, rest: 1, packed: gib, out: gib}, true},
		{outlook{left: 10, packed: gib, out: gib}, false},
	} {
		if got := c.o.tight(); got != c.want {
			t.Errorf("%+v.tight() = %v", c.o, got)
		}
	}
}

// TestInsideFollowsRoom: who looks for places looks closer when room runs out, and in the second of several tars
// knows what the first one took.
func TestInsideFollowsRoom(t *testing.T) {
	const gib = 1 << 30
	s := &Share{lim: limits{apart: 4 << 20, inside: 16 << 20}}
	s.cfg.Part.Bytes = 2 * gib
	x := &spiller{s: s, left: map[metadata.NodeID]int64{0: 40 * gib, 1: 30 * gib}}
	for _, step := range []struct {
		past, packed, out, left int64
		some                    bool
		want                    int64
	}{
		{0, 0, 0, 30 * gib, false, 4 << 20},
		{0, gib / 4, gib, 30 * gib, false, 16 << 20},
		{0, gib / 4, gib, 10 * gib, false, 4 << 20},
		{gib, 0, 0, 30 * gib, false, 4 << 20},
		{gib + gib*3/4, 0, 0, 30 * gib, false, 16 << 20},
		{gib + gib*3/4, 0, 0, 30 * gib, true, 4 << 20},
	} {
		x.past, x.left[1], x.some = step.past, step.left, step.some
		if got := x.inside(step.packed, step.out); got != step.want {
			t.Errorf("%+v: %d bytes between two", step, got)
		}
	}
}
