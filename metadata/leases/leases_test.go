package leases

import (
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// clock is a clock that only the test advances.
type clock struct{ t time.Time }

func newClock() *clock                        { return &clock{time.Unix(1e9, 0)} }
func (c *clock) now() time.Time               { return c.t }
func (c *clock) pass(d time.Duration)         { c.t = c.t.Add(d) }
func attr(dir metadata.Ino) metadata.LeaseKey { return metadata.LeaseKey{Ino: dir} }

// grant calls Grant under the node's session.
func grant(t *Table, k metadata.LeaseKey, to metadata.NodeID) time.Duration {
	return t.Grant(k, t.Ask(to))
}

// change calls Change for a call that has just begun.
func change(t *Table, by metadata.NodeID, keys ...metadata.LeaseKey) (map[Holder][]metadata.LeaseKey, time.Time) {
	return t.Change(by, t.now().Add(1), keys...)
}

// A slow change recalls leases that its own node acquired in the meantime, but not those that the node acquires during
// the recall.
func TestSlowChange(t *testing.T) {
	c := newClock()
	tab := NewTable(c.now, time.Time{})
	grant(tab, attr(20), 1)
	c.pass(1)
	began := c.t
	grant(tab, attr(21), 1)
	c.pass(Term / 2)
	tell, _ := tab.Change(1, began, attr(20), attr(21))
	if got := told(tell); len(got) != 1 || got[1] != 1 {
		t.Fatalf("told %v, want node 1 of the key that it has asked for since", got)
	}
	c.pass(1)
	grant(tab, attr(21), 1)
	for h, keys := range tell {
		tab.Recalled(h, keys)
	}
	c.pass(1)
	if tell, _ := change(tab, 2, attr(21)); told(tell)[1] != 1 {
		t.Errorf("told %v, want node 1, which has asked once more", tell)
	}
}

// fetch returns a request whose reply is under a session of some home.
func fetch(c *Cache) Fetch {
	return c.Fetch().Under(metadata.Lease{Session: metadata.LeaseSession{Home: 9, ID: 1}, Term: Term})
}

func told(m map[Holder][]metadata.LeaseKey) map[metadata.NodeID]int {
	n := make(map[metadata.NodeID]int)
	for h, keys := range m {
		n[h.Node] += len(keys)
	}
	return n
}

func TestOnlyHoldersAreTold(t *testing.T) {
	c := newClock()
	tab := NewTable(c.now, time.Time{})
	k := metadata.LeaseKey{Ino: 16, Name: "d"}
	for _, n := range []metadata.NodeID{1, 2} {
		if got := grant(tab, attr(20), n); got != KeyTerm {
			t.Fatalf("Grant to %d = %v, want %v", n, got, KeyTerm)
		}
	}
	grant(tab, k, 1)
	grant(tab, attr(99), 3)
	c.pass(1)
	tell, after := change(tab, 2, attr(20), k)
	if got := told(tell); len(got) != 1 || got[1] != 2 || !after.IsZero() {
		t.Errorf("told %v after %v, want node 1 of two keys, at once", got, after)
	}
	if tell, _ := change(tab, 2, attr(20), k); told(tell)[1] != 2 {
		t.Errorf("told %v, want node 1 once more while its recall is in flight", tell)
	}
	for h, keys := range tell {
		tab.Recalled(h, keys)
	}
	if tell, _ := change(tab, 2, attr(20), k); len(tell) != 0 {
		t.Errorf("told %v twice", tell)
	}
	if tell, _ := change(tab, 1, attr(20)); told(tell)[2] != 1 {
		t.Errorf("told %v, want node 2, which keeps what it has changed itself", tell)
	}
}

func TestALeaseEnds(t *testing.T) {
	c := newClock()
	tab := NewTable(c.now, time.Time{})
	grant(tab, attr(20), 1)
	c.pass(Term - 1)
	if tell, _ := change(tab, 2, attr(21)); len(tell) != 0 {
		t.Errorf("told %v of another directory", tell)
	}
	c.pass(1)
	if tell, _ := change(tab, 2, attr(20)); len(tell) != 0 {
		t.Errorf("told %v whose lease is over", tell)
	}
	c.pass(Term)
	grant(tab, attr(1), 1)
	c.pass(Term)
	grant(tab, attr(2), 1)
	if tab.Len() != 1 {
		t.Errorf("%d keys are known, want the last one", tab.Len())
	}
}

// An inode that others change is not leased; one that only the asker changes is.
func TestBusyDirectoriesAreNotLeased(t *testing.T) {
	c := newClock()
	tab := NewTable(c.now, time.Time{})
	steps := []struct {
		pass    time.Duration
		changer metadata.NodeID // 0 means none
		asker   metadata.NodeID
		want    time.Duration
	}{
		{0, 1, 1, KeyTerm},
		{0, 0, 2, 0},
		{Term - 2, 0, 2, 0},
		{1, 0, 2, KeyTerm},
		{0, 2, 2, KeyTerm}, // 1 changed it long ago
		{0, 1, 2, 0},
		{0, 0, 1, 0}, // 2 has just changed it as well
		{Term, 0, 1, KeyTerm},
		{0, 0, 2, KeyTerm},
	}
	for i, s := range steps {
		c.pass(s.pass)
		if s.changer != 0 {
			change(tab, s.changer, attr(20))
			c.pass(1)
		}
		if got := grant(tab, attr(20), s.asker); got != s.want {
			t.Errorf("step %d: Grant to %d = %v, want %v", i, s.asker, got, s.want)
		}
	}
}

func TestARestartedHomeWaits(t *testing.T) {
	c := newClock()
	tab := NewTable(c.now, c.t.Add(Term))
	if _, after := change(tab, 1, attr(20)); !after.Equal(c.t.Add(Term)) {
		t.Errorf("acknowledged after %v, want %v", after, c.t.Add(Term))
	}
	c.pass(Term)
	if _, after := change(tab, 1, attr(20)); !after.IsZero() {
		t.Errorf("acknowledged after %v, want at once", after)
	}
}

func dir(ino metadata.Ino, mtime metadata.Time) metadata.Attr {
	return metadata.Attr{Ino: ino, Mode: 0o40755, Mtime: mtime, Ctime: mtime}
}

func TestCacheKeepsForATerm(t *testing.T) {
	c := newClock()
	h := NewCache(c.now)
	f := fetch(h)
	c.pass(100 * time.Millisecond) // the reply takes time
	f.Entry(16, metadata.Entry{Name: "d", Ino: 20, Mode: 0o40000}, Term)
	f.Attr(dir(20, 5), Term)
	f.End()
	if e, ok := h.Entry(16, "d"); !ok || e.Ino != 20 {
		t.Errorf("Entry = %v, %t", e, ok)
	}
	if a, left := h.Attr(20); a.Mtime != 5 || left != 900*time.Millisecond {
		t.Errorf("Attr = %v for %v, want what was answered for 900ms", a, left)
	}
	c.pass(900 * time.Millisecond)
	if _, ok := h.Entry(16, "d"); ok {
		t.Error("the entry is kept longer than it may be")
	}
	if _, left := h.Attr(20); left != 0 {
		t.Errorf("the attributes are kept for %v longer than they may be", left)
	}
	c.pass(Term)
	fetch(h).End()
	if h.Len() != 0 {
		t.Errorf("%d answers are kept for nobody", h.Len())
	}
}

// An answer that was in flight when its lease was recalled is not cached.
func TestRevokedUnderWay(t *testing.T) {
	c := newClock()
	k := metadata.LeaseKey{Ino: 16, Name: "d"}
	for _, revoke := range []metadata.LeaseKey{k, attr(20)} {
		h := NewCache(c.now)
		f := fetch(h)
		h.Revoke(revoke)
		f.Entry(16, metadata.Entry{Name: "d", Ino: 20}, Term)
		f.Attr(dir(20, 5), Term)
		f.End()
		if _, ok := h.Entry(16, "d"); ok == (revoke == k) {
			t.Errorf("revoke of %v: the entry is kept: %t", revoke, ok)
		}
		if _, left := h.Attr(20); (left > 0) == (revoke == attr(20)) {
			t.Errorf("revoke of %v: the attributes are kept for %v", revoke, left)
		}
		g := fetch(h)
		g.Attr(dir(20, 6), Term)
		g.End()
		if a, left := h.Attr(20); left == 0 || a.Mtime != 6 {
			t.Errorf("an answer to a later question is not kept")
		}
	}
}

func TestRevokedEntryTakesItsDirectory(t *testing.T) {
	c := newClock()
	h := NewCache(c.now)
	f := fetch(h)
	f.Entry(16, metadata.Entry{Name: "d", Ino: 20}, 0) // not leased
	f.Attr(dir(20, 5), Term)
	f.End()
	if _, ok := h.Entry(16, "d"); ok {
		t.Error("an entry without a lease is kept")
	}
	dirs := h.Revoke(metadata.LeaseKey{Ino: 16, Name: "d"})
	if len(dirs) != 1 || dirs[0] != 20 {
		t.Errorf("Revoke = %v, want 20", dirs)
	}
	if _, left := h.Attr(20); left != 0 {
		t.Error("the attributes of a directory whose name has changed are kept")
	}
}

// TestRecalledEntryLeavesItsInode: the recall of a name, as when a directory is split, does not affect the inode.
func TestRecalledEntryLeavesItsInode(t *testing.T) {
	h := NewCache(newClock().now)
	f := fetch(h)
	f.Entry(16, metadata.Entry{Name: "d", Ino: 20}, Term)
	f.Attr(dir(20, 5), Term)
	f.End()
	if inos := h.Recalled(metadata.LeaseKey{Ino: 16, Name: "d"}); len(inos) != 0 {
		t.Errorf("Recalled = %v, want none", inos)
	}
	if _, ok := h.Entry(16, "d"); ok {
		t.Error("the entry is kept")
	}
	if _, left := h.Attr(20); left == 0 {
		t.Error("the attributes are dropped with the name")
	}
	if inos := h.Recalled(attr(20)); len(inos) != 1 || inos[0] != 20 {
		t.Errorf("Recalled = %v, want 20", inos)
	}
	if _, left := h.Attr(20); left != 0 {
		t.Error("recalled attributes are kept")
	}
}

// A node's own changes show in its cache, and in replies that were made before the change and arrive after it.
func TestOwnChanges(t *testing.T) {
	c := newClock()
	h := NewCache(c.now)
	f := fetch(h)
	f.Attr(dir(20, 5), Term)
	late := fetch(h)
	h.Touch(20, 9)
	h.Touch(20, 7) // from a call that was overtaken
	if a, _ := h.Attr(20); a.Mtime != 9 || a.Ctime != 9 {
		t.Errorf("kept: %v, want the time 9", a)
	}
	if a := late.Attr(dir(20, 5), 0); a.Mtime != 9 {
		t.Errorf("late answer: %v, want the time 9", a)
	}
	late.End()
	f.End()
	if a := fetch(h).Attr(dir(20, 4), Term); a.Mtime != 9 {
		t.Errorf("answer beside what is kept: %v, want the time 9", a)
	}
}

// However much is recalled while a reply is in flight, the cache remembers little about the recalls, and keeps no
// recalled answer.
func TestManyRevocations(t *testing.T) {
	c := newClock()
	h := NewCache(c.now)
	f := fetch(h)
	h.Revoke(attr(20))
	for i := range 2 * maxPast {
		h.Revoke(attr(metadata.Ino(1000 + i)))
		h.Touch(metadata.Ino(1000+i), 1)
	}
	if n := len(h.past) + len(h.floors); n > 2*maxPast {
		t.Errorf("%d revocations are remembered, want at most %d", n, 2*maxPast)
	}
	f.Attr(dir(20, 5), Term)
	f.End()
	if _, left := h.Attr(20); left != 0 {
		t.Error("a revoked answer is kept")
	}
	if len(h.past)+len(h.floors) != 0 {
		t.Error("revocations are remembered for nobody")
	}
}

func TestRemovedDirectoriesAreRemembered(t *testing.T) {
	c := NewCache(newClock().now)
	see := func(ino metadata.Ino) {
		f := fetch(c)
		defer f.End()
		a := dir(ino, 1)
		a.Nlink = 2
		f.Attr(a, 0)
	}
	const first = metadata.Ino(1 << 20)
	see(first)
	for i := range metadata.Ino(maxSeen) {
		see(first + 1 + i)
	}
	if a, ok := c.Removed(first); !ok || a.Ino != first || a.Nlink != 0 {
		t.Errorf("Removed = %+v, %v, want it without links", a, ok)
	}
	for i := range metadata.Ino(maxSeen) {
		see(first + maxSeen + 1 + i)
	}
	if _, ok := c.Removed(first); ok {
		t.Error("it is remembered for ever")
	}
	if a, ok := c.Removed(first + 2*maxSeen); !ok || a.Nlink != 0 {
		t.Errorf("Removed of the last = %+v, %v", a, ok)
	}
}

// Len returns the number of cached answers.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries) + len(c.attrs)
}

// Len returns the number of known keys.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.known)
}

// A renewed session keeps its leases; one with an unanswered recall is not renewed, and later requests of its node are
// under another session.
func TestSessions(t *testing.T) {
	c := newClock()
	tab := NewTable(c.now, time.Time{})
	first := tab.Ask(1)
	id := first.Session
	if first.Term != Term || tab.Grant(attr(20), first) == 0 {
		t.Fatalf("a session of %v grants nothing", first.Term)
	}
	for range 5 {
		c.pass(Term / 2)
		if got := tab.Renew(1, id); got != Term {
			t.Fatalf("Renew = %v, want %v", got, Term)
		}
	}
	tell, _ := change(tab, 2, attr(20))
	if told(tell)[1] != 1 {
		t.Fatalf("told %v, want node 1, whose lease was renewed", tell)
	}
	c.pass(Term / 2)
	if got := tab.Renew(1, id); got != Term/2 {
		t.Errorf("Renew during a recall = %v, want what was left", got)
	}
	if q := tab.Ask(1); q.Session != id || q.Term != Term/2 {
		t.Errorf("Ask during a recall = %+v, want session %d for what was left", q, id)
	}
	c.pass(Term / 2)
	if got := tab.Renew(1, id); got != 0 {
		t.Errorf("Renew of a session that has ended = %v", got)
	}
	next := tab.Ask(1).Session
	for h, keys := range tell {
		tab.Recalled(h, keys)
	}
	if got := tab.Renew(1, next); next == id || got != Term {
		t.Errorf("session %d after %d, renewed for %v", next, id, got)
	}
	if got := tab.Grant(attr(21), first); got != 0 {
		t.Errorf("a session that has ended grants %v", got)
	}
	if again := NewTable(c.now, time.Time{}).Ask(1).Session; again == next || again == id {
		t.Errorf("a restarted home begins session %d again", again)
	}
}

func TestAnsweredRecallsRenew(t *testing.T) {
	c := newClock()
	tab := NewTable(c.now, time.Time{})
	q := tab.Ask(1)
	tab.Grant(attr(20), q)
	c.pass(1)
	tell, _ := change(tab, 2, attr(20))
	for h, keys := range tell {
		tab.Recalled(h, keys)
	}
	c.pass(Term / 2)
	if got := tab.Renew(1, q.Session); got != Term {
		t.Errorf("Renew after an answered recall = %v, want %v", got, Term)
	}
	if keys := tab.Of(20); len(keys) != 0 {
		t.Errorf("leased after the recall: %v", keys)
	}
}

// A listing stays valid while the attributes that came with it are leased, without a change or recall since.
func TestListings(t *testing.T) {
	es := []metadata.Entry{{Name: "a", Ino: 31}, {Name: "c", Ino: 32}}
	again := func(mtime metadata.Time) func(*Cache, *clock) {
		return func(h *Cache, _ *clock) { fetch(h).Attr(dir(20, mtime), KeyTerm) }
	}
	for name, c := range map[string]struct {
		before, during, after func(*Cache, *clock)
		want                  bool
	}{
		"undisturbed":              {want: true},
		"changed here":             {after: func(h *Cache, _ *clock) { h.Touch(20, 9) }},
		"changed here meanwhile":   {during: func(h *Cache, _ *clock) { h.Touch(20, 9) }},
		"changed here before":      {before: func(h *Cache, _ *clock) { h.Touch(20, 9) }, want: true},
		"recalled":                 {after: func(h *Cache, _ *clock) { h.Revoke(attr(20)) }},
		"recalled meanwhile":       {during: func(h *Cache, _ *clock) { h.Revoke(attr(20)) }},
		"in doubt":                 {before: func(h *Cache, _ *clock) { h.Doubt(attr(20)) }},
		"in doubt long ago":        {before: func(h *Cache, c *clock) { h.Doubt(attr(20)); c.pass(KeyTerm) }, want: true},
		"another lease meanwhile":  {during: again(5), want: true},
		"over, another lease":      {during: func(h *Cache, c *clock) { c.pass(KeyTerm); again(5)(h, c) }},
		"leased again, unchanged":  {after: again(5), want: true},
		"leased again, changed":    {after: again(6)},
		"after the session":        {after: func(_ *Cache, c *clock) { c.pass(Term) }},
		"leased again after a gap": {after: func(h *Cache, c *clock) { c.pass(Term); again(5)(h, c) }},
	} {
		k := newClock()
		h := NewCache(k.now)
		do := func(f func(*Cache, *clock)) {
			if f != nil {
				f(h, k)
			}
		}
		do(c.before)
		f := fetch(h)
		do(c.during)
		f.Attr(dir(20, 5), KeyTerm)
		f.Listing(20, "", es, true, KeyTerm)
		f.End()
		do(c.after)
		got, ok := h.Listing(20, "")
		if rest, _ := h.Listing(20, "a"); ok != c.want || ok && (len(got) != 2 || len(rest) != 1) {
			t.Errorf("%s: Listing = %v, %v, want %v; behind a: %v", name, got, ok, c.want, rest)
		}
		if h.Absent(20, "b") != c.want || h.Absent(20, "a") || h.Absent(20, "c") {
			t.Errorf("%s: b is absent: %v, want %v; a: %v", name, h.Absent(20, "b"), c.want, h.Absent(20, "a"))
		}
		h.Revoke(attr(20))
		if h.listed != 0 {
			t.Errorf("%s: %d entries are counted after all was dropped", name, h.listed)
		}
	}
}

// A listing in pages is valid from its last page on, if nothing changed since the first. An isolated page is dropped.
func TestListingInPages(t *testing.T) {
	first, second := []metadata.Entry{{Name: "a", Ino: 31}}, []metadata.Entry{{Name: "c", Ino: 32}}
	for name, c := range map[string]struct {
		between func(*Cache)
		mtime   metadata.Time // mtime of the directory at the second page
		after   string
		want    bool
	}{
		"undisturbed":   {mtime: 5, after: "a", want: true},
		"changed here":  {mtime: 5, after: "a", between: func(h *Cache) { h.Touch(20, 9) }},
		"recalled":      {mtime: 5, after: "a", between: func(h *Cache) { h.Revoke(attr(20)) }},
		"changed there": {mtime: 6, after: "a"},
		"another page":  {mtime: 5, after: "b"},
	} {
		h := NewCache(newClock().now)
		f := fetch(h)
		f.Attr(dir(20, 5), KeyTerm)
		f.Listing(20, "", first, false, KeyTerm)
		if _, ok := h.Listing(20, ""); ok || h.Absent(20, "b") {
			t.Errorf("%s: the first page counts as all", name)
		}
		if c.between != nil {
			c.between(h)
		}
		f = fetch(h)
		f.Attr(dir(20, c.mtime), KeyTerm)
		f.Listing(20, c.after, second, true, KeyTerm)
		if es, ok := h.Listing(20, ""); ok != c.want || ok && len(es) != 2 {
			t.Errorf("%s: Listing = %v, %v, want %v", name, es, ok, c.want)
		}
		h.Revoke(attr(20))
		if h.listed != 0 {
			t.Errorf("%s: %d entries are counted after all was dropped", name, h.listed)
		}
	}
}

// A directory is worth listing at the second missing name, if the listing is leased.
func TestMisses(t *testing.T) {
	c := newClock()
	h := NewCache(c.now)
	miss := func() (at []int) {
		for i := range 5 {
			if h.Asked(20, false) > 0 {
				at = append(at, i)
			}
		}
		return at
	}
	if at := miss(); at != nil {
		t.Errorf("without a lease it is listed at misses %v", at)
	}
	f := fetch(h)
	f.Attr(dir(20, 5), KeyTerm)
	for i := range 3 * listedLong {
		want := map[int]int{listedAsked: 1024, listedLong: 4096}[i+1]
		if got := h.Asked(20, true); got != want {
			t.Errorf("%d entries listed after %d names that it has, want %d", got, i+1, want)
		}
	}
	if at := miss(); !slices.Equal(at, []int{1}) {
		t.Errorf("it is listed at misses %v, want 1", at)
	}
	fetch(h).Attr(dir(20, 5), KeyTerm)
	if at := miss(); at != nil {
		t.Errorf("unchanged, it is listed again at misses %v", at)
	}
	fetch(h).Attr(dir(20, 6), KeyTerm)
	f.Listing(20, "", nil, true, KeyTerm)
	if at := miss(); at != nil {
		t.Errorf("with a listing it is listed at misses %v", at)
	}
}

// A session is renewed while it is used, and for a while longer.
func TestDueSessions(t *testing.T) {
	c := newClock()
	h := NewCache(c.now)
	f := fetch(h)
	f.Attr(dir(20, 5), KeyTerm)
	f.End()
	renew := func() int {
		due := h.Due()
		for _, id := range due {
			if len(h.Due()) != 0 {
				t.Error("it is due again while it is renewed")
			}
			h.Renewed(id, c.t, Term)
		}
		return len(due)
	}
	if renew() != 0 {
		t.Error("a new session is due")
	}
	for range int(KeyTerm/Term) - 1 {
		c.pass(Term / 2)
		renew()
		c.pass(Term / 2)
		renew()
		h.Attr(20)
	}
	if _, left := h.Attr(20); left == 0 {
		t.Error("the lease has ended with its first term")
	}
	n := 0
	g := fetch(h)
	g.Attr(dir(20, 5), KeyTerm)
	g.End()
	for range 4 * int(KeyTerm/Term) { // the holder looks four times a term, a little late
		c.pass(Term/4 + Term/1000)
		n += renew()
		h.Attr(20)
	}
	if max := 2*int(KeyTerm/Term) + 1; n > max {
		t.Errorf("%d renewals in %v, want at most %d", n, KeyTerm, max)
	}
	n = 0
	for range 4 * int(idle/Term) {
		c.pass(Term / 2)
		n += renew()
	}
	if max := 2 * int(idle/Term); n == 0 || n > max {
		t.Errorf("%d renewals of a session that is not used, want at most %d", n, max)
	}
}
