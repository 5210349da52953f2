package leases

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// numbered returns a listing of files created in the order of their numbers. Their names sort in another order.
func numbered(n int) (es []metadata.Entry, made []metadata.Ino) {
	for i := range n {
		made = append(made, metadata.Ino(100+3*i))
		es = append(es, metadata.Entry{Name: strconv.Itoa(i), Ino: made[i]})
	}
	slices.SortFunc(es, func(a, b metadata.Entry) int { return byName(a, b.Name) })
	return es, made
}

// TestAheadInOrder: if files are read in an order of their directory, only the first ones and one of each batch are
// requested individually.
func TestAheadInOrder(t *testing.T) {
	const n = 1000
	es, made := numbered(n)
	named := make([]metadata.Ino, n)
	for i := range es {
		named[i] = es[i].Ino
	}
	everyThird := make([]metadata.Ino, 0, n)
	for i := 0; i < n; i += 3 { // another process reads the files in between
		everyThird = append(everyThird, named[i])
	}
	for name, reads := range map[string][]metadata.Ino{"by name": named, "as made": made, "every third": everyThird} {
		var o order
		have := make(map[metadata.Ino]bool)
		single, unused := 0, 0
		for _, ino := range reads {
			if have[ino] {
				continue
			}
			single++
			for _, e := range o.read(es, ino) {
				if have[e.Ino] {
					unused++
				}
				have[e.Ino] = true
			}
		}
		if single > aheadFrom+4+n/mostAhead+1 || unused > 0 {
			t.Errorf("%s: %d of %d files asked for singly, %d read ahead twice", name, single, len(reads), unused)
		}
	}
}

// TestAheadAtRandom: files that are read in no order, or from several places concurrently, cause no read-ahead.
func TestAheadAtRandom(t *testing.T) {
	const n = 2000
	es, made := numbered(n)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var o order
		ahead := 0
		for _, i := range r.Perm(n)[:n/4] {
			ahead += len(o.read(es, made[i]))
		}
		if ahead > n/50 {
			t.Errorf("seed %d: %d files read ahead of %d at random places", seed, ahead, n/4)
		}
	}
}

// TestAheadWhileOnItsWay: readers of files that are being read ahead do not start another read-ahead.
func TestAheadWhileOnItsWay(t *testing.T) {
	es, _ := numbered(300)
	var o order
	var next []metadata.Entry
	at := 0
	for ; len(next) == 0; at++ {
		next = o.read(es, es[at].Ino)
	}
	if at != aheadFrom+1 || len(next) != firstAhead {
		t.Fatalf("%d files read ahead after %d reads", len(next), at)
	}
	for _, e := range next {
		if again := o.read(es, e.Ino); len(again) > 0 {
			t.Fatalf("%q has %d files read ahead", e.Name, len(again))
		}
	}
	if next = o.read(es, es[at+len(next)].Ino); len(next) != 2*firstAhead {
		t.Errorf("then %d files, want %d", len(next), 2*firstAhead)
	}
}
