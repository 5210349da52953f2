package accessplan

import "cmp"

// The defaults of ChunkShuffleSampler.
const (
	defaultChunk = 64
	defaultGroup = 64
)

// chunks returns the order of an epoch of the kind Chunk: chunks of consecutive files, in random order, are cut into
// one equal part for each rank, which shuffles the files of group chunks together. Without DropLast files repeat.
func (p *Plan) chunks(e, n int) []uint32 {
	ranks, chunk, group := max(p.Ranks, 1), cmp.Or(p.Chunk, defaultChunk), cmp.Or(p.Group, defaultGroup)
	generator := func(more int) *twister { return newTwister(uint32((p.Seed+uint64(e))*1_000_003) + uint32(more)) }
	each := n / ranks
	if !p.DropLast {
		each = (n + ranks - 1) / ranks
	}
	all, starts := make([]uint32, 0, n+ranks), []int(nil)
	for _, c := range generator(0).perm((n + chunk - 1) / chunk) {
		starts = append(starts, len(all))
		for i := int(c) * chunk; i < min(n, (int(c)+1)*chunk); i++ {
			all = append(all, uint32(i))
		}
	}
	starts = append(starts, n)
	for i := 0; len(all) < each*ranks; i++ {
		all = append(all, all[i])
	}
	if each < 2 {
		return all[:each*ranks]
	}
	order, at := make([]uint32, each*ranks), 0
	for rank := range ranks {
		g, first, from := generator(1+rank), rank*each, rank*each
		shuffle := func(end int) {
			for i, k := range g.perm(end - from) {
				order[(from-first+i)*ranks+rank] = all[from+int(k)]
			}
			from = end
		}
		for seen := 0; at < len(starts) && starts[at] < first+each; at++ {
			if starts[at] == first {
				continue
			}
			if seen++; seen%group == 0 {
				shuffle(starts[at])
			}
		}
		shuffle(first + each)
	}
	return order
}
