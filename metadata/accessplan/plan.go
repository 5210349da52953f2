package accessplan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// Kind is the sampler that determines the order.
type Kind string

// The kinds of plan.
const (
	// Torch is torch's DistributedSampler, with set_epoch called before each epoch.
	Torch Kind = "torch"
	// Random is torch's RandomSampler with a generator of its own that was seeded once.
	Random Kind = "random"
	// Loader is DataLoader(shuffle=True, generator=...): like Random, but the loader draws the seed of its workers from
	// the same generator.
	Loader Kind = "loader"
	// Chunk is bivouac.torch.ChunkShuffleSampler, with set_epoch called before each epoch.
	Chunk Kind = "chunk"
	// List is an explicit order.
	List Kind = "list"
)

// Bounds of the values in a plan.
const (
	MaxFiles  = 1 << 28
	MaxRanks  = 1 << 20
	maxEpochs = 1 << 20
)

// Plan describes which files of a dataset each rank reads in which order.
type Plan struct {
	Dataset string `json:"dataset"`
	Kind    Kind   `json:"kind"`
	Seed    uint64 `json:"seed"`
	// Ranks share each epoch: rank r reads every Ranks-th file, from the r-th on. 0: the number of ranks is unknown.
	Ranks  int `json:"ranks,omitempty"`
	Epochs int `json:"epochs,omitempty"` // 0: unlimited
	// Shuffle and DropLast are DistributedSampler's arguments.
	Shuffle  bool `json:"shuffle"`
	DropLast bool `json:"drop_last,omitempty"`
	// Chunk is the number of files in a chunk of the kind Chunk, Group the number of chunks a rank shuffles together;
	// 0: 64.
	Chunk int `json:"chunk,omitempty"`
	Group int `json:"group,omitempty"`
	// Root is the directory in the dataset below which the files are numbered; "" is the dataset's root, or train below
	// it if the classes are there.
	Root string `json:"root,omitempty"`
	// Files is the number of files of the training program; 0: unknown.
	Files int `json:"files,omitempty"`
	// Paths numbers the files if they are not numbered as in ImageFolder: paths below Root, or ranges of files,
	// PATH:OFFSET+LENGTH.
	Paths []string `json:"paths,omitempty"`
	// Indices is the order of a List, as numbers of files; without it, a List is in the order of the numbers.
	Indices []uint32 `json:"indices,omitempty"`
	// FirstOnly means that a List is the order of epoch 0 only.
	FirstOnly bool `json:"first_only,omitempty"`
}

// Check rejects an invalid plan. The error says how to correct it.
func (p *Plan) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("access plan: %s: %w", fmt.Sprintf(format, args...), syscall.EINVAL)
	}
	switch {
	case p.Dataset == "":
		return bad("no dataset: give the name of a dataset of this job")
	case p.Kind != Torch && p.Kind != Random && p.Kind != Loader && p.Kind != Chunk && p.Kind != List:
		return bad("kind %q is not known: give torch, random, loader, chunk or list", p.Kind)
	case p.Ranks < 0 || p.Ranks > MaxRanks:
		return bad("ranks=%d: give a number from 1 to %d, or none", p.Ranks, MaxRanks)
	case p.Epochs < 0 || p.Epochs > maxEpochs:
		return bad("epochs=%d: give a number from 1 to %d, or none", p.Epochs, maxEpochs)
	case p.Files < 0 || p.Files > MaxFiles || len(p.Paths) > MaxFiles || len(p.Indices) > MaxFiles:
		return bad("more than %d files", MaxFiles)
	case p.Root != "" && (path.Clean(p.Root) != p.Root || path.IsAbs(p.Root) || p.Root == "." || p.Root == ".." || strings.HasPrefix(p.Root, "../") || strings.ContainsRune(p.Root, 0)):
		return bad("root=%q: give a directory in the dataset, such as train", p.Root)
	case len(p.Indices) > 0 && p.Kind != List:
		return bad("indices are for the kind list")
	case p.Chunk < 0 || p.Chunk > MaxFiles || p.Group < 0 || p.Group > MaxFiles || p.Kind != Chunk && p.Chunk+p.Group > 0:
		return bad("chunk=%d and group=%d: give numbers from 1 to %d, to the kind chunk", p.Chunk, p.Group, MaxFiles)
	case p.FirstOnly && p.Kind != List:
		return bad("first_only is for the kind list")
	}
	return nil
}

// Fixed reports whether the order of every epoch is the same.
func (p *Plan) Fixed() bool { return p.Kind == List || p.Kind == Torch && !p.Shuffle }

// Digest identifies the plan: equal plans have equal digests.
func (p *Plan) Digest() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // no field can fail to encode
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Parse parses the order of a sampler: seed:S, random:S, loader:S or chunk:S, followed by comma-separated options:
// ranks=R, epochs=E, root=DIR, drop_last, and for chunk chunk=N and group=N. It does not set the dataset.
func Parse(text string) (Plan, error) {
	bad := func(why string) (Plan, error) {
		return Plan{}, fmt.Errorf("order=%s: %s: give seed:S, random:S, loader:S or chunk:S, with ranks=R, epochs=E, root=DIR and drop_last, and for chunk chunk=N and group=N: %w", text, why, syscall.EINVAL)
	}
	first, rest, _ := strings.Cut(text, ",")
	kind, arg, _ := strings.Cut(first, ":")
	p := Plan{Shuffle: true}
	switch kind {
	case "seed":
		p.Kind = Torch
	case string(Random), string(Loader), string(Chunk):
		p.Kind = Kind(kind)
	default:
		return bad("unknown order")
	}
	seed, err := strconv.ParseUint(arg, 10, 64)
	if err != nil {
		return bad(fmt.Sprintf("the seed must be a whole number from 0 to %d", uint64(math.MaxUint64)))
	}
	p.Seed = seed
	for rest != "" {
		var one string
		one, rest, _ = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(one, "=")
		switch key {
		case "ranks":
			p.Ranks, err = number(key, value, MaxRanks)
		case "epochs":
			p.Epochs, err = number(key, value, maxEpochs)
		case "chunk":
			p.Chunk, err = number(key, value, MaxFiles)
		case "group":
			p.Group, err = number(key, value, MaxFiles)
		case "root":
			p.Root = path.Clean(value)
		case "drop_last":
			if value != "" {
				return bad("drop_last has no value")
			}
			p.DropLast = true
		default:
			return bad(fmt.Sprintf("%q is not known", key))
		}
		if err != nil {
			return bad(err.Error())
		}
	}
	check := p
	check.Dataset = "any"
	if err := check.Check(); err != nil {
		return Plan{}, err
	}
	return p, nil
}

// number parses the value of a key that takes a number from 1 to most.
func number(key, value string, most int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%s must be a number from 1 to %d", key, most)
	}
	return n, nil
}

// String returns the text that Parse parses, for plans that it can return.
func (p *Plan) String() string {
	kind := string(p.Kind)
	if p.Kind == Torch {
		kind = "seed"
	}
	s := fmt.Sprintf("%s:%d", kind, p.Seed)
	for _, x := range []struct {
		key string
		n   int
	}{{"ranks", p.Ranks}, {"epochs", p.Epochs}, {"chunk", p.Chunk}, {"group", p.Group}} {
		if x.n > 0 {
			s += fmt.Sprintf(",%s=%d", x.key, x.n)
		}
	}
	if p.Root != "" {
		s += ",root=" + p.Root
	}
	if p.DropLast {
		s += ",drop_last"
	}
	return s
}
