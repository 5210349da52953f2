package accessplan

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTwister compares the generator with the values given by its authors and by the C++ standard (the 10000th of seed
// 5489).
func TestTwister(t *testing.T) {
	g := newTwister(5489)
	first := []uint32{3499211612, 581869302, 3890346734, 3586334585, 545404204}
	for i, want := range first {
		if got := g.next(); got != want {
			t.Fatalf("value %d of seed 5489 = %d, want %d", i, got, want)
		}
	}
	var last uint32
	for range 10_000 - len(first) {
		last = g.next()
	}
	if last != 4123659995 {
		t.Errorf("value 10000 of seed 5489 = %d, want 4123659995", last)
	}
}

// TestRandPerm compares with the output of PyTorch 1.13 for torch.randperm(n,
// generator=torch.Generator().manual_seed(seed)).
func TestRandPerm(t *testing.T) {
	for _, c := range []struct {
		seed uint64
		want []uint32
	}{
		{0, []uint32{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
		{1 << 32, []uint32{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}}, // only 32 bits of the seed count
		{1, []uint32{5, 6, 1, 2, 0, 8, 9, 3, 7, 4}},
		{42, []uint32{6, 3, 0, 7, 10, 15, 2, 12, 14, 9, 8, 5, 4, 13, 11, 1}},
		{12345678901, []uint32{10, 0, 11, 5, 2, 7, 1, 9, 3, 6, 8, 4}},
		{7, []uint32{0}},
		// Output of DistributedSampler(range(11), num_replicas=2, seed=5) for both ranks: 9,0,10,3,7,4 and 5,8,2,6,1,9.
		{5, []uint32{9, 5, 0, 8, 10, 2, 3, 6, 7, 1, 4}},
	} {
		if got := RandPerm(c.seed, len(c.want)); !slices.Equal(got, c.want) {
			t.Errorf("RandPerm(%d, %d) = %v, want %v", c.seed, len(c.want), got, c.want)
		}
	}
}

func TestRandPermIsPermutation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		p := RandPerm(r.Uint64(), r.IntN(2000))
		slices.Sort(p)
		for i, v := range p {
			if uint32(i) != v {
				t.Fatalf("%d is missing", i)
			}
		}
	}
}

// TestRandPermOfImageNet compares a permutation of 1,281,167 with PyTorch's, by its ends and a position-dependent sum.
func TestRandPermOfImageNet(t *testing.T) {
	p := RandPerm(3, 1_281_167)
	first := []uint32{624704, 124707, 1267194, 1077010, 292439, 950513, 640214, 720252}
	last := []uint32{1225409, 160202, 33998, 247945, 30412, 1248874, 6867, 1165059}
	if got := p[:len(first)]; !slices.Equal(got, first) {
		t.Errorf("begins with %v, want %v", got, first)
	}
	if got := p[len(p)-len(last):]; !slices.Equal(got, last) {
		t.Errorf("ends with %v, want %v", got, last)
	}
	sum := 0
	for i, v := range p {
		sum += i % 1000 * int(v)
	}
	if sum != 410065859296879 {
		t.Errorf("sum is %d, want 410065859296879", sum)
	}
}

// TestSkip compares a generator that skips numbers with one that draws them.
func TestSkip(t *testing.T) {
	for _, k := range []uint64{0, 1, 2, 623, 624, 625, 1248, 19_937, 1_000_003} {
		drawn, g := newTwister(7), newTwister(7)
		for range k {
			drawn.next()
		}
		g.skip(k)
		for i := range 1300 {
			if a, b := g.next(), drawn.next(); a != b {
				t.Fatalf("skip %d: number %d after it = %d, want %d", k, i, a, b)
			}
		}
	}
}

// TestSkipEpochs: skipping to a late epoch gives the same order as drawing all earlier ones.
func TestSkipEpochs(t *testing.T) {
	for _, kind := range []Kind{Random, Loader} {
		g := newTwister(11)
		for e := range 40 {
			if kind == Loader {
				g.next64()
			}
			want := g.perm(97)
			g.perm(97)
			p := Plan{Dataset: "d", Kind: kind, Seed: 11}
			x, err := p.Epoch(e, 97)
			if err != nil || !slices.Equal(x.order, want) {
				t.Fatalf("%s, epoch %d: %v, want %v, %v", kind, e, x.order, want, err)
			}
		}
	}
}

// BenchmarkSkip measures skipping to epoch 90 of ImageNet, for the kind random.
func BenchmarkSkip(b *testing.B) {
	for b.Loop() {
		newTwister(1).skip(90 * 2 * draws(1_281_167))
	}
}
