package accessplan

import "math"

// RandPerm returns the result of torch.randperm(n) for a CPU generator with manual_seed(seed).
func RandPerm(seed uint64, n int) []uint32 { return newTwister(uint32(seed)).perm(n) }

// wide is the length from which torch draws 64 bits for each place of a permutation.
const wide = math.MaxUint32 / 20

// draws returns the count of numbers that perm(n) draws; it does not depend on the numbers drawn.
func draws(n int) uint64 {
	if n >= wide {
		return 2 * uint64(n)
	}
	return uint64(max(n-1, 0))
}

// perm draws a permutation as torch.randperm does on the CPU. n fits into 32 bits.
func (t *twister) perm(n int) []uint32 {
	p := make([]uint32, n)
	if n >= wide {
		// Above this, torch takes 64 bits for each, the upper half first.
		for i := range p {
			z := t.next64() % uint64(i+1)
			p[i] = uint32(i)
			p[i], p[z] = p[z], p[i]
		}
		return p
	}
	for i := range p {
		p[i] = uint32(i)
	}
	for i := 0; i < n-1; i++ {
		z := i + int(t.next()%uint32(n-i))
		p[i], p[z] = p[z], p[i]
	}
	return p
}

// next64 returns the next 64 bits, the upper half first.
func (t *twister) next64() uint64 { return uint64(t.next())<<32 | uint64(t.next()) }

// twister is MT19937 (Matsumoto and Nishimura, 1998), PyTorch's generator on the CPU, which uses only the lower 32 bits
// of the seed.
type twister struct {
	state [twisterSize]uint32
	at    int
}

const (
	twisterSize = 624
	twisterMid  = 397
)

func newTwister(seed uint32) *twister {
	t := &twister{at: twisterSize}
	t.state[0] = seed
	for i := uint32(1); i < twisterSize; i++ {
		before := t.state[i-1]
		t.state[i] = 1812433253*(before^before>>30) + i
	}
	return t
}

// twist is the part of a step that mixes the bits of two neighbours.
func twist(upper, lower uint32) uint32 {
	y := upper&0x80000000 | lower&0x7fffffff
	return y>>1 ^ -(y&1)&0x9908b0df
}

func (t *twister) turn() {
	s := &t.state
	for i := range twisterSize - twisterMid {
		s[i] = s[i+twisterMid] ^ twist(s[i], s[i+1])
	}
	for i := twisterSize - twisterMid; i < twisterSize-1; i++ {
		s[i] = s[i+twisterMid-twisterSize] ^ twist(s[i], s[i+1])
	}
	s[twisterSize-1] = s[twisterMid-1] ^ twist(s[twisterSize-1], s[0])
	t.at = 0
}

// skip advances an unused generator by k numbers. Reaching epoch 90 of ImageNet takes half a second.
func (t *twister) skip(k uint64) {
	for ; k > twisterSize; k -= twisterSize {
		t.turn()
	}
	if k > 0 {
		t.turn()
		t.at = int(k)
	}
}

// next returns the next 32 bits.
func (t *twister) next() uint32 {
	if t.at == twisterSize {
		t.turn()
	}
	y := t.state[t.at]
	t.at++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}
