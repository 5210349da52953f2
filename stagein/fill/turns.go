package fill

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/stagein"
)

// ranked is a piece with its turn in the fill order.
type ranked struct {
	PieceID
	turn uint64
}

// byTurn sorts pieces by turn and drops repetitions: a file with several names keeps its first turn.
func byTurn(all []ranked) []PieceID {
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.turn, b.turn), cmp.Compare(a.Ino, b.Ino), cmp.Compare(a.Chunk, b.Chunk))
	})
	list := make([]PieceID, 0, len(all))
	seen := make(map[PieceID]bool)
	for i := range all {
		p := all[i].PieceID
		if seen[p] {
			continue
		}
		seen[p] = true
		list = append(list, p)
	}
	return list
}

// First counts the samples that are present from the start of the order on, judged by this node's part: see
// stagein.Progress.
func (f *Fill) First() int64 {
	if o := f.cfg.Origins.Order.Kind; o == "" || o == stagein.OrderShuffled || o == stagein.OrderSource {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		return 0 // not known yet
	}
	for f.front < len(f.queue)-1 && f.present.has(f.queue[f.front].PieceID) {
		f.front++
	}
	if turn := f.queue[f.front].turn; turn < afterList {
		return int64(turn)
	}
	return stagein.AllFirst
}

// afterList is the lowest turn of a file that the list does not name.
const afterList = 1 << 63

// turns computes each file's turn in the fill order.
type turns struct {
	order  stagein.Order
	seed   uint64                // of the job
	list   map[uint64]uint64     // turn by hash of the path, for a list
	number *accessplan.Numbering // for a sampler
	epoch  *accessplan.Epoch     // for a sampler; nil if no file has a number
}

// newTurns returns the turns of an order. list holds the lines of the order's file.
func newTurns(o stagein.Order, seed uint64, files stagein.Files, list []string) (*turns, error) {
	t := &turns{order: o, seed: seed}
	if o.Kind == stagein.OrderList {
		t.list = make(map[uint64]uint64, len(list))
		for i, path := range list {
			h := xxh3.HashString(path)
			if _, again := t.list[h]; !again {
				t.list[h] = uint64(i)
			}
		}
	}
	p, ok := o.Plan()
	if !ok {
		return t, nil
	}
	p.Ranks, p.DropLast = 0, false // the ranks share one order
	number, err := accessplan.Number(files, &p)
	if errors.Is(err, syscall.EINVAL) { // no file is below root=
		p.Root = ""
		number, err = accessplan.Number(files, &p)
	}
	if err != nil || number.Len() == 0 {
		return t, err
	}
	t.number = number
	t.epoch, err = p.Epoch(0, number.Len())
	return t, err
}

// of returns the turn of a file. Files that the order does not name follow it, shuffled.
func (t *turns) of(dir, name string, ino metadata.Ino) uint64 {
	switch {
	case t.order.Kind == stagein.OrderSource:
		return uint64(ino) // numbered in the order in which they were found
	case t.epoch != nil:
		if number, ok := t.number.Of(ino); ok {
			_, turn, _ := t.epoch.Find(number)
			return uint64(turn)
		}
	case t.order.Kind == stagein.OrderList:
		if i, ok := t.list[xxh3.HashString(strings.TrimPrefix(dir+"/"+name, "/"))]; ok {
			return i
		}
	}
	h := xxh3.HashSeed([]byte{byte(ino >> 40), byte(ino >> 32), byte(ino >> 24), byte(ino >> 16), byte(ino >> 8), byte(ino)}, t.seed)
	return h | afterList
}
