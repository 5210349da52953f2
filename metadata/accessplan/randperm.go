package accessplan

import "math"

// RandPerm is what torch.randperm(n) returns for a CPU generator with manual_seed(seed).
func RandPerm(seed uint64, n int) []uint32 { return newTwister(uint32(seed)).perm(n) }

// perm draws a permutation as torch.randperm does on the CPU. n fits into 32 bits.
func (t *twister) perm(n int) []uint32 {
	p := make([]uint32, n)
	if n >= math.MaxUint32/20 {
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

// next64 is the next 64 bits, the upper half first.
func (t *twister) next64() uint64 { return uint64(t.next())<<32 | uint64(t.next()) }

// twister is MT19937 (Matsumoto and Nishimura, 1998), PyTorch's generator on the CPU, which
// seeds only its lower 32 bits.
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

func (t *twister) turn() {
	for i := range t.state {
		y := t.state[i]&0x80000000 | t.state[(i+1)%twisterSize]&0x7fffffff
		z := t.state[(i+twisterMid)%twisterSize] ^ y>>1
		if y&1 != 0 {
			z ^= 0x9908b0df
		}
		t.state[i] = z
	}
	t.at = 0
}

// next is the next 32 bits.
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
