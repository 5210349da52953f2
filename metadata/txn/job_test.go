package txn_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

var ctx = context.Background()

// job is homes that call each other directly, and can be killed during a call. A directory whose name ends in a digit
// has its home there, any other has its parent's.
type job struct {
	testing.TB
	held   func() error                              // the error of a Hold; nil means none
	fails  func(what string, tx metadata.TxID) error // the error of a commit or outcome request; nil means none
	around bool                                      // directories have other homes than their parents
	away   time.Duration                             // how long an unreachable home is waited for

	mu    sync.Mutex
	nodes []*node                            // under mu
	down  map[metadata.NodeID]bool           // under mu: given up
	calls int                                // under mu: calls between nodes so far
	ops   map[string]int                     // under mu: the same, by operation
	hook  func(call int, after bool, l link) // under mu: called before and after each call
}

// node is one run of a home.
type node struct {
	*txn.Coordinator
	stored
	j    *job
	id   metadata.NodeID
	fs   vfs.FS
	dead bool // under job.mu
}

type stored struct{ *pebblestore.Store }

// holding is the store of a coordinator whose Hold can fail.
type holding struct {
	*pebblestore.Store
	j *job
}

func (h holding) Hold(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (metadata.Vote, error) {
	if h.j.held != nil {
		if err := h.j.held(); err != nil {
			return metadata.Vote{}, err
		}
	}
	return h.Store.Hold(ctx, tx, edits)
}

// newJob returns n homes that are not waited for when unreachable.
func newJob(t testing.TB, n int) *job { return newPatientJob(t, n, time.Nanosecond) }

func newPatientJob(t testing.TB, n int, away time.Duration) *job {
	j := &job{TB: t, away: away, down: make(map[metadata.NodeID]bool), ops: make(map[string]int)}
	for i := range n {
		j.nodes = append(j.nodes, j.start(metadata.NodeID(i), vfs.NewCrashableMem(), "meta"))
	}
	return j
}

// start starts a home on the store in dir.
func (j *job) start(id metadata.NodeID, fs vfs.FS, dir string) *node {
	j.Helper()
	n := &node{j: j, id: id, fs: fs}
	s, err := pebblestore.Open(pebblestore.Config{Dir: dir, FS: fs, Self: id, CacheSize: 1 << 20})
	if err != nil {
		j.Fatal(err)
	}
	n.stored = stored{s}
	j.Cleanup(func() { _ = s.Close() }) // in memory only
	n.Coordinator, err = txn.New(txn.Config{
		Self: id, Store: holding{s, j}, Down: j.isDown,
		Peer: func(to metadata.NodeID) metadata.TxPeer { return link{n, to} },
		DirHome: func(_ context.Context, dir metadata.Attr, name string) metadata.NodeID {
			homes := len(j.homes())
			if j.around {
				return metadata.NodeID((int(id) + 1 + len(name)) % homes)
			}
			if home := int(name[len(name)-1]) - '0'; home >= 0 && home < homes {
				return metadata.NodeID(home)
			}
			return id
		},
		Timing: txn.Timing{InDoubt: time.Nanosecond, Retry: time.Millisecond, Lease: time.Second, Away: j.away},
	})
	if err != nil {
		j.Fatal(err)
	}
	return n
}

func (j *job) homes() []*node {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.nodes)
}

func (j *job) isDown(id metadata.NodeID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.down[id]
}

// kill kills the process of a home; its later actions have no effect.
func (j *job) kill(id metadata.NodeID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := j.nodes[id]
	if n.dead {
		return
	}
	n.dead = true
	n.fs = n.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
}

// revive restarts the killed homes.
func (j *job) revive() {
	j.Helper()
	for i, n := range j.homes() {
		if n.dead {
			n = j.start(n.id, n.fs, "meta")
			j.mu.Lock()
			j.nodes[i] = n
			j.mu.Unlock()
		}
	}
}

// settle lets all homes finish their transactions.
func (j *job) settle() {
	j.Helper()
	for end := time.Now().Add(time.Minute); ; {
		open := int64(0)
		for _, n := range j.homes() {
			n.Settle(ctx)
			s := n.Coordinator.Stats()
			open += s.InDoubt + s.Undelivered
		}
		if open == 0 {
			return
		}
		if time.Now().After(end) {
			j.Fatalf("%d transactions do not come to an end", open)
		}
	}
}

// check fails unless the tree is consistent, and returns it: each name with its inode.
func (j *job) check() string {
	j.Helper()
	var all []metadata.Inventory
	for _, n := range j.homes() {
		c, err := n.Inventory(ctx)
		if err != nil {
			j.Fatal(err)
		}
		all = append(all, c)
	}
	if wrong := txn.Check(all); len(wrong) > 0 {
		j.Fatalf("the tree is damaged:\n%s", strings.Join(wrong, "\n"))
	}
	var b strings.Builder
	dump(&b, all, metadata.RootIno, "")
	return b.String()
}

// dump writes the tree below dir. New inodes have no fixed number, so directories are identified by path.
func dump(b *strings.Builder, all []metadata.Inventory, dir metadata.Ino, path string) {
	for _, c := range all {
		for _, e := range c.Entries[dir] {
			if e.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				fmt.Fprintf(b, "%s/%s/\n", path, e.Name)
				dump(b, all, e.Ino, path+"/"+e.Name)
				continue
			}
			fmt.Fprintf(b, "%s/%s %v\n", path, e.Name, e.Ino)
		}
	}
}

func (j *job) failed(what string, tx metadata.TxID) error {
	if j.fails == nil {
		return nil
	}
	return j.fails(what, tx)
}

// link is a home as seen by another one.
type link struct {
	from *node
	to   metadata.NodeID
}

var errCut = fmt.Errorf("nobody answers: %w", syscall.ECONNRESET)

// call makes one call, unless either home is dead before; the reply is lost if either is dead after.
func (l link) call(what string, fn func(*node) error) error {
	j := l.from.j
	j.mu.Lock()
	call := j.calls
	j.calls++
	j.ops[what]++
	hook := j.hook
	j.mu.Unlock()
	if hook != nil {
		hook(call, false, l)
	}
	to := l.alive()
	if to == nil {
		return errCut
	}
	err := fn(to)
	if hook != nil {
		hook(call, true, l)
	}
	if l.alive() != to {
		return errCut
	}
	return err
}

// alive returns the other side if both are alive.
func (l link) alive() *node {
	j := l.from.j
	j.mu.Lock()
	defer j.mu.Unlock()
	if to := j.nodes[l.to]; !to.dead && !l.from.dead {
		return to
	}
	return nil
}

func (l link) Prepare(ctx context.Context, tx metadata.TxID, edits []metadata.Edit) (v metadata.Vote, err error) {
	err = l.call("prepare", func(n *node) error { v, err = n.Coordinator.Prepare(ctx, tx, edits); return err })
	return v, err
}

func (l link) Commit(ctx context.Context, tx metadata.TxID) error {
	return l.call("commit", func(n *node) error {
		if err := l.from.j.failed("commit", tx); err != nil {
			return err
		}
		return n.Coordinator.Commit(ctx, tx)
	})
}

func (l link) Abort(ctx context.Context, tx metadata.TxID) error {
	return l.call("abort", func(n *node) error { return n.Coordinator.Abort(ctx, tx) })
}

func (l link) Outcome(ctx context.Context, tx metadata.TxID) (o metadata.Outcome, err error) {
	err = l.call("outcome", func(n *node) error {
		if err := l.from.j.failed("outcome", tx); err != nil {
			return err
		}
		o, err = n.Coordinator.Outcome(ctx, tx)
		return err
	})
	return o, err
}

func (l link) LockRename(ctx context.Context, tx metadata.TxID) error {
	return l.call("lock", func(n *node) error { return n.LockRename(ctx, tx) })
}

func (l link) UnlockRename(ctx context.Context, tx metadata.TxID) error {
	return l.call("unlock", func(n *node) error { return n.UnlockRename(ctx, tx) })
}

func (l link) Ancestor(ctx context.Context, from, stop metadata.Ino) (up metadata.Ino, err error) {
	err = l.call("climb", func(n *node) error { up, err = n.Coordinator.Ancestor(ctx, from, stop); return err })
	return up, err
}

// realm presents a job as one store, routed as by a client.
type realm struct{ *job }

func (r realm) at(dir metadata.Ino) *node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[dir.Home()]
}

func (r realm) Lookup(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	return r.at(dir).Lookup(ctx, dir, name)
}

func (r realm) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	return r.at(dir).Create(ctx, dir, name, n)
}

func (r realm) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	return r.at(dir).Unlink(ctx, dir, name)
}

func (r realm) Rename(ctx context.Context, q metadata.Rename) (*metadata.Entry, error) {
	return r.at(q.Dir).Rename(ctx, q)
}

func (r realm) ReadDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	return r.at(dir).ReadDir(ctx, dir, after, limit)
}

func (r realm) Getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	return r.at(ino).Getattr(ctx, ino)
}

func (r realm) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	return r.at(ino).Setattr(ctx, ino, c)
}

func (r realm) Readlink(ctx context.Context, ino metadata.Ino) (string, error) {
	return r.at(ino).Readlink(ctx, ino)
}

func (r realm) Reap(ctx context.Context, ino metadata.Ino) error { return r.at(ino).Reap(ctx, ino) }

func (r realm) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	return r.at(dir).Mkdir(ctx, dir, name, n)
}

func (r realm) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	return r.at(dir).Rmdir(ctx, dir, name)
}

func (r realm) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	return r.at(dir).Link(ctx, ino, dir, name)
}
