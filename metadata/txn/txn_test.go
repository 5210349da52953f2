package txn_test

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

// TestStore runs the suite on one to four homes, and checks the whole tree after each test.
func TestStore(t *testing.T) {
	for homes := 1; homes <= 4; homes++ {
		t.Run(fmt.Sprint(homes), func(t *testing.T) {
			metadatatest.Run(t, func(t *testing.T) metadatatest.Store {
				j := newJob(t, homes)
				j.around = true
				t.Cleanup(func() {
					if !t.Failed() {
						j.check()
					}
				})
				return realm{j}
			})
		})
	}
}

const root = metadata.RootIno

// tree is a job with directories on each home and files in them, for ops.
type tree struct {
	*job
	realm
	d [4]metadata.Ino // d0 to d3, in the root, with homes 0 to 3
}

func newTree(t testing.TB) *tree {
	t.Helper()
	j := newJob(t, 4)
	w := &tree{job: j, realm: realm{j}}
	for i := range w.d {
		w.d[i] = w.mkdir(root, fmt.Sprint("d", i))
	}
	return w
}

func (w *tree) mkdir(dir metadata.Ino, name string) metadata.Ino {
	w.job.Helper()
	a, err := w.realm.Mkdir(ctx, dir, name, metadata.New{Mode: 0o755})
	if err != nil {
		w.job.Fatalf("Mkdir(%v, %q) = %v", dir, name, err)
	}
	return a.Ino
}

func (w *tree) create(dir metadata.Ino, name string) metadata.Ino {
	w.job.Helper()
	a, err := w.realm.Create(ctx, dir, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		w.job.Fatalf("Create(%v, %q) = %v", dir, name, err)
	}
	return a.Ino
}

// put creates the file name in dir, with its inode on home.
func (w *tree) put(home int, dir metadata.Ino, name string) metadata.Ino {
	w.job.Helper()
	ino := w.create(w.d[home], "new")
	w.must(w.move(w.d[home], "new", dir, name, 0))
	return ino
}

func (w *tree) must(err error) {
	w.job.Helper()
	if err != nil {
		w.job.Fatal(err)
	}
}

func (w *tree) move(dir metadata.Ino, name string, to metadata.Ino, newName string, flags metadata.RenameFlags) error {
	_, err := w.realm.Rename(ctx, metadata.Rename{Dir: dir, Name: name, NewDir: to, NewName: newName, Flags: flags})
	return err
}

// op is an operation on several homes, done by home 1.
type op struct {
	name string
	make func(*tree) // prepares the operation
	do   func(*tree) error
	cost map[string]int // calls between homes
}

func two(more map[string]int) map[string]int {
	m := map[string]int{"prepare": 1, "commit": 1}
	maps.Copy(m, more)
	return m
}

var ops = []op{
	{"mkdir", func(*tree) {}, func(w *tree) error {
		_, err := w.realm.Mkdir(ctx, w.d[1], "x2", metadata.New{Mode: 0o755})
		return err
	}, two(nil)},
	{"rmdir", func(w *tree) { w.mkdir(w.d[1], "x2") }, func(w *tree) error {
		return w.realm.Rmdir(ctx, w.d[1], "x2")
	}, two(nil)},
	{"unlink", func(w *tree) { w.put(2, w.d[1], "f") }, func(w *tree) error {
		_, err := w.realm.Unlink(ctx, w.d[1], "f")
		return err
	}, two(nil)},
	{"link", func(w *tree) { w.create(w.d[2], "f") }, func(w *tree) error {
		e, err := w.realm.Lookup(ctx, w.d[2], "f")
		if err != nil {
			return err
		}
		_, err = w.realm.Link(ctx, e.Ino, w.d[1], "l")
		return err
	}, two(nil)},
	{"rename", func(w *tree) { w.create(w.d[1], "f") }, func(w *tree) error {
		return w.move(w.d[1], "f", w.d[2], "g", 0)
	}, two(nil)},
	{"rename over a file", func(w *tree) { w.create(w.d[1], "f"); w.create(w.d[2], "g") }, func(w *tree) error {
		return w.move(w.d[1], "f", w.d[2], "g", 0)
	}, two(nil)},
	{"rename in one directory over a far file", func(w *tree) { w.create(w.d[1], "f"); w.put(2, w.d[1], "g") }, func(w *tree) error {
		return w.move(w.d[1], "f", w.d[1], "g", 0)
	}, two(nil)},
	{"rename of a far file over another's", func(w *tree) { w.put(0, w.d[1], "f"); w.put(3, w.d[2], "g") }, func(w *tree) error {
		return w.move(w.d[1], "f", w.d[2], "g", 0)
	}, map[string]int{"prepare": 3, "commit": 3}},
	{"exchange of files", func(w *tree) { w.create(w.d[1], "f"); w.create(w.d[2], "g") }, func(w *tree) error {
		return w.move(w.d[1], "f", w.d[2], "g", metadata.RenameExchange)
	}, two(nil)},
	{"exchange of far files", func(w *tree) { w.put(0, w.d[1], "f"); w.put(3, w.d[2], "g") }, func(w *tree) error {
		return w.move(w.d[1], "f", w.d[2], "g", metadata.RenameExchange)
	}, map[string]int{"prepare": 3, "commit": 3}},
	{"move of a directory", func(w *tree) { w.create(w.mkdir(w.d[1], "x3"), "f") }, func(w *tree) error {
		return w.move(w.d[1], "x3", w.d[2], "y", 0)
	}, map[string]int{"prepare": 2, "commit": 2, "lock": 1, "unlock": 1, "climb": 1}},
	{"move of a directory over another", func(w *tree) { w.mkdir(w.d[1], "x1"); w.mkdir(w.d[2], "y3") }, func(w *tree) error {
		return w.move(w.d[1], "x1", w.d[2], "y3", 0)
	}, map[string]int{"prepare": 2, "commit": 2, "lock": 1, "unlock": 1, "climb": 1}},
	{"exchange of a file and a directory", func(w *tree) { w.create(w.d[1], "f"); w.mkdir(w.d[2], "y3") }, func(w *tree) error {
		return w.move(w.d[1], "f", w.d[2], "y3", metadata.RenameExchange)
	}, map[string]int{"prepare": 3, "commit": 2, "abort": 1, "lock": 1, "unlock": 1}},
	{"rename of a directory in its parent", func(w *tree) { w.mkdir(w.d[1], "x2") }, func(w *tree) error {
		return w.move(w.d[1], "x2", w.d[1], "z", 0)
	}, two(nil)},
}

// TestOps: each operation works, with no more calls than the package comment says.
func TestOps(t *testing.T) {
	for _, o := range ops {
		t.Run(o.name, func(t *testing.T) {
			w := newTree(t)
			o.make(w)
			before := w.check()
			clear(w.ops)
			if err := o.do(w); err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(w.ops, o.cost) {
				t.Errorf("calls: %v, want %v", w.ops, o.cost)
			}
			if w.check() == before {
				t.Error("nothing has changed")
			}
		})
	}
}

// TestCrashes kills either side at every call of every operation, before and after the call. After a restart the
// operation took effect as a whole or not at all, and certainly if it was acknowledged.
func TestCrashes(t *testing.T) {
	for _, o := range ops {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			w := newTree(t)
			o.make(w)
			before, first := w.check(), w.calls
			if err := o.do(w); err != nil {
				t.Fatal(err)
			}
			after, calls := w.check(), w.calls-first
			for call := range calls {
				for _, late := range []bool{false, true} {
					for _, caller := range []bool{false, true} {
						crash(t, o, call, late, caller, before, after)
					}
				}
			}
		})
	}
}

func crash(t *testing.T, o op, call int, late, caller bool, before, after string) {
	t.Helper()
	w := newTree(t)
	o.make(w)
	first := w.calls
	w.hook = func(n int, is bool, l link) {
		if n-first != call || is != late {
			return
		}
		if caller {
			w.kill(l.from.id)
		} else {
			w.kill(l.to)
		}
	}
	err := o.do(w)
	w.mu.Lock()
	zombie := w.nodes[1].dead
	w.hook = nil
	w.mu.Unlock()
	w.revive()
	w.settle()
	what := fmt.Sprintf("call %d, after it %v, of the caller %v", call, late, caller)
	got := w.check()
	switch {
	case got == after:
	case got != before:
		t.Fatalf("%s: the tree is\n%sneither\n%snor\n%s", what, got, before, after)
	case err == nil && !zombie: // the reply of a dead home is lost
		t.Fatalf("%s: an acknowledged operation is not there", what)
	}
	// All locks are released.
	for _, d := range w.d {
		es, err := w.realm.ReadDir(ctx, d, "", 10)
		if err != nil {
			t.Fatalf("%s: ReadDir: %v", what, err)
		}
		for _, e := range es {
			if err := w.move(d, e.Name, d, e.Name+"z", 0); err != nil {
				t.Fatalf("%s: rename afterwards: %v", what, err)
			}
		}
	}
}

// TestLoops: of concurrent moves that together form a loop, one fails with EINVAL, whichever homes perform them.
func TestLoops(t *testing.T) {
	for round := range 20 {
		w := newTree(t)
		a, b, c := w.mkdir(w.d[1], "a1"), w.mkdir(w.d[2], "b2"), w.mkdir(w.d[3], "c3")
		sub := [3]metadata.Ino{w.mkdir(a, "s3"), w.mkdir(b, "s1"), w.mkdir(c, "s2")}
		var errs [3]error
		var wg sync.WaitGroup
		wg.Go(func() { errs[0] = w.move(w.d[1], "a1", sub[1], "in", 0) })
		wg.Go(func() { errs[1] = w.move(w.d[2], "b2", sub[2], "in", 0) })
		wg.Go(func() { errs[2] = w.move(w.d[3], "c3", sub[0], "in", 0) })
		wg.Wait()
		refused := 0
		for _, err := range errs {
			if errors.Is(err, syscall.EINVAL) {
				refused++
			} else if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if refused != 1 {
			t.Fatalf("round %d: %d of three moves that make a loop are refused, want 1: %v", round, refused, errs)
		}
		w.check()
	}
}

// TestCoordinatorIsDown: the locks of a coordinator that was given up are released, and when it returns the homes agree
// on its decision.
func TestCoordinatorIsDown(t *testing.T) {
	for _, decided := range []bool{false, true} {
		t.Run(fmt.Sprint("decided ", decided), func(t *testing.T) {
			w := newTree(t)
			f := w.create(w.d[1], "f")
			w.hook = func(_ int, after bool, l link) {
				w.mu.Lock()
				is := w.ops["commit"] > 0
				w.mu.Unlock()
				if l.from.id == 1 && is == decided && after != decided {
					w.kill(1)
				}
			}
			clear(w.ops)
			_ = w.move(w.d[1], "f", w.d[2], "g", 0) // the reply is lost
			w.mu.Lock()
			w.hook, w.down[1] = nil, true
			w.mu.Unlock()
			w.nodes[2].Settle(ctx)
			other := w.create(w.d[2], "g")
			w.mu.Lock()
			w.down[1] = false
			w.mu.Unlock()
			w.revive()
			w.settle()
			w.check()
			want := map[string]metadata.Ino{"g": other}
			at := w.d[1]
			name := "f"
			if decided {
				at, name = w.d[2], "g.late0"
			}
			want[name] = f
			if e, err := w.realm.Lookup(ctx, at, name); err != nil || e.Ino != f {
				t.Errorf("Lookup(%q) = %v, %v, want %v", name, e.Ino, err, f)
			}
			if e, err := w.realm.Lookup(ctx, w.d[2], "g"); err != nil || e.Ino != other {
				t.Errorf("Lookup of what was made meanwhile = %v, %v, want %v", e.Ino, err, other)
			}
		})
	}
}

// TestDecisionInDoubt: a decision that a partner may have is made again, never aborted.
func TestDecisionInDoubt(t *testing.T) {
	w := newTree(t)
	f := w.create(w.d[1], "f")
	doubts := 0
	w.nodes[1].Store.SetMirror(func(b []byte) (func(), error) {
		if w.ops["prepare"] > 0 && doubts < 2 {
			doubts++
			return nil, fmt.Errorf("no answer: %w: %w", metadata.ErrUnknownOutcome, syscall.ETIMEDOUT)
		}
		return func() {}, nil
	})
	clear(w.ops)
	if err := w.move(w.d[1], "f", w.d[2], "g", 0); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("rename = %v, want ETIMEDOUT", err)
	}
	if w.ops["abort"] > 0 || doubts != 1 {
		t.Errorf("calls %v, %d doubts: a decision that may have been taken is aborted", w.ops, doubts)
	}
	w.settle()
	w.settle()
	w.check()
	if e, err := w.realm.Lookup(ctx, w.d[2], "g"); err != nil || e.Ino != f {
		t.Errorf("Lookup of the new name = %v, %v, want %v", e.Ino, err, f)
	}
	if _, err := w.realm.Lookup(ctx, w.d[1], "f"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Lookup of the old name = %v, want ENOENT", err)
	}
}

// TestBadTransaction: a transaction whose outcome cannot be determined keeps no other one in doubt.
func TestBadTransaction(t *testing.T) {
	w := newTree(t)
	var bad metadata.TxID
	w.fails = func(what string, tx metadata.TxID) error {
		if what == "outcome" && bad == 0 {
			bad = tx
		}
		if what == "commit" || tx == bad {
			return syscall.EIO
		}
		return nil
	}
	const moves = 8
	for i := range moves {
		name := fmt.Sprint("f", i)
		w.create(w.d[1], name)
		w.must(w.move(w.d[1], name, w.d[2], name, 0))
	}
	w.nodes[2].Settle(ctx)
	if n := w.nodes[2].Coordinator.Stats().InDoubt; n != 1 {
		t.Errorf("%d transactions are in doubt, want the bad one", n)
	}
	w.fails = nil
	w.settle()
	w.check()
}

// TestLateRenameLock: a request for the rename lock that arrives after its transaction has ended does not take it.
func TestLateRenameLock(t *testing.T) {
	c := newTree(t).nodes[0].Coordinator
	if err := errors.Join(c.LockRename(ctx, 1), c.UnlockRename(ctx, 2), c.UnlockRename(ctx, 1)); err != nil {
		t.Fatal(err)
	}
	for _, tx := range []metadata.TxID{1, 2} {
		if err := c.LockRename(ctx, tx); !errors.Is(err, syscall.ECANCELED) {
			t.Errorf("LockRename of transaction %d, which has ended = %v, want ECANCELED", tx, err)
		}
	}
	if err := c.LockRename(ctx, 3); err != nil {
		t.Errorf("LockRename = %v", err)
	}
}

// TestDoubtBeforeDecision: a change needed before a transaction, such as the merge of a directory that it removes, may
// have an unknown outcome. The transaction is aborted as a whole, since it has not collected all of its edits.
func TestDoubtBeforeDecision(t *testing.T) {
	w := newTree(t)
	a, b := w.mkdir(w.d[1], "a1"), w.mkdir(w.d[2], "b1")
	holds := 0
	w.held = func() error {
		if holds++; holds == 2 { // the removal of the directory b1
			return fmt.Errorf("merge: %w: %w", metadata.ErrUnknownOutcome, syscall.ETIMEDOUT)
		}
		return nil
	}
	if err := w.move(w.d[1], "a1", w.d[2], "b1", 0); !errors.Is(err, syscall.ETIMEDOUT) || holds != 2 {
		t.Errorf("rename = %v after %d holds, want ETIMEDOUT after 2", err, holds)
	}
	w.settle()
	w.check()
	for _, e := range []struct {
		dir  metadata.Ino
		name string
		want metadata.Ino
	}{{w.d[1], "a1", a}, {w.d[2], "b1", b}} {
		if got, err := w.realm.Lookup(ctx, e.dir, e.name); err != nil || got.Ino != e.want {
			t.Errorf("Lookup(%q) = %v, %v, want %v", e.name, got.Ino, err, e.want)
		}
	}
}

// TestEntryOfLostInode: the entry of an inode that was lost with its home can be removed once that home is given up,
// not before.
func TestEntryOfLostInode(t *testing.T) {
	w := newTree(t)
	w.put(1, w.d[2], "f")
	w.create(w.mkdir(w.d[2], "sub1"), "in")
	w.kill(1)
	if _, err := w.realm.Unlink(ctx, w.d[2], "f"); err == nil {
		t.Error("a file was removed whose home may come back")
	}
	if err := w.realm.Rmdir(ctx, w.d[2], "sub1"); err == nil {
		t.Error("a directory was removed whose home may come back")
	}
	w.mu.Lock()
	w.down[1] = true
	w.mu.Unlock()
	if _, err := w.realm.Unlink(ctx, w.d[2], "f"); err != nil {
		t.Errorf("unlink of a file that is lost: %v", err)
	}
	if err := w.realm.Rmdir(ctx, w.d[2], "sub1"); err != nil {
		t.Errorf("rmdir of a directory that is lost: %v", err)
	}
	es, err := w.realm.ReadDir(ctx, w.d[2], "", 10)
	if err != nil || len(es) > 0 {
		t.Errorf("%d names are left, %v", len(es), err)
	}
	if a, err := w.realm.Getattr(ctx, w.d[2]); err != nil || a.Nlink != 2 {
		t.Errorf("the directory has %d links, %v, want 2", a.Nlink, err)
	}
}

// TestConflicts: many homes concurrently perform opposite operations on the same names. All end, no file is lost, and
// the tree is consistent.
func TestConflicts(t *testing.T) {
	w := newTree(t)
	for i, d := range w.d {
		w.create(d, fmt.Sprint("f", i))
		w.create(d, "swap")
		w.mkdir(d, fmt.Sprint("sub", (i+1)%4))
	}
	allowed := func(err error) bool {
		for _, e := range []error{syscall.ENOENT, syscall.EEXIST, syscall.EINVAL, syscall.ENOTEMPTY, syscall.EISDIR, syscall.ENOTDIR} {
			if errors.Is(err, e) {
				return true
			}
		}
		return err == nil
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 40 {
				from, to := w.d[(i+k)%4], w.d[(i*3+k+1)%4]
				var err error
				switch (i + k) % 5 {
				case 0:
					err = w.move(from, fmt.Sprint("f", k%4), to, fmt.Sprint("f", k%4), 0)
				case 1:
					err = w.move(from, "swap", to, "swap", metadata.RenameExchange)
				case 2:
					err = w.move(from, fmt.Sprint("sub", k%4), to, fmt.Sprint("sub", i%4), 0)
				case 3:
					if e, lerr := w.realm.Lookup(ctx, from, "swap"); lerr == nil {
						_, err = w.realm.Link(ctx, e.Ino, to, fmt.Sprint("l", i))
					}
				case 4:
					_, err = w.realm.Unlink(ctx, from, fmt.Sprint("l", (i+1)%8))
				}
				if !allowed(err) {
					t.Errorf("%d, step %d: %v", i, k, err)
				}
			}
		})
	}
	wg.Wait()
	w.settle()
	w.check()
}

// TestUnreachableHome: an operation waits for an unreachable home that returns, and for one that lost its prepared
// edits; it takes effect once. It does not wait for a home that is given up, or stays unreachable.
func TestUnreachableHome(t *testing.T) {
	for _, c := range []struct {
		what   string
		during bool // it becomes unreachable after its promise
		wait   time.Duration
		back   int // reachable again after this many calls to it
		down   bool
		want   error
	}{
		{what: "it comes back", wait: time.Hour, back: 5},
		{what: "its promise is lost", during: true, wait: time.Hour, back: 3},
		{what: "it stays away", wait: time.Nanosecond, want: syscall.ECONNRESET},
		{what: "it is given up", wait: time.Hour, back: 3, down: true, want: syscall.ECONNRESET},
	} {
		t.Run(c.what, func(t *testing.T) {
			j := newPatientJob(t, 2, c.wait)
			w := realm{j}
			d, err := w.Mkdir(ctx, root, "d1", metadata.New{Mode: syscall.S_IFDIR | 0o755})
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var calls int
			kill := func() { j.kill(1) }
			if !c.during {
				kill()
			}
			j.mu.Lock()
			j.hook = func(_ int, after bool, l link) {
				mu.Lock()
				defer mu.Unlock()
				if l.to != 1 {
					return
				}
				if after {
					if c.during {
						c.during = false
						kill()
					}
					return
				}
				if calls++; calls == c.back && c.down {
					j.mu.Lock()
					j.down[1] = true
					j.mu.Unlock()
				} else if calls == c.back {
					j.revive()
				}
			}
			j.mu.Unlock()
			over := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() { // as daemons do
				for {
					select {
					case <-over:
						return
					case <-time.After(time.Millisecond):
						for _, n := range j.homes() {
							n.Settle(ctx)
						}
					}
				}
			})
			defer wg.Wait()
			defer close(over)
			if err := w.Rmdir(ctx, root, "d1"); !errors.Is(err, c.want) {
				t.Errorf("Rmdir of %v = %v, want %v", d.Ino, err, c.want)
			}
			if c.want != nil {
				return
			}
			j.settle()
			if got := j.check(); got != "" {
				t.Errorf("what is there: %q", got)
			}
		})
	}
}

// TestNameOrDoom: a file without a name is named on another home or doomed, never both, which would lose data.
func TestNameOrDoom(t *testing.T) {
	w := newTree(t)
	named, doomed := 0, 0
	for i := range 200 {
		from, to := w.d[i%4], w.d[(i/4)%4]
		a, err := w.realm.at(from).CreateUnnamed(ctx, from, metadata.New{Mode: syscall.S_IFREG | 0o600})
		w.must(err)
		var lerr, derr error
		var at metadata.Attr
		var wg sync.WaitGroup
		wg.Go(func() { _, lerr = w.realm.Link(ctx, a.Ino, to, fmt.Sprint("f", i)) })
		wg.Go(func() {
			for range i % 7 * 30 {
				runtime.Gosched()
			}
			at, derr = w.realm.at(from).Doom(ctx, a.Ino)
		})
		wg.Wait()
		switch {
		case derr != nil, (lerr == nil) != (at.Nlink == 1), lerr != nil && !errors.Is(lerr, syscall.ENOENT):
			t.Fatalf("file %d: link: %v; doom: %d links, %v", i, lerr, at.Nlink, derr)
		case lerr == nil:
			named++
		default:
			doomed++
		}
	}
	w.settle()
	w.check()
	t.Log(named, "named,", doomed, "doomed")
}
