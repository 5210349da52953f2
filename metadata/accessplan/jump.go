package accessplan

import (
	"math/bits"
	"slices"
	"sync"
)

// jumpFrom is how many numbers are skipped by a jump; to draw fewer takes less time.
const jumpFrom = 1 << 23

// skip advances a generator that has drawn nothing by k numbers.
func (t *twister) skip(k uint64) {
	if k >= jumpFrom {
		t.jump(k)
		return
	}
	for ; k > twisterSize; k -= twisterSize {
		t.turn()
	}
	if k > 0 {
		t.turn()
		t.at = int(k)
		return
	}
	t.at = twisterSize
}

// jump is skip in a time that hardly depends on k (Haramoto et al., "Efficient Jump Ahead for F2-Linear Random Number
// Generators", 2008). The step F from one number to the next is linear over GF(2), and P(F) is zero for its
// characteristic polynomial P. So k steps are g(F) for g = x^k mod P, which is evaluated by Horner's rule.
func (t *twister) jump(k uint64) {
	g := powerOfX(k)
	var ring [twisterSize]uint32 // the state, from first on
	first := 0
	for i := twisterDegree - 1; i >= 0; i-- {
		second, middle := (first+1)%twisterSize, (first+twisterMid)%twisterSize
		ring[first] = ring[middle] ^ twist(ring[first], ring[second])
		if first = second; g.bit(i) == 0 {
			continue
		}
		n := copyXor(ring[first:], t.state[:])
		copyXor(ring[:first], t.state[n:])
	}
	copy(t.state[copy(t.state[:], ring[first:]):], ring[:first])
	t.at = twisterSize
}

func copyXor(to, from []uint32) int {
	n := min(len(to), len(from))
	for i, v := range from[:n] {
		to[i] ^= v
	}
	return n
}

// twisterDegree is the degree of the characteristic polynomial.
const twisterDegree = 19937

// poly is a polynomial over GF(2): a bit for each power of x.
type poly []uint64

const polyWords = twisterDegree/64 + 1

func (p poly) bit(i int) uint64 { return p[i/64] >> (i % 64) & 1 }

// shift multiplies p by x, and adds b.
func (p poly) shift(b uint64) {
	for i, v := range p {
		p[i], b = v<<1|b, v>>63
	}
}

func (p poly) add(q poly) {
	for i, v := range q {
		p[i] ^= v
	}
}

// characteristic returns the characteristic polynomial times x^0, ..., x^63. The algorithm of Berlekamp and Massey finds it
// from one bit of twice as many numbers.
var characteristic = sync.OnceValue(func() (all [64]poly) {
	t := newTwister(1)
	c, b, last := make(poly, polyWords), make(poly, polyWords), make(poly, polyWords)
	c[0], b[0] = 1, 1
	for n, l := 0, 0; n < 2*twisterDegree; n++ {
		last.shift(uint64(t.next() & 1))
		b.shift(0)
		ones := 0
		for i, v := range c {
			ones += bits.OnesCount64(v & last[i])
		}
		if ones%2 == 0 {
			continue
		}
		before := slices.Clone(c)
		c.add(b)
		if 2*l <= n {
			l, b = n+1-l, before
		}
	}
	p := make(poly, polyWords+1)
	for i := range twisterDegree + 1 {
		p[i/64] |= c.bit(twisterDegree-i) << (i % 64)
	}
	for i := range all {
		all[i] = slices.Clone(p)
		p.shift(0)
	}
	return all
})

// powerOfX is x^k modulo the characteristic polynomial.
func powerOfX(k uint64) poly {
	all := characteristic()
	p := make(poly, polyWords)
	p[0] = 1
	for i := bits.Len64(k) - 1; i >= 0; i-- {
		square := make(poly, 2*polyWords+1)
		for w, v := range p {
			square[2*w], square[2*w+1] = spread(uint32(v)), spread(uint32(v>>32))
		}
		if k>>i&1 != 0 {
			square.shift(0)
		}
		for at := 2 * twisterDegree; at >= twisterDegree; at-- {
			if square.bit(at) != 0 {
				over := at - twisterDegree
				square[over/64:].add(all[over%64])
			}
		}
		copy(p, square)
	}
	return p
}

// spread puts a zero before each bit, which squares a polynomial.
func spread(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	x = (x | x<<2) & 0x3333333333333333
	return (x | x<<1) & 0x5555555555555555
}
