package fill

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Run fetches, until ctx ends, the pieces that the map assigns to this node: its own share in the order of the fill,
// and, when a node is lost, its part of that node's share. It calls tell when the results of Done or Err may have
// changed.
func (f *Fill) Run(ctx context.Context, tell func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { f.watchOffers(f.ctx) })
	defer context.AfterFunc(ctx, f.cancel)()
	f.limiter.demand(FirstDemand)()
	f.startThrottled()
	var lost []metadata.NodeID
	done := false
	for {
		m, changed := f.cfg.Watch()
		if down := downIn(m); !done || !slices.Equal(down, lost) {
			f.setComplete(m.Epoch, false)
			done = f.fetchAll(m)
			lost = down
		}
		if done {
			f.setComplete(m.Epoch, true)
		}
		tell()
		select {
		case <-f.ctx.Done():
			return
		case <-changed:
		}
	}
}

func downIn(m cluster.Map) []metadata.NodeID {
	var ids []metadata.NodeID
	for _, n := range m.Nodes {
		if n.State == cluster.Down {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// setComplete records whether everything that this node owns in epoch e is here.
func (f *Fill) setComplete(e metadata.Epoch, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch = e
	f.complete.Store(whole)
}

// fetchAll fetches everything that m assigns to this node, and reports whether it succeeded.
func (f *Fill) fetchAll(m cluster.Map) bool {
	f.setErr(nil)
	f.overflow.reset()
	heal(f, m)
	list, err := f.listMissing(m)
	if err != nil {
		f.setErr(err)
		return false
	}
	next, all := make(chan PieceID), make(chan struct{})
	var wg sync.WaitGroup
	for i := range f.workers() {
		wg.Go(func() {
			f.stagger(i, all)
			f.work(i, next)
		})
	}
	first := len(downIn(m)) == 0 // then one failed store fails the dataset
	f.flights.begin(min(len(list)/16, mostEarly))
	for _, p := range list {
		select {
		case next <- p:
		case <-f.ctx.Done():
		}
		if f.ctx.Err() != nil || first && f.Err() != nil {
			break
		}
	}
	close(next)
	close(all)
	wg.Wait()
	f.reportMissing(list)
	return f.ctx.Err() == nil && f.Err() == nil
}

// listMissing reads the runs, then returns the pieces that must be fetched one by one.
func (f *Fill) listMissing(m cluster.Map) ([]PieceID, error) {
	if f.cfg.onlyArchives() { // the runs show which pieces are missing, without listing all names
		whole, err := runReader{f, m}.readAll()
		if whole || err != nil {
			return nil, err
		}
		return f.list(m)
	}
	list, err := f.list(m)
	if err == nil && len(list) > 0 {
		_, err = runReader{f, m}.readAll()
	}
	return list, err
}

func (f *Fill) setErr(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() == nil {
		f.err = err
	}
}

// workers returns the number of workers. A directory has more than pieces are read concurrently, because opening a file
// takes several round trips to the source in which nothing is read.
func (f *Fill) workers() int {
	if slices.ContainsFunc(f.cfg.Origins.Sources, func(o archive.Origin) bool { return o.Kind == source.Dir }) {
		return (1 + openPerRead) * f.cfg.Workers
	}
	return f.cfg.Workers
}

const (
	firstWorkers = 8                     // workers active while files of a directory pass the startup limiter
	workerDelay  = 50 * time.Millisecond // between the starts of later workers
)

// startThrottled limits reads of a directory's files at the start, for longer if there are demand reads.
func (f *Fill) startThrottled() {
	served := f.startup.demand(0)
	time.AfterFunc(FirstDemand, func() {
		if f.read.Load() {
			time.AfterFunc(startupTime-FirstDemand, served)
		} else {
			served()
		}
	})
}

// stagger returns when worker i may begin, or when no pieces are left. At the start, read-ahead by many workers would
// delay demand reads.
func (f *Fill) stagger(i int, all <-chan struct{}) {
	if i < firstWorkers {
		return
	}
	f.startup.waitIdle(all)
	if !f.read.Load() {
		return
	}
	select {
	case <-all:
	case <-time.After(time.Duration(i-firstWorkers) * workerDelay):
	}
}

// work fetches one piece after another. While readers that do not follow the order wait, only the first worker
// continues, and it rests after each piece.
func (f *Fill) work(i int, next <-chan PieceID) {
	rest := othersRest
	if i == 0 {
		rest = 0
	}
	for p := range next {
		if !f.present.has(p) {
			f.flights.yieldToReaders(f.ctx, rest)
		}
		f.flights.reached(p)
		began := time.Now()
		_ = f.fetch(p) // finish keeps the error
		if i == 0 {
			rest = restAfter(time.Since(began))
		}
	}
}

// list returns the pieces that m assigns to this node and that are missing here, in the order of the fill.
func (f *Fill) list(m cluster.Map) ([]PieceID, error) {
	t, err := newTurns(f.cfg.Origins.Order, f.cfg.Origins.Order.Seed, f.cfg.Files, f.cfg.List)
	if err != nil {
		return nil, err
	}
	var all []ranked
	var total int64
	linked := make(map[metadata.Ino]bool) // files with several names that were already seen
	err = f.cfg.Files.Files(func(dir string, _ uint32, name string, a metadata.Attr) bool {
		turn := t.of(dir, name, a.Ino)
		again := linked[a.Ino]
		if a.Nlink > 1 {
			linked[a.Ino] = true
		}
		s := placementOf(m, a)
		for chunk := range s.pieces() {
			if len(s.order) == 0 || m.Holder(a.Ino, s.owner(chunk)) != f.cfg.Self {
				continue
			}
			if _, n, _ := s.at(chunk, f.cfg.Self); !again {
				total += n
			}
			if p := (PieceID{a.Ino, chunk}); !f.present.has(p) {
				all = append(all, ranked{p, turn})
			}
		}
		return true
	})
	f.total.Store(total)
	list := byTurn(all)
	f.mu.Lock()
	f.queue, f.front = append(all, ranked{turn: math.MaxUint64}), 0
	f.mu.Unlock()
	return list, err
}
