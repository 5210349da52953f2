package prefetch

import "context"

// positions passes new positions to the tracker. An old one would bring back a rank that has ended, or an order that
// the reads have left.
func (f *follower) positions() {
	for _, p := range f.e.cfg.Positions() {
		if last, ok := f.heard[p.Rank]; !ok || last != p {
			f.heard[p.Rank] = p
			f.t.Position(p.Rank, p.Epoch, p.Position, f.e.cfg.Now())
		}
	}
}

// size returns the bytes that a number takes of the tracker's budget: streams have their own.
func (f *follower) size(number int) int64 {
	u, ok := f.e.unit(context.Background(), f.numbers, number)
	if !ok || u.n > f.e.whole() {
		return 0
	}
	return u.n
}
