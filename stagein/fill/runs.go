package fill

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// largePiece is the size, in bytes, from which on an owner reads a piece itself: the request is large enough, and the
// data need not be sent between nodes.
const largePiece = 1 << 20

// overGap is how many unneeded bytes, mostly headers, are read to merge reads into a larger one.
const overGap = 16 << 10

// runWorkers is how many runs a node reads concurrently. Only one worker continues while readers wait for other pieces.
const runWorkers = 4

// runID identifies a stretch of an archive. The runs of an archive all have the same size.
type runID struct {
	source uint32
	n      int64
}

// reader returns the node that reads a run, unless another node steals it.
func (id runID) reader(nodes []metadata.NodeID) metadata.NodeID {
	return nodes[uint64(id.n+int64(id.source))%uint64(len(nodes))]
}

// run holds the pieces that begin in one stretch, sorted by offset.
type run struct {
	runID
	turn  uint64
	parts []part
}

// sort sorts the parts by their offset, the order in which they are read.
func (r *run) sort() {
	slices.SortFunc(r.parts, func(a, b part) int { return cmp.Compare(a.at, b.at) })
}

// part is a piece within a run.
type part struct {
	PieceID
	node metadata.NodeID // the owner
	at   int64           // offset in the archive
	raw  int64           // bytes in the archive
	n    int64           // bytes of the file
	off  int64           // offset in the node's object

	sparse bool  // at is where all data of the file begins; pos is the position of the part in it
	pos    int64 // only if sparse
	head   int64 // bytes of headers before it whose digest must be check; 0: none
	check  uint64
	zip    manifest.Zip // for a member of a zip archive; zero: none
}

// item returns the part as a member of a zip archive.
func (p *part) item() *source.Item {
	return archive.ZipItem(&manifest.Origin{Off: p.at, Check: p.check, Zip: p.zip}, p.n)
}

// cooperates reports whether nodes read for each other: there are archives in which neighbours can be read together,
// and the order permits it.
func (cfg *Config) cooperates() bool {
	kind := cfg.Origins.Order.Kind
	return cfg.Peers != nil && (kind == stagein.OrderShuffled || kind == stagein.OrderSource) &&
		slices.ContainsFunc(cfg.Origins.Sources, func(o archive.Origin) bool { return inRuns(o.Kind) || o.Kind == source.Many })
}

// onlyArchives reports whether every file lies in a source that is read in runs.
func (cfg *Config) onlyArchives() bool {
	return !slices.ContainsFunc(cfg.Origins.Sources, func(o archive.Origin) bool { return !inRuns(o.Kind) })
}

// inRuns reports whether files in a source of this kind are read in runs.
func inRuns(k source.Kind) bool { return k == source.Tar || k == source.Zip }

// runReader reads runs for their owners, and steals runs of other nodes, under one map.
type runReader struct {
	*Fill
	m cluster.Map
}

// readAll reads the runs that the map assigns to this node, for the owners of their files, then steals unstarted runs
// that contain its own pieces. It reports whether everything that this node owns in archives is then here.
func (r runReader) readAll() (whole bool, err error) {
	nodes := r.m.Up()
	if !r.cfg.cooperates() || len(nodes) == 0 {
		return false, nil
	}
	rs, mine, err := r.gather(func(id runID) bool { return id.reader(nodes) == r.cfg.Self })
	if err != nil {
		return false, err
	}
	if r.cfg.onlyArchives() {
		r.total.Store(mine.bytes)
	}
	if len(mine.missing) > 0 {
		r.sortRuns(rs, r.cfg.Origins.Order.Seed)
		r.readRuns(rs)
	}
	if slices.ContainsFunc(mine.missing, r.flights.missing) {
		err = r.steal()
	}
	return !slices.ContainsFunc(mine.missing, func(p PieceID) bool { return !r.present.has(p) }), err
}

// steal reads runs that contain pieces of this node and that no other node has started.
func (r runReader) steal() error {
	left, err := r.runsLeft()
	if err != nil || len(left) == 0 {
		return err
	}
	rs, _, err := r.gather(func(id runID) bool { return left[id] })
	if err != nil {
		return err
	}
	r.sortRuns(rs, uint64(r.cfg.Self)+1) // in another order than the nodes that the map assigns them to
	r.readRuns(rs)
	return nil
}

// each calls fn for all pieces of files with a known place in the source, until it returns false. Small files in tars
// and zip archives are read in runs, the others alone.
func (r runReader) each(fn func(id runID, p part, alone bool) (more bool)) error {
	var bad error
	more := true
	err := r.cfg.Files.Located(func(from manifest.Origin, a metadata.Attr) bool {
		var kind source.Kind
		kind, bad = r.src.KindOf(from)
		alone := !inRuns(kind) || kind != source.Tar && a.Layout.Kind != metadata.Local
		partsOf(r.m, from, a, func(p part) {
			more = more && fn(runID{from.Source, p.at / r.cfg.RunSize}, p, alone || p.raw >= largePiece || p.sparse)
		})
		return more && bad == nil
	})
	return errors.Join(bad, err)
}

// share is the part of all runs that this node owns.
type share struct {
	bytes   int64
	missing []PieceID
}

// gather builds the wanted runs, and this node's share of all runs.
func (r runReader) gather(wanted func(runID) bool) ([]*run, share, error) {
	byID := make(map[runID]*run)
	var mine share
	err := r.each(func(id runID, p part, alone bool) bool {
		if p.node == r.cfg.Self {
			mine.bytes += p.n
			if !r.present.has(p.PieceID) {
				mine.missing = append(mine.missing, p.PieceID)
			}
		}
		if alone || !wanted(id) {
			return true
		}
		x := byID[id]
		if x == nil {
			x = &run{runID: id}
			byID[id] = x
		}
		x.parts = append(x.parts, p)
		return true
	})
	all := make([]*run, 0, len(byID))
	for _, x := range byID {
		x.sort()
		all = append(all, x)
	}
	return all, mine, err
}

// runsLeft returns the runs with pieces of this node that are neither present nor being fetched.
func (r runReader) runsLeft() (map[runID]bool, error) {
	left := make(map[runID]bool)
	err := r.each(func(id runID, p part, alone bool) bool {
		if !alone && p.node == r.cfg.Self && r.flights.missing(p.PieceID) {
			left[id] = true
		}
		return true
	})
	return left, err
}

// sortRuns sorts runs by the order of the fill.
func (r runReader) sortRuns(rs []*run, seed uint64) {
	if r.cfg.Origins.Order.Kind == stagein.OrderShuffled {
		for _, x := range rs {
			h := uint64(x.source)<<40 ^ uint64(x.n)
			x.turn = xxh3.HashSeed([]byte{byte(h >> 56), byte(h >> 48), byte(h >> 40), byte(h >> 32), byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}, seed)
		}
	}
	slices.SortFunc(rs, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.turn, b.turn), cmp.Compare(a.source, b.source), cmp.Compare(a.n, b.n))
	})
}

// readRuns reads runs, runWorkers of them concurrently.
func (r runReader) readRuns(rs []*run) {
	left := make(chan *run, len(rs)) // runs still in the channel can be stolen
	for _, x := range rs {
		left <- x
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
					r.limiter.waitIdle(over)
				}
				x, more := <-left
				if !more || r.ctx.Err() != nil {
					return
				}
				r.readRun(x)
			}
		})
	}
	wg.Wait()
}

// demandRun is how many bytes of a run are offered, read and completed together while readers wait: a reader of one of
// these pieces waits for all of them.
const demandRun = 512 << 10

// readRun reads a run: all at once, or, while readers wait, in parts with a rest after each.
func (r runReader) readRun(x *run) {
	for rest := x.parts; len(rest) > 0 && r.ctx.Err() == nil; {
		if !r.limiter.busy() {
			r.readParts(x.source, rest)
			return
		}
		n, began := within(rest, demandRun), time.Now()
		r.readParts(x.source, rest[:n])
		if rest = rest[n:]; r.cfg.Origins.Order.Kind == stagein.OrderShuffled { // else readers may follow the order
			r.limiter.rest(r.ctx, restAfter(time.Since(began)))
		}
	}
}

// within returns how many parts, at least one, begin in the first size bytes.
func within(parts []part, size int64) int {
	n := 1
	for n < len(parts) && parts[n].at < parts[0].at+size {
		n++
	}
	return n
}

// readParts offers the parts of a run to their owners, reads the granted ones, and sends them to the owners. It leaves
// parts that it cannot read to the owners.
func (r runReader) readParts(source uint32, parts []part) {
	all := r.offerParts(parts)
	for rest := all; len(rest) > 0; {
		n := together(rest)
		c := &transfer{f: r.Fill, items: rest[:n]}
		if err := c.run(source); err != nil && r.ctx.Err() == nil {
			r.cfg.Log.WithError(err).WithField("files", n).Debug("neighbouring files could not be read; their owners fetch them")
		}
		rest = rest[n:]
	}
	r.report(all)
}

// together returns how many of the remaining items of a run are read at once.
func together(rest []*item) int {
	n := 1
	for n < len(rest) && rest[n].follows(rest[n-1]) {
		n++
	}
	return n
}

func (p *part) begin() int64 { return p.at - p.head }
func (p *part) end() int64   { return p.at + p.raw }

// follows reports whether x is read in one go with before, its predecessor: between them lies no piece that is present
// or that another node fetches.
func (x *item) follows(before *item) bool {
	return x.index == before.index+1 && x.begin()-before.end() <= overGap
}

// offerParts offers parts to their owners, and returns those that this node must fetch.
func (r runReader) offerParts(parts []part) []*item {
	nodes := make(map[metadata.NodeID][]int)
	for i := range parts {
		nodes[parts[i].node] = append(nodes[parts[i].node], i)
	}
	mine := make([]bool, len(parts))
	var wg sync.WaitGroup
	for id, of := range nodes {
		wg.Go(func() {
			c := Offer{By: r.cfg.Self, Incarnation: r.incarnation}
			for _, i := range of {
				c.Pieces = append(c.Pieces, parts[i].PieceID)
			}
			granted, err := r.offerTo(id, c)
			for k, i := range of {
				mine[i] = err == nil && k < len(granted) && granted[k]
			}
			if err != nil { // the owner may have granted it all the same
				r.reportTo(id, Completion{By: c.By, Incarnation: c.Incarnation, Pieces: c.Pieces, Sums: make([][]byte, len(c.Pieces))})
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

func (r runReader) offerTo(to metadata.NodeID, c Offer) ([]bool, error) {
	if to == r.cfg.Self {
		return r.Accept(c), nil
	}
	return r.cfg.Peers.Offer(r.ctx, to, c)
}

// reportTo sends a node the completion of an offer. An unreachable node withdraws the offer itself after a timeout.
func (r runReader) reportTo(to metadata.NodeID, l Completion) {
	var err error
	if to == r.cfg.Self {
		err = r.Complete(l)
	} else {
		err = r.cfg.Peers.Complete(r.ctx, to, l)
	}
	if err != nil && r.ctx.Err() == nil {
		r.cfg.Log.WithError(err).WithField("node", to).Warn("completion not reported: the node fetches these pieces itself")
	}
}

// report reports to every owner which pieces were fetched and which were not.
func (r runReader) report(all []*item) {
	of := make(map[metadata.NodeID]*Completion)
	var here []*item
	for _, x := range all {
		if x.node == r.cfg.Self {
			here = append(here, x)
			continue
		}
		l := of[x.node]
		if l == nil {
			l = &Completion{By: r.cfg.Self, Incarnation: r.incarnation}
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
		wg.Go(func() { r.reportTo(id, *l) })
	}
	if err := r.completeLocal(here); err != nil {
		r.cfg.Log.WithError(err).Warn("journal not updated: these pieces are fetched again")
	}
	wg.Wait()
}

// partsOf calls fn with the pieces of a file in an archive.
func partsOf(m cluster.Map, from manifest.Origin, a metadata.Attr, fn func(p part)) {
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
