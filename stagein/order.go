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

// Order is the order in which a dataset is filled. Its text form is
//
//	shuffled   at random, by the job's seed; the default
//	source     in the order of the source
//	seed:S     in the order of PyTorch's DistributedSampler(seed=S, shuffle=True) in epoch 0
//	random:S   in the order of PyTorch's RandomSampler with a generator seeded with S
//	loader:S   in the order of DataLoader(shuffle=True) with such a generator
//	list:FILE  in the order of FILE, which has a path in the dataset per line; then all other files, shuffled
//
// For a sampler, files are numbered as by torchvision's ImageFolder (package accessplan); files without a number follow
// the others. Samplers may be followed by ,ranks=R ,epochs=E ,root=DIR and ,drop_last, which describe later epochs and
// the numbering.
type Order struct {
	Kind string `json:"kind,omitempty"` // "", shuffled, source, seed, random, loader or list
	Seed uint64 `json:"seed,omitempty"` // of shuffled and samplers
	List string `json:"list,omitempty"` // FILE
	// The remaining fields are for samplers, as in accessplan.Plan.
	Ranks    int    `json:"ranks,omitempty"`
	Epochs   int    `json:"epochs,omitempty"`
	Root     string `json:"root,omitempty"`
	DropLast bool   `json:"drop_last,omitempty"`
}

// Kinds of order.
const (
	OrderShuffled = "shuffled"
	OrderSource   = "source"
	OrderSeed     = "seed"
	OrderRandom   = "random"
	OrderLoader   = "loader"
	OrderList     = "list"
)

// ParseOrder parses an order.
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

// check refuses an order that ParseOrder does not return, or whose list may not exist.
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

// String returns the text that ParseOrder parses.
func (o Order) String() string {
	if p, ok := o.Plan(); ok {
		return p.String()
	}
	if o.Kind == OrderList {
		return o.Kind + ":" + o.List
	}
	return o.Kind
}

// Plan returns the access plan of all epochs for the order of a sampler; false for other orders. It leaves the dataset
// of the plan unset.
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

// Files is the files of a dataset; a manifest.Table implements it.
type Files interface {
	// Files calls fn for every name of a file, by directory and name, until it returns false.
	Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error
	// Located calls fn for every file whose bytes have an origin, until it returns false.
	Located(fn func(from manifest.Origin, a metadata.Attr) bool) error
	// Origin returns where a file's bytes are in the source, and its attributes.
	Origin(ino metadata.Ino) (manifest.Origin, metadata.Attr, error)
}
