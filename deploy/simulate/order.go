package simulate

import "math/rand/v2"

// The shape of a chunk-wise shuffle: files of a group, and groups that a rank
// shuffles together.
const (
	groupFiles  = 64
	windowGroup = 16
)

// deal gives each rank its samples of an epoch, in order; all get equally many.
func (r *run) deal(epoch int) [][]int32 {
	n, world := len(r.job.Sizes), r.world
	rng := rand.New(rand.NewPCG(r.job.Seed, 16+uint64(epoch)))
	var order []int32
	if r.policy == ChunkWise {
		order = groups(rng, n)
	} else {
		order = permutation(rng, n)
	}
	for i := 0; len(order)%world != 0; i++ { // as DistributedSampler pads
		order = append(order, order[i])
	}
	ranks, each := make([][]int32, world), len(order)/world
	switch r.policy {
	case ChunkWise:
		for k := range ranks {
			ranks[k] = order[k*each : (k+1)*each]
			for from := 0; from < each; from += groupFiles * windowGroup {
				w := ranks[k][from:min(each, from+groupFiles*windowGroup)]
				rng.Shuffle(len(w), func(a, b int) { w[a], w[b] = w[b], w[a] })
			}
		}
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

// groups returns runs of neighbours, in random order.
func groups(rng *rand.Rand, n int) []int32 {
	order := make([]int32, 0, n)
	for _, g := range permutation(rng, (n+groupFiles-1)/groupFiles) {
		for i := int(g) * groupFiles; i < min(n, (int(g)+1)*groupFiles); i++ {
			order = append(order, int32(i))
		}
	}
	return order
}

// match deals a global batch: a node takes the samples that it holds, up to its
// ranks' share; the surplus goes to nodes that hold too few.
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
