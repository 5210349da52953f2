package simulate

import (
	"math/rand/v2"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// deal gives each rank its samples of an epoch, in order; all ranks get the same number.
func (r *run) deal(epoch int) [][]int32 {
	n, world := len(r.job.Sizes), r.world
	if r.policy == ChunkWise {
		return r.chunks(epoch)
	}
	order := permutation(rand.New(rand.NewPCG(r.job.Seed, 16+uint64(epoch))), n)
	for i := 0; len(order)%world != 0; i++ { // as DistributedSampler pads
		order = append(order, order[i])
	}
	ranks, each := make([][]int32, world), len(order)/world
	switch r.policy {
	case Locality:
		for from := 0; from < len(order); from += world * r.job.Batch {
			r.match(order[from:min(len(order), from+world*r.job.Batch)], ranks)
		}
	default:
		for k := range ranks {
			ranks[k] = make([]int32, each)
			for i := range each {
				ranks[k][i] = order[i*world+k]
			}
		}
	}
	return ranks
}

func permutation(rng *rand.Rand, n int) []int32 {
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	rng.Shuffle(n, func(a, b int) { order[a], order[b] = order[b], order[a] })
	return order
}

// chunks deals as ChunkShuffleSampler does.
func (r *run) chunks(epoch int) [][]int32 {
	p := accessplan.Plan{Kind: accessplan.Chunk, Seed: r.job.Seed, Ranks: r.world, Chunk: r.job.Chunk, Group: r.job.Group}
	e, err := p.Epoch(epoch, len(r.job.Sizes))
	if err != nil {
		panic(err) // Check has checked the number of files
	}
	ranks := make([][]int32, r.world)
	for k := range ranks {
		for i := range e.Len(k) {
			ranks[k] = append(ranks[k], int32(e.At(k, i)))
		}
	}
	return ranks
}

// match deals a global batch: a node takes the samples that it holds, up to the share of its ranks; the surplus goes to
// nodes that hold too few.
func (r *run) match(batch []int32, ranks [][]int32) {
	nodes, per := r.job.Nodes, len(batch)/r.world*r.job.Ranks
	held, rest := make([][]int32, nodes), []int32(nil)
	for _, f := range batch {
		if h := r.at.home[f]; h != inSource && len(held[h]) < per {
			held[h] = append(held[h], f)
			continue
		}
		rest = append(rest, f)
	}
	for n := range nodes {
		short := per - len(held[n])
		held[n] = append(held[n], rest[:short]...)
		rest = rest[short:]
		for i, f := range held[n] {
			k := n*r.job.Ranks + i/(per/r.job.Ranks)
			ranks[k] = append(ranks[k], f)
		}
	}
}
