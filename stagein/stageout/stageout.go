package stageout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Config describes one node's share of a stage-out.
type Config struct {
	Store   metadata.Store // the namespace, as a client sees it
	Root    metadata.Ino   // the directory or file to copy
	Read    ReadFunc
	To      string // the directory that receives the content of Root; created if missing
	Name    string // of the copy, if Root is a file
	Self    int    // this node's index among the N nodes that copy
	N       int
	Workers int // files in flight; 0: 8
	// Writer identifies this node among all that ever write to To, also those of other jobs; it is the same after a
	// restart. Nodes that disagree on N may copy a file at the same time, so each has its own temporary names.
	Writer string
	Gone   []string // lost writers: their temporary files are removed
	// Settle leaves out files modified within this time, whose writers may not have finished; 0: takes all.
	Settle time.Duration
	Now    func() time.Time // nil: time.Now
	Memory *Memory          // of earlier runs with the same To; nil: none
	Trust  bool             // do not look up in the target what Memory has
	// Help has the k-th of the N nodes run CopyPiece; nil: no help. Files of two pieces and more are then copied by all
	// nodes. ErrUnfinished means that the node may still be writing.
	Help  func(ctx context.Context, k int, p Piece) error
	Piece int64 // bytes of a piece; 0: DefaultPiece
	// Failed is called for everything that could not be copied, even if To cannot be written at all, by several
	// goroutines; it may be nil.
	Failed func(Failure)
}

// Failure is an entry that could not be copied.
type Failure struct {
	Name  string // relative to the root
	Bytes int64  // of a file
	Err   error
}

func (c *Config) validate() error {
	if c.N < 1 || c.Self < 0 || c.Self >= c.N || c.Store == nil || c.Read == nil {
		return fmt.Errorf("stage-out: share %d of %d: %w", c.Self, c.N, syscall.EINVAL)
	}
	if c.Workers <= 0 {
		c.Workers = 8
	}
	if c.Piece <= 0 {
		c.Piece = DefaultPiece
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// Result counts what a stage-out did.
type Result struct {
	Files     int64    `json:"files"`
	Dirs      int64    `json:"dirs"`
	Symlinks  int64    `json:"symlinks"`
	Bytes     int64    `json:"bytes"`
	Kept      int64    `json:"kept"`                // files already in the target
	Unsettled int64    `json:"unsettled,omitempty"` // files left out because their writers may not have finished
	Failed    int64    `json:"failed,omitempty"`    // entries that could not be copied
	Errors    []string `json:"errors,omitempty"`    // of the first failures, one line each
}

// maxErrors bounds the errors kept; all are counted.
const maxErrors = 100

// Add adds another node's result.
func (r *Result) Add(o Result) {
	r.Files += o.Files
	r.Dirs += o.Dirs
	r.Symlinks += o.Symlinks
	r.Bytes += o.Bytes
	r.Kept += o.Kept
	r.Unsettled += o.Unsettled
	r.Failed += o.Failed
	r.Errors = append(r.Errors, o.Errors...)
	r.Errors = r.Errors[:min(len(r.Errors), maxErrors)]
}

// All counts all entries, including failed ones.
func (r *Result) All() int64 { return r.Failed + r.Files + r.Kept + r.Dirs + r.Symlinks }

// Err returns nil if everything was copied.
func (r *Result) Err() error {
	if r.Failed == 0 {
		return nil
	}
	first := "not named"
	if len(r.Errors) > 0 {
		first = r.Errors[0]
	}
	return fmt.Errorf("%d of %d were not copied; the first: %s: %w",
		r.Failed, r.All(), first, syscall.EIO)
}

// Run copies this node's share of a subtree: the files and links whose path hashes to Self. Every node walks the tree.
// Failures are counted and listed, and do not stop the rest; the error gives their number.
//
// A file is written under a temporary name in its directory, synced, read back and compared, given its mode and
// modification time, and renamed: under its own name there is the old file or the whole new one. Existing entries are
// replaced, but never a directory. A file with the same size, mode and modification time is taken for the copy of an
// earlier run, as in rsync: its bytes are not compared. A large file is copied by all nodes, piece by piece. A symbolic
// link is copied as a link, with its modification time if the target's filesystem supports that. A file with several
// names becomes several files. A directory gets its mode with rwx for its owner, because other nodes may still be
// writing in it; it keeps the set-group-ID bit that it inherits from its parent. It gets its times, as does To, from
// each node that has written in it, after that node's last write there: so they are right once all nodes are done.
// FIFOs, sockets and device nodes are listed as failures.
//
// Nothing outside To is touched, even if symbolic links are placed in it meanwhile.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if err := cfg.validate(); err != nil {
		return Result{}, err
	}
	a, err := cfg.Store.Getattr(ctx, cfg.Root)
	if err != nil {
		return Result{}, fmt.Errorf("stage-out to %s: %w", cfg.To, err)
	}
	o := &out{cfg: cfg, bufs: make(chan []byte, cfg.Workers), dirs: map[string]*dirState{}, late: map[int]bool{}}
	if o.root, o.blocked = openTarget(cfg.To, a); o.blocked == nil {
		defer o.root.Close() // nothing is written through it
	} else if cfg.Failed == nil {
		return Result{}, fmt.Errorf("stage-out: %w", o.blocked)
	}
	o.g.SetLimit(cfg.Workers)
	if a.Mode&source.TypeMask == source.TypeDir {
		o.enter(".", cfg.Root, true)
		o.dir(ctx, cfg.Root, "")
	} else {
		o.enter(".", 0, true)
		if o.mine(cfg.Name) {
			o.copyOne(ctx, cfg.Name, a)
		}
	}
	_ = o.g.Wait() // failures are in the result
	o.endDirs(ctx)
	if err := ctx.Err(); err != nil {
		return o.result, fmt.Errorf("stage-out to %s: stopped before its end: %w", cfg.To, err)
	}
	if o.blocked != nil {
		return o.result, fmt.Errorf("stage-out: %w", o.blocked)
	}
	if err := o.result.Err(); err != nil {
		return o.result, fmt.Errorf("stage-out to %s: %w", cfg.To, err)
	}
	return o.result, nil
}

// openTarget opens the directory to that receives the copy of a; it creates the directory first.
func openTarget(to string, a metadata.Attr) (*os.Root, error) {
	if err := makeTarget(to, a); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(to)
	if info, e := os.Stat(to); err != nil && e == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: to, Err: syscall.ENOTDIR} // package os reports this, but not as an errno
	}
	return root, err
}

// makeTarget creates the directory that receives the copies, with the permissions of the directory a that it is a copy
// of, because the umask here is a daemon's.
func makeTarget(to string, a metadata.Attr) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o755)
	if a.Mode&source.TypeMask == source.TypeDir {
		mode = os.FileMode(a.Mode&0o777 | 0o700)
	}
	if err := os.Mkdir(to, mode); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// out is a share of a stage-out in progress.
type out struct {
	cfg     Config
	root    *os.Root
	blocked error // why root could not be opened: nothing can be copied
	g       errgroup.Group
	bufs    chan []byte // buffers free for reuse; one for each worker

	mu     sync.Mutex
	result Result               // guarded by mu
	dirs   map[string]*dirState // guarded by mu; by relative path
	late   map[int]bool         // guarded by mu; nodes that are no longer asked for help
}

func (o *out) fail(name string, size int64, err error) {
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err // the message already has the name
	}
	if o.cfg.Failed != nil {
		o.cfg.Failed(Failure{Name: name, Bytes: size, Err: err})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.result.Failed++
	if len(o.result.Errors) < maxErrors {
		o.result.Errors = append(o.result.Errors, fmt.Sprintf("%q: %v", name, err))
	}
}

func (o *out) count(f func(*Result)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(&o.result)
}

// owner returns the index of the node that copies rel.
func (o *out) owner(rel string) int {
	x := hash(rel)
	return int((x ^ x>>32) * 0x9e3779b97f4a7c15 >> 33 % uint64(o.cfg.N))
}

func (o *out) mine(rel string) bool { return o.owner(rel) == o.cfg.Self }

// dirBatch is how many entries are requested at once.
const dirBatch = 1024

func (o *out) dir(ctx context.Context, ino metadata.Ino, rel string) {
	for after := ""; ctx.Err() == nil; {
		entries, err := o.cfg.Store.ReadDir(ctx, ino, after, dirBatch)
		if err != nil {
			o.fail(rel+"/", 0, err)
			return
		}
		for _, e := range entries {
			o.entry(ctx, e, path.Join(rel, e.Name))
			after = e.Name
		}
		if len(entries) < dirBatch {
			return
		}
	}
}

func (o *out) entry(ctx context.Context, e metadata.Entry, rel string) {
	if ctx.Err() != nil {
		return
	}
	if e.Mode&source.TypeMask == source.TypeDir {
		if err := o.makeDir(ctx, e, rel); err != nil {
			o.fail(rel, 0, err)
			return
		}
		o.dir(ctx, e.Ino, rel)
		return
	}
	if !o.mine(rel) {
		return
	}
	o.g.Go(func() error {
		a, err := o.attr(ctx, e)
		if err != nil {
			o.fail(rel, 0, err)
			return nil
		}
		o.copyOne(ctx, rel, a)
		return nil
	})
}

func (o *out) attr(ctx context.Context, e metadata.Entry) (metadata.Attr, error) {
	if e.Attr != nil {
		return *e.Attr, nil
	}
	return o.cfg.Store.Getattr(ctx, e.Ino)
}

// copyOne copies an entry that is not a directory.
func (o *out) copyOne(ctx context.Context, rel string, a metadata.Attr) {
	var err error
	switch typ := a.Mode & source.TypeMask; {
	case o.blocked != nil:
		if !o.trusted(rel, stampOf(a)) {
			err = o.blocked
		}
	case typ == source.TypeRegular:
		err = o.regular(ctx, rel, a)
	case typ == source.TypeSymlink:
		if err = o.symlink(ctx, rel, a); err == nil {
			o.count(func(r *Result) { r.Symlinks++ })
		}
	default:
		err = fmt.Errorf("not a file, a directory or a link: %w", syscall.EINVAL)
	}
	if err != nil {
		o.fail(rel, a.Size, err)
	}
}

// regular copies a file, unless the target has it or its writer may not have finished.
func (o *out) regular(ctx context.Context, rel string, a metadata.Attr) error {
	switch {
	case o.kept(rel, a):
		o.count(func(r *Result) { r.Kept++ })
		return nil
	case o.unsettled(a):
		o.count(func(r *Result) { r.Unsettled++ })
		return nil
	}
	if err := o.file(ctx, rel, a); err != nil {
		return err
	}
	o.count(func(r *Result) { r.Files, r.Bytes = r.Files+1, r.Bytes+a.Size })
	o.cfg.Memory.add(rel, stampOf(a))
	return nil
}
