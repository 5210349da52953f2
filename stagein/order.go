package stagein

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// Order is in which order a dataset is filled. As text it is
//
//	shuffled    at random, by the job's seed; the default
//	source      as the files stand in the source
//	seed:S      as PyTorch's DistributedSampler(seed=S, shuffle=True) hands them out in epoch 0
//	list:FILE   as FILE names them, a path in the dataset on each line; the rest comes after, shuffled
//
// For seed:S the files are numbered as torchvision's ImageFolder does it (package
// accessplan). Files that it does not number come after the others.
type Order struct {
	Kind string `json:"kind,omitempty"` // "", shuffled, source, seed or list
	Seed uint64 `json:"seed,omitempty"` // of shuffled and seed
	List string `json:"list,omitempty"` // FILE
}

// The kinds of order.
const (
	OrderShuffled = "shuffled"
	OrderSource   = "source"
	OrderSeed     = "seed"
	OrderList     = "list"
)

// ParseOrder reads an order.
func ParseOrder(s string) (Order, error) {
	bad := func(why string) (Order, error) {
		return Order{}, fmt.Errorf("%s: %w", why, syscall.EINVAL)
	}
	kind, arg, has := strings.Cut(s, ":")
	switch {
	case kind == "" && !has:
		return Order{}, nil
	case (kind == OrderShuffled || kind == OrderSource) && !has:
		return Order{Kind: kind}, nil
	case kind == OrderSeed && has:
		seed, err := strconv.ParseUint(arg, 10, 64)
		if err != nil {
			return bad(fmt.Sprintf("the seed %q is not a whole number from 0 to 18446744073709551615", arg))
		}
		return Order{Kind: kind, Seed: seed}, nil
	case kind == OrderList && arg != "":
		return Order{Kind: kind, List: filepath.Clean(arg)}, nil
	}
	return bad(fmt.Sprintf("the order %q is not known: give shuffled, source, seed:S or list:FILE", s))
}

// check refuses an order that ParseOrder does not give, or whose list is not known
// to be anywhere.
func (o Order) check() error {
	again, err := ParseOrder(o.String())
	switch {
	case err != nil:
		return err
	case o.Kind == OrderList && !filepath.IsAbs(o.List) || strings.ContainsRune(o.List, 0):
		return fmt.Errorf("order=%v: the list is no absolute path: %w", o, syscall.EINVAL)
	case again.Kind != o.Kind || again.List != o.List:
		return fmt.Errorf("order %+v: %w", o, syscall.EINVAL)
	}
	return nil
}

// String is what ParseOrder reads.
func (o Order) String() string {
	switch o.Kind {
	case OrderSeed:
		return fmt.Sprintf("%s:%d", o.Kind, o.Seed)
	case OrderList:
		return o.Kind + ":" + o.List
	}
	return o.Kind
}

// Files is the files of a dataset; a manifest.Table is one.
type Files interface {
	// Files calls fn with every name of a file, directory by directory, by
	// name, until it returns false.
	Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error
	// Located calls fn with every file whose bytes have an origin, until it
	// returns false.
	Located(fn func(from manifest.Origin, a metadata.Attr) bool) error
	// Origin is where a file's bytes are in the source, and its attributes.
	Origin(ino metadata.Ino) (manifest.Origin, metadata.Attr, error)
}

// ranked is a piece and its turn.
type ranked struct {
	PieceID
	turn uint64
}

// byTurn sorts pieces by turn, and leaves out those that come again: a file with
// several names comes at its first turn.
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

// afterList is the least turn of a file that has no place in a list.
const afterList = 1 << 63

// turns says when the turn of each file comes.
type turns struct {
	order  Order
	seed   uint64                // of the job
	list   map[uint64]uint64     // turn by the hash of the path, of a list
	number *accessplan.Numbering // of a seed
	epoch  *accessplan.Epoch     // of a seed; nil if no file has a number
}

// newTurns makes the turns of an order. list is what the order's file says.
func newTurns(o Order, seed uint64, files Files, list []string) (*turns, error) {
	t := &turns{order: o, seed: seed}
	switch o.Kind {
	case OrderList:
		t.list = make(map[uint64]uint64, len(list))
		for i, path := range list {
			h := xxh3.HashString(path)
			if _, again := t.list[h]; !again {
				t.list[h] = uint64(i)
			}
		}
	case OrderSeed:
		p := accessplan.Plan{Kind: accessplan.Torch, Seed: o.Seed, Shuffle: true}
		var err error
		if t.number, err = accessplan.Number(files, &p); err != nil || t.number.Len() == 0 {
			return t, err
		}
		t.epoch, err = p.Epoch(0, t.number.Len())
		return t, err
	}
	return t, nil
}

// of is the turn of a file. Files that the order does not name come after it, shuffled.
func (t *turns) of(dir, name string, ino metadata.Ino) uint64 {
	switch t.order.Kind {
	case OrderSource:
		return uint64(ino) // numbered as they were found
	case OrderSeed:
		if number, ok := t.number.Of(ino); ok {
			_, turn, _ := t.epoch.Find(number)
			return uint64(turn)
		}
	case OrderList:
		if i, ok := t.list[xxh3.HashString(strings.TrimPrefix(dir+"/"+name, "/"))]; ok {
			return i
		}
	}
	h := xxh3.HashSeed([]byte{byte(ino >> 40), byte(ino >> 32), byte(ino >> 24), byte(ino >> 16), byte(ino >> 8), byte(ino)}, t.seed)
	return h | afterList
}
