package stagein

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

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
// ,ranks=R ,epochs=E ,root=DIR and ,drop_last, which describe later epochs and the numbering.
type Order struct {
	Kind string `json:"kind,omitempty"` // "", shuffled, source, seed, random, loader or list
	Seed uint64 `json:"seed,omitempty"` // of shuffled and samplers
	List string `json:"list,omitempty"` // FILE
	// The rest is for samplers, as in accessplan.Plan.
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
		return fmt.Errorf("order=%v: the list is not an absolute path: %w", o, syscall.EINVAL)
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
// other orders. Its dataset is not set.
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
