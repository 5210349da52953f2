package daemon

import (
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// seamKey is a region of a dataset.
type seamKey struct {
	ds   metadata.DatasetID
	part int
}

// The bounds of what peers can make this node do at a time and remember.
const (
	maxSeams = 256 // seams of up to some 2 MiB that wait for their share
)

// staging is the shares that run on this node, and the seams that came for them.
type staging struct {
	mu    sync.Mutex                    // stageMu of the package comment
	seams map[seamKey]chan stagein.Seam // one seam for each; buffered, so that it can come early
	jobs  map[metadata.DatasetID]*intake
	ended map[metadata.DatasetID]bool // failed: a share, a seam or a write that comes late is refused
	// void is the parts whose inodes are nobody's: who was given up may still write.
	void map[metadata.DatasetID][]stagein.Try
	// dropped is what of ended has been removed from this node already.
	dropped map[metadata.DatasetID]bool
	// asked counts, for each name, the stage-ins that this node is about to
	// enter in the registry: what shows up there may not be in jobs yet.
	asked map[string]int
	// fence is held for reading by writes to the objects of datasets, and
	// for writing for a moment when one of them ends: what was written
	// before is there to be removed, and what comes after is refused.
	fence sync.RWMutex
	slots chan struct{} // what this node leads runs a few at a time
	// placeMu is held while a turn puts files in their place.
	placeMu sync.Mutex
}

// maxIntakes is how many stage-ins a node leads at a time: each has buffers on
// every node.
const maxIntakes = 4

func (s *staging) init() {
	s.seams = make(map[seamKey]chan stagein.Seam)
	s.jobs = make(map[metadata.DatasetID]*intake)
	s.ended = make(map[metadata.DatasetID]bool)
	s.void = make(map[metadata.DatasetID][]stagein.Try)
	s.dropped = make(map[metadata.DatasetID]bool)
	s.asked = make(map[string]int)
	s.slots = make(chan struct{}, maxIntakes)
}

// seam is the mailbox of a region.
func (s *staging) seam(k seamKey) (chan stagein.Seam, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended[k.ds] {
		return nil, fmt.Errorf("seam of dataset %d: %w", k.ds, syscall.ECANCELED)
	}
	c, ok := s.seams[k]
	if !ok {
		if len(s.seams) >= maxSeams {
			return nil, fmt.Errorf("seams: %w", syscall.EBUSY)
		}
		c = make(chan stagein.Seam, 1)
		s.seams[k] = c
	}
	return c, nil
}

// forgetSeams drops the seams of a dataset that nobody stages any more.
func (s *staging) forgetSeams(ds metadata.DatasetID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.seams {
		if k.ds == ds {
			delete(s.seams, k)
		}
	}
}

// end marks a dataset as failed. When it returns, no write to an object of the dataset is
// under way, and none will be.
func (s *staging) end(ds metadata.DatasetID) {
	s.forgetSeams(ds)
	s.fence.Lock()
	defer s.fence.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[ds] = true
}

func (s *staging) hasEnded(ds metadata.DatasetID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[ds]
}

// refuses reports whether nothing may be written to an object any more.
func (s *staging) refuses(ino metadata.Ino) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ds := ino.Dataset()
	return s.ended[ds] || isVoid(s.void[ds], ino)
}

// isVoid reports whether ino is of one of the parts that are void. Number 0 is that of a
// member of which others have parts, whichever try it was.
func isVoid(void []stagein.Try, ino metadata.Ino) bool {
	return ino.Seq() > 0 && slices.ContainsFunc(void, func(t stagein.Try) bool { return t.Number == ino.Part() && ino.Seq() > t.Kept })
}

// avoid has writes to the inodes of parts refused from now on, beside those that are refused already. When it returns, none
// is under way.
func (s *staging) avoid(ds metadata.DatasetID, void []stagein.Try) {
	s.fence.Lock()
	defer s.fence.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.void[ds]) // which somebody may be reading
	for _, t := range void {
		i := slices.IndexFunc(all, func(x stagein.Try) bool { return x.Number == t.Number })
		if i < 0 {
			all = append(all, t)
			continue
		}
		all[i].Kept = min(all[i].Kept, t.Kept) // nobody goes on with what was given up once
	}
	s.void[ds] = all
}

// drop reports whether the caller is the one to remove what there is of ds.
func (s *staging) drop(ds metadata.DatasetID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped[ds] {
		return false
	}
	s.dropped[ds] = true
	return true
}

// ask says that this node enters a stage-in name in the registry; the function
// that it returns says that it has.
func (s *staging) ask(name string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.asked[name]--; s.asked[name] == 0 {
			delete(s.asked, name)
		}
	}
}

func (s *staging) lead(in *intake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[in.ds.ID] = in
}

// keepSeam gives a seam to the stage-in that this node leads.
func (s *staging) keepSeam(q *seamReq) error {
	s.mu.Lock()
	in := s.jobs[q.Dataset]
	s.mu.Unlock()
	if in == nil {
		return fmt.Errorf("seam of dataset %d, which this node does not lead: %w", q.Dataset, syscall.ESTALE)
	}
	return in.keepSeam(q.Part, q.Seam)
}

// unlead forgets a stage-in, but no later turn of it.
func (s *staging) unlead(in *intake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[in.ds.ID] == in {
		delete(s.jobs, in.ds.ID)
	}
}

// leader is the stage-in of a dataset that this node leads, or has led; nil if none.
func (s *staging) leader(ds metadata.DatasetID) *intake {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[ds]
}

// leads reports whether this node leads the stage-in of ds, or may be about to.
func (s *staging) leads(ds cluster.Dataset) (leads, maybe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[ds.ID] != nil, s.asked[ds.Name] > 0
}
