package fill

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// largePiece is the size of a piece, in bytes, from which on its owner reads it by
// itself: the request is large enough, and the data need not go between nodes.
const largePiece = 1 << 20

// overGap is how many bytes of no file are read for the sake of one large read:
// headers, mostly.
const overGap = 16 << 10

// runWorkers is how many runs a node reads at a time, of which one goes on while
// readers wait for something else.
const runWorkers = 4

// runID names a stretch of an archive, of which runs all have the same size.
type runID struct {
	source uint32
	n      int64
}

// reader is the node that reads a run, unless another is done with its own before.
func (id runID) reader(nodes []metadata.NodeID) metadata.NodeID {
	return nodes[uint64(id.n+int64(id.source))%uint64(len(nodes))]
}

// run is the pieces that begin in such a stretch, by where they lie.
type run struct {
	runID
	turn  uint64
	parts []part
}

// sort puts the parts in the order in which they are read.
func (r *run) sort() {
	slices.SortFunc(r.parts, func(a, b part) int { return cmp.Compare(a.at, b.at) })
}

// part is a piece in a run.
type part struct {
	PieceID
	node metadata.NodeID // the owner
	at   int64           // in the archive
	raw  int64           // bytes there
	n    int64           // bytes of the file
	off  int64           // in the node's object

	sparse bool  // at is where all data of the file begins, pos where the part lies in it
	pos    int64 // likewise
	head   int64 // bytes of headers before it that have to have the digest check; 0 is none
	check  uint64
	zip    manifest.Zip // in a zip archive; zero is no such
}

// item is the member of a zip archive that the part is.
func (p *part) item() *source.Item {
	return archive.ZipItem(&manifest.Origin{Off: p.at, Check: p.check, Zip: p.zip}, p.n)
}

// cooperates reports whether nodes read for each other: there are archives whose neighbours can be read together, and no order
// forbids it.
func (f *Fill) cooperates() bool {
	kind := f.cfg.Origins.Order.Kind
	return f.cfg.Peers != nil && (kind == stagein.OrderShuffled || kind == stagein.OrderSource) &&
		slices.ContainsFunc(f.cfg.Origins.Sources, func(o archive.Origin) bool { return inRuns(o.Kind) || o.Kind == source.Many })
}

// onlyArchives reports whether every file lies in a source that is read in runs.
func (f *Fill) onlyArchives() bool {
	return !slices.ContainsFunc(f.cfg.Origins.Sources, func(o archive.Origin) bool { return !inRuns(o.Kind) })
}

// inRuns reports whether files of such a source are read in runs.
func inRuns(k source.Kind) bool { return k == source.Tar || k == source.Zip }

// runAll reads the runs that m gives this node, for the owners of what lies in them, and then steals runs with pieces of its
// own that no node has begun. It reports whether everything that this node owns in archives is here then.
func (f *Fill) runAll(m cluster.Map) (whole bool, err error) {
	nodes := m.Up()
	if !f.cooperates() || len(nodes) == 0 {
		return false, nil
	}
	rs, mine, err := f.gather(m, func(id runID) bool { return id.reader(nodes) == f.cfg.Self })
	if err != nil {
		return false, err
	}
	if f.onlyArchives() {
		f.total.Store(mine.bytes)
	}
	if len(mine.missing) > 0 {
		f.sortRuns(rs, f.cfg.Origins.Order.Seed)
		f.readRuns(rs)
	}
	if slices.ContainsFunc(mine.missing, f.missing) {
		err = f.steal(m)
	}
	return !slices.ContainsFunc(mine.missing, func(p PieceID) bool { return !f.present.has(p) }), err
}

// missing reports whether a piece is neither here nor being fetched.
func (f *Fill) missing(p PieceID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flights[p] == nil && !f.present.has(p)
}

// steal reads the runs with pieces of this node that no other node has begun.
func (f *Fill) steal(m cluster.Map) error {
	left, err := f.runsLeft(m)
	if err != nil || len(left) == 0 {
		return err
	}
	rs, _, err := f.gather(m, func(id runID) bool { return left[id] })
	if err != nil {
		return err
	}
	f.sortRuns(rs, uint64(f.cfg.Self)+1) // in another order than their first readers
	f.readRuns(rs)
	return nil
}

// each calls fn with all pieces of files that have a place in the source, until it
// returns false. Small files in tars and zip archives are read in runs, the others alone.
func (f *Fill) each(m cluster.Map, fn func(id runID, p part, alone bool) (more bool)) error {
	var bad error
	more := true
	err := f.cfg.Files.Located(func(from manifest.Origin, a metadata.Attr) bool {
		var kind source.Kind
		kind, bad = f.src.KindOf(from)
		alone := !inRuns(kind) || kind != source.Tar && a.Layout.Kind != metadata.Local
		f.parts(m, from, a, func(p part) {
			more = more && fn(runID{from.Source, p.at / f.cfg.RunSize}, p, alone || p.raw >= largePiece || p.sparse)
		})
		return more && bad == nil
	})
	return errors.Join(bad, err)
}

// parts calls fn with the pieces of a file in an archive.
func (f *Fill) parts(m cluster.Map, from manifest.Origin, a metadata.Attr, fn func(p part)) {
	s := placementOf(m, a)
	if len(s.order) == 0 {
		return
	}
	for chunk := range s.pieces() {
		p := part{PieceID: PieceID{a.Ino, chunk}, node: m.Holder(a.Ino, s.owner(chunk))}
		pos, n, off := s.at(chunk, p.node)
		p.at, p.raw, p.n, p.off = from.Off+pos, n, n, off
		if pos == 0 {
			p.head, p.check = from.Head, from.Check
		}
		if from.Zip != (manifest.Zip{}) {
			p.raw, p.zip = from.Zip.Span, from.Zip
		}
		if from.Sparse {
			p.at, p.raw, p.head, p.sparse, p.pos = from.Off, 0, from.Head, true, pos
		}
		fn(p)
	}
}

// share is what a node owns of a run.
type share struct {
	bytes   int64
	missing []PieceID
}

// gather builds the wanted runs, and this node's share of all of them.
func (f *Fill) gather(m cluster.Map, wanted func(runID) bool) ([]*run, share, error) {
	byID := make(map[runID]*run)
	var mine share
	err := f.each(m, func(id runID, p part, alone bool) bool {
		if p.node == f.cfg.Self {
			mine.bytes += p.n
			if !f.present.has(p.PieceID) {
				mine.missing = append(mine.missing, p.PieceID)
			}
		}
		if alone || !wanted(id) {
			return true
		}
		r := byID[id]
		if r == nil {
			r = &run{runID: id}
			byID[id] = r
		}
		r.parts = append(r.parts, p)
		return true
	})
	all := make([]*run, 0, len(byID))
	for _, r := range byID {
		r.sort()
		all = append(all, r)
	}
	return all, mine, err
}

// runsLeft returns the runs with pieces of this node that are neither here nor being fetched.
func (f *Fill) runsLeft(m cluster.Map) (map[runID]bool, error) {
	left := make(map[runID]bool)
	err := f.each(m, func(id runID, p part, alone bool) bool {
		if !alone && p.node == f.cfg.Self && f.missing(p.PieceID) {
			left[id] = true
		}
		return true
	})
	return left, err
}

// sortRuns sorts runs by the order of the fill.
func (f *Fill) sortRuns(rs []*run, seed uint64) {
	if f.cfg.Origins.Order.Kind == stagein.OrderShuffled {
		for _, r := range rs {
			h := uint64(r.source)<<40 ^ uint64(r.n)
			r.turn = xxh3.HashSeed([]byte{byte(h >> 56), byte(h >> 48), byte(h >> 40), byte(h >> 32), byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}, seed)
		}
	}
	slices.SortFunc(rs, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.turn, b.turn), cmp.Compare(a.source, b.source), cmp.Compare(a.n, b.n))
	})
}

// readRuns reads runs, some at a time.
func (f *Fill) readRuns(rs []*run) {
	left := make(chan *run, len(rs)) // a run that is not taken can be stolen
	for _, r := range rs {
		left <- r
	}
	close(left)
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	var wg sync.WaitGroup
	for i := range runWorkers {
		wg.Go(func() {
			defer end()
			for {
				if i > 0 {
					f.limiter.waitIdle(over)
				}
				r, more := <-left
				if !more || f.ctx.Err() != nil {
					return
				}
				f.readRun(r)
			}
		})
	}
	wg.Wait()
}

// readRun offers the parts of a run that are not being fetched, reads them, and sends them to their owners. What cannot be
// read is left to the owners.
func (f *Fill) readRun(r *run) {
	all := f.offerParts(r.parts)
	for rest := all; len(rest) > 0; {
		n := together(rest)
		c := &transfer{f: f, items: rest[:n]}
		if err := c.run(r.source); err != nil && f.ctx.Err() == nil {
			f.cfg.Log.WithError(err).WithField("files", n).Debug("neighbouring files could not be read; their owners fetch them")
		}
		rest = rest[n:]
	}
	f.report(all)
}

// together is how many of the rest of a run are read at once.
func together(rest []*item) int {
	n := 1
	for n < len(rest) && rest[n].follows(rest[n-1]) {
		n++
	}
	return n
}

func (p *part) begin() int64 { return p.at - p.head }
func (p *part) end() int64   { return p.at + p.raw }

// follows reports whether x is read in one go with what is before it: nothing that
// another brings, or has, lies between them.
func (x *item) follows(before *item) bool {
	return x.index == before.index+1 && x.begin()-before.end() <= overGap
}

// offerParts offers parts to their owners, and returns those that this node is to fetch.
func (f *Fill) offerParts(parts []part) []*item {
	nodes := make(map[metadata.NodeID][]int)
	for i := range parts {
		nodes[parts[i].node] = append(nodes[parts[i].node], i)
	}
	mine := make([]bool, len(parts))
	var wg sync.WaitGroup
	for id, of := range nodes {
		wg.Go(func() {
			c := Offer{By: f.cfg.Self, Incarnation: f.incarnation}
			for _, i := range of {
				c.Pieces = append(c.Pieces, parts[i].PieceID)
			}
			granted, err := f.offerTo(id, c)
			for k, i := range of {
				mine[i] = err == nil && k < len(granted) && granted[k]
			}
			if err != nil { // it may have been granted all the same
				f.reportTo(id, Completion{By: c.By, Incarnation: c.Incarnation, Pieces: c.Pieces, Sums: make([][]byte, len(c.Pieces))})
			}
		})
	}
	wg.Wait()
	var all []*item
	for i, p := range parts {
		if mine[i] {
			all = append(all, &item{part: p, index: i, sum: archive.Hasher{Size: p.n}})
		}
	}
	return all
}

func (f *Fill) offerTo(to metadata.NodeID, c Offer) ([]bool, error) {
	if to == f.cfg.Self {
		return f.Accept(c), nil
	}
	return f.cfg.Peers.Offer(f.ctx, to, c)
}

// reportTo sends a node the completion of an offer. A node that cannot be reached withdraws the offer by itself after a time.
func (f *Fill) reportTo(to metadata.NodeID, l Completion) {
	var err error
	if to == f.cfg.Self {
		err = f.Complete(l)
	} else {
		err = f.cfg.Peers.Complete(f.ctx, to, l)
	}
	if err != nil && f.ctx.Err() == nil {
		f.cfg.Log.WithError(err).WithField("node", to).Warn("completion not reported: the node fetches these pieces itself")
	}
}

// report sends every owner what was fetched and what was not.
func (f *Fill) report(all []*item) {
	of := make(map[metadata.NodeID]*Completion)
	var here []*item
	for _, x := range all {
		if x.node == f.cfg.Self {
			here = append(here, x)
			continue
		}
		l := of[x.node]
		if l == nil {
			l = &Completion{By: f.cfg.Self, Incarnation: f.incarnation}
			of[x.node] = l
		}
		var sum []byte
		if x.stored {
			b := x.sum.Sum128()
			sum = b[:]
		}
		l.Pieces, l.Sums = append(l.Pieces, x.PieceID), append(l.Sums, sum)
	}
	var wg sync.WaitGroup
	for id, l := range of {
		wg.Go(func() { f.reportTo(id, *l) })
	}
	if err := f.completeLocal(here); err != nil {
		f.cfg.Log.WithError(err).Warn("journal not updated: these pieces are fetched again")
	}
	wg.Wait()
}
