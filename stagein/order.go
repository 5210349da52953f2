package stagein

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
//	random:S    as PyTorch's RandomSampler does with a generator that is seeded with S
//	loader:S    as DataLoader(shuffle=True) does with such a generator
//	list:FILE   as FILE names them, a path in the dataset on each line; the rest comes after, shuffled
//
// For a sampler the files are numbered as torchvision's ImageFolder does it (package
// accessplan). Files that it does not number come after the others. Samplers may be followed by
// ,ranks=R ,epochs=E ,root=DIR and ,drop_last, which are of later epochs and of the numbering.
type Order struct {
	Kind string `json:"kind,omitempty"` // "", shuffled, source, seed, random, loader or list
	Seed uint64 `json:"seed,omitempty"` // of shuffled and samplers
	List string `json:"list,omitempty"` // FILE
	// The rest is of samplers, as in accessplan.Plan.
	Ranks    int    `json:"ranks,omitempty"`
	Epochs   int    `json:"epochs,omitempty"`
	Root     string `json:"root,omitempty"`
	DropLast bool   `json:"drop_last,omitempty"`
}

// The kinds of order.
const (
	OrderShuffled = "shuffled"
	OrderSource   = "source"
	OrderSeed     = "seed"
	OrderRandom   = "random"
	OrderLoader   = "loader"
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
	case has && (kind == OrderSeed || kind == OrderRandom || kind == OrderLoader):
		p, err := accessplan.Parse(s)
		return Order{Kind: kind, Seed: p.Seed, Ranks: p.Ranks, Epochs: p.Epochs, Root: p.Root, DropLast: p.DropLast}, err
	case kind == OrderList && arg != "":
		return Order{Kind: kind, List: filepath.Clean(arg)}, nil
	}
	return bad(fmt.Sprintf("the order %q is not known: give shuffled, source, seed:S, random:S, loader:S or list:FILE", s))
}

// check refuses an order that ParseOrder does not give, or whose list is not known
// to be anywhere.
func (o Order) check() error {
	again, err := ParseOrder(o.String())
	if _, sampler := o.Plan(); !sampler {
		again.Seed = o.Seed // the job's
	}
	switch {
	case err != nil:
		return err
	case o.Kind == OrderList && !filepath.IsAbs(o.List) || strings.ContainsRune(o.List, 0):
		return fmt.Errorf("order=%v: the list is no absolute path: %w", o, syscall.EINVAL)
	case again != o:
		return fmt.Errorf("order %+v: %w", o, syscall.EINVAL)
	}
	return nil
}

// String is what ParseOrder reads.
func (o Order) String() string {
	if p, ok := o.Plan(); ok {
		return p.String()
	}
	if o.Kind == OrderList {
		return o.Kind + ":" + o.List
	}
	return o.Kind
}

// Plan is the access plan of all epochs that the order of a sampler stands for; false for
// other orders. Its dataset is left open.
func (o Order) Plan() (accessplan.Plan, bool) {
	p := accessplan.Plan{Kind: accessplan.Kind(o.Kind), Seed: o.Seed, Shuffle: true, Ranks: o.Ranks, Epochs: o.Epochs, Root: o.Root, DropLast: o.DropLast}
	switch o.Kind {
	case OrderSeed:
		p.Kind = accessplan.Torch
	case OrderRandom, OrderLoader:
	default:
		return accessplan.Plan{}, false
	}
	return p, true
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
	number *accessplan.Numbering // of a sampler
	epoch  *accessplan.Epoch     // of a sampler; nil if no file has a number
}

// newTurns makes the turns of an order. list is what the order's file says.
func newTurns(o Order, seed uint64, files Files, list []string) (*turns, error) {
	t := &turns{order: o, seed: seed}
	if o.Kind == OrderList {
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

// of is the turn of a file. Files that the order does not name come after it, shuffled.
func (t *turns) of(dir, name string, ino metadata.Ino) uint64 {
	switch {
	case t.order.Kind == OrderSource:
		return uint64(ino) // numbered as they were found
	case t.epoch != nil:
		if number, ok := t.number.Of(ino); ok {
			_, turn, _ := t.epoch.Find(number)
			return uint64(turn)
		}
	case t.order.Kind == OrderList:
		if i, ok := t.list[xxh3.HashString(strings.TrimPrefix(dir+"/"+name, "/"))]; ok {
			return i
		}
	}
	h := xxh3.HashSeed([]byte{byte(ino >> 40), byte(ino >> 32), byte(ino >> 24), byte(ino >> 16), byte(ino >> 8), byte(ino)}, t.seed)
	return h | afterList
}
