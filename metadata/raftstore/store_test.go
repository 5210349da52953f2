package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"github.com/sirupsen/logrus"
)

func testLog(t *testing.T) *logrus.Entry {
	l := logrus.New()
	l.SetOutput(t.Output())
	l.SetLevel(logrus.WarnLevel)
	return logrus.NewEntry(l)
}

func memStore(t *testing.T, fs vfs.FS) *store {
	t.Helper()
	if fs == nil {
		fs = vfs.NewMem()
	}
	s, err := openStore("raft", fs, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closing(t *testing.T, s *store) { t.Cleanup(func() { must(t, s.close()) }) }

func entry(i uint64) *raft.Log {
	return &raft.Log{
		Index: i, Term: i/3 + 1, Type: raft.LogType(i % 6), Data: fmt.Appendf(nil, "entry %d", i),
		Extensions: bytes.Repeat([]byte{7}, int(i%4)), AppendedAt: time.Unix(1700000000, int64(i)),
	}
}

func storeEntries(t *testing.T, s *store, from, to uint64) {
	t.Helper()
	var ls []*raft.Log
	for i := from; i <= to; i++ {
		ls = append(ls, entry(i))
	}
	must(t, s.StoreLogs(ls))
}

func wantEdges(t *testing.T, s *store, first, last uint64) {
	t.Helper()
	f, ferr := s.FirstIndex()
	l, lerr := s.LastIndex()
	if f != first || l != last || ferr != nil || lerr != nil {
		t.Fatalf("first and last index = %d, %v and %d, %v, want %d and %d", f, ferr, l, lerr, first, last)
	}
}

func wantEntry(t *testing.T, s *store, i uint64) {
	t.Helper()
	var l raft.Log
	want := entry(i)
	if len(want.Extensions) == 0 {
		want.Extensions = nil
	}
	if err := s.GetLog(i, &l); err != nil || !reflect.DeepEqual(&l, want) {
		t.Fatalf("GetLog(%d) = %+v, %v, want %+v", i, l, err, want)
	}
}

func wantNone(t *testing.T, s *store, i uint64) {
	t.Helper()
	l := raft.Log{Term: 99}
	if err := s.GetLog(i, &l); err != raft.ErrLogNotFound { // Raft compares, so it must not be wrapped
		t.Fatalf("GetLog(%d) = %+v, %v, want ErrLogNotFound", i, l, err)
	}
}

// TestLogStore is what hashicorp/raft expects of a LogStore, as its own stores
// are tested.
func TestLogStore(t *testing.T) {
	s := memStore(t, nil)
	closing(t, s)
	wantEdges(t, s, 0, 0)
	wantNone(t, s, 1)
	must(t, s.StoreLogs(nil))
	wantEdges(t, s, 0, 0)

	must(t, s.StoreLog(entry(1)))
	wantEdges(t, s, 1, 1)
	wantEntry(t, s, 1)
	storeEntries(t, s, 2, 300)
	wantEdges(t, s, 1, 300)
	for i := uint64(1); i <= 300; i++ {
		wantEntry(t, s, i)
	}
	wantNone(t, s, 0)
	wantNone(t, s, 301)

	must(t, s.DeleteRange(1, 10)) // the old ones, after a snapshot
	wantEdges(t, s, 11, 300)
	wantNone(t, s, 10)
	wantEntry(t, s, 11)
	must(t, s.DeleteRange(256, 300)) // the end, after a conflict
	wantEdges(t, s, 11, 255)
	wantNone(t, s, 256)
	wantEntry(t, s, 255)
	must(t, s.DeleteRange(20, 20))
	wantNone(t, s, 20)
	wantEntry(t, s, 21)
	must(t, s.DeleteRange(30, 29))
	wantEntry(t, s, 30)

	other := entry(100)
	other.Term, other.Data = 77, []byte("another leader's")
	must(t, s.StoreLog(other))
	var l raft.Log
	if err := s.GetLog(100, &l); err != nil || l.Term != 77 {
		t.Errorf("an overwritten entry = %+v, %v", l, err)
	}
	storeEntries(t, s, 1000, 1002) // with a gap, after a restored snapshot
	wantEdges(t, s, 11, 1002)
	must(t, s.StoreLog(entry(math.MaxUint64)))
	must(t, s.DeleteRange(1, math.MaxUint64))
	wantEdges(t, s, 0, 0)
	storeEntries(t, s, 5, 6)
	wantEdges(t, s, 5, 6)
}

func TestLogsAreTheCallers(t *testing.T) {
	s := memStore(t, nil)
	closing(t, s)
	e := entry(3)
	must(t, s.StoreLog(e))
	e.Data[0], e.Extensions[0] = 'X', 'X'
	var l raft.Log
	must(t, s.GetLog(3, &l))
	l.Data[0], l.Extensions[0] = 'Y', 'Y'
	wantEntry(t, s, 3)
	must(t, s.StoreLog(&raft.Log{Index: 4}))
	must(t, s.GetLog(4, &l))
	if !l.AppendedAt.IsZero() || len(l.Data) != 0 || l.Extensions != nil {
		t.Errorf("an empty entry = %+v", l)
	}
}

// TestStableStore is what hashicorp/raft expects of a StableStore: it knows a
// missing key by the text of the error.
func TestStableStore(t *testing.T) {
	fs := vfs.NewMem()
	s := memStore(t, fs)
	if v, err := s.Get([]byte("CurrentTerm")); err == nil || err.Error() != "not found" || len(v) != 0 {
		t.Errorf("Get of a missing key = %q, %v, want not found", v, err)
	}
	if v, err := s.GetUint64([]byte("CurrentTerm")); err == nil || err.Error() != "not found" || v != 0 {
		t.Errorf("GetUint64 of a missing key = %d, %v, want not found", v, err)
	}
	must(t, s.Set([]byte("LastVoteCand"), []byte("2")))
	must(t, s.Set([]byte("LastVoteCand"), []byte("1")))
	must(t, s.SetUint64([]byte("CurrentTerm"), math.MaxUint64))
	must(t, s.Set([]byte("empty"), nil))
	for range 2 {
		if v, err := s.Get([]byte("LastVoteCand")); err != nil || string(v) != "1" {
			t.Errorf("Get = %q, %v, want 1", v, err)
		}
		if v, err := s.GetUint64([]byte("CurrentTerm")); err != nil || v != math.MaxUint64 {
			t.Errorf("GetUint64 = %d, %v", v, err)
		}
		if v, err := s.Get([]byte("empty")); err != nil || len(v) != 0 {
			t.Errorf("Get of an empty value = %q, %v", v, err)
		}
		must(t, s.close())
		s = memStore(t, fs)
	}
	if _, err := s.GetUint64([]byte("LastVoteCand")); err == nil {
		t.Error("one byte is taken for an integer")
	}
	must(t, s.close())
}

func FuzzParseLog(f *testing.F) {
	f.Add(appendLog(nil, entry(3)))
	f.Add(appendLog(nil, &raft.Log{}))
	f.Add([]byte("\x01"))
	f.Add(append([]byte{1}, bytes.Repeat([]byte{0xff}, 40)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l raft.Log
		if parseLog(b, 1, &l) != nil {
			return
		}
		if again := appendLog(nil, &l); !bytes.Equal(again, b) {
			t.Fatalf("%x is parsed and encoded to %x", b, again)
		}
	})
}

// TestCrash crashes the machine at random moments under a writer. What was
// acknowledged must be there, and nothing that was not written.
func TestCrash(t *testing.T) {
	const seed, rounds, batches = 11, 30, 8
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	fs := vfs.NewCrashableMem()
	s := memStore(t, fs)
	var acked atomic.Uint64 // the last index that is surely there
	for n := range rounds {
		crash, at := make(chan struct{}), r.IntN(batches)
		var wg sync.WaitGroup
		wg.Go(func() {
			for k := range batches {
				if k == at {
					close(crash)
				}
				i := uint64(n*batches+k)*3 + 1
				err := s.StoreLogs([]*raft.Log{entry(i), entry(i + 1), entry(i + 2)})
				if err = errors.Join(err, s.SetUint64([]byte("CurrentTerm"), i)); err != nil {
					t.Error(err)
				}
				acked.Store(i + 2)
			}
		})
		<-crash
		last := acked.Load()
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[n%3], RNG: r})
		wg.Wait()
		checkCrashed(t, clone, last)
	}
	wantEdges(t, s, 1, rounds*batches*3)
	must(t, s.close())
}

func checkCrashed(t *testing.T, fs vfs.FS, last uint64) {
	t.Helper()
	s := memStore(t, fs)
	defer func() { must(t, s.close()) }()
	got, err := s.LastIndex()
	if err != nil || got < last || got%3 != 0 {
		t.Fatalf("after a crash the last index is %d, %v, want %d or whole batches more", got, err, last)
	}
	for i := uint64(1); i <= got; i++ {
		wantEntry(t, s, i)
	}
	if v, err := s.GetUint64([]byte("CurrentTerm")); last > 0 && (err != nil || v < last-2) {
		t.Fatalf("after a crash the term is %d, %v, want %d or more", v, err, last-2)
	}
}

func openSnaps(t *testing.T, s *store) *snapStore {
	t.Helper()
	ss, err := openSnapStore(s)
	must(t, err)
	return ss
}

func takeSnap(t *testing.T, ss *snapStore, index, term uint64, data string) string {
	t.Helper()
	conf := raft.Configuration{Servers: []raft.Server{{ID: "0", Address: "0"}, {ID: "1", Address: "1", Suffrage: raft.Nonvoter}}}
	k, err := ss.Create(raft.SnapshotVersionMax, index, term, conf, 2, nil)
	must(t, err)
	for _, piece := range strings.SplitAfter(data, " ") {
		_, err := k.Write([]byte(piece))
		must(t, err)
	}
	must(t, k.Close())
	must(t, k.Close())
	return k.ID()
}

func wantSnaps(t *testing.T, ss *snapStore, want ...string) {
	t.Helper()
	all, err := ss.List()
	must(t, err)
	var got []string
	for _, m := range all {
		_, r, err := ss.Open(m.ID)
		must(t, err)
		var b bytes.Buffer
		n, err := b.ReadFrom(r)
		if err != nil || n != m.Size {
			t.Errorf("snapshot %s has %d bytes, %v, want %d", m.ID, n, err, m.Size)
		}
		got = append(got, fmt.Sprintf("%d/%d %s", m.Term, m.Index, b.String()))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("snapshots are %q, want %q", got, want)
	}
}

func TestSnapshotStore(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := memStore(t, fs)
	ss := openSnaps(t, s)
	wantSnaps(t, ss)
	takeSnap(t, ss, 10, 1, "the first one")
	wantSnaps(t, ss, "1/10 the first one")
	id := takeSnap(t, ss, 20, 1, "the second one")
	takeSnap(t, ss, 20, 2, "")
	wantSnaps(t, ss, "2/20 ", "1/20 the second one")

	k, err := ss.Create(raft.SnapshotVersionMax, 30, 3, raft.Configuration{}, 0, nil)
	must(t, err)
	_, err = k.Write([]byte("half"))
	must(t, err)
	wantSnaps(t, ss, "2/20 ", "1/20 the second one") // not before it is closed
	must(t, k.Cancel())
	must(t, k.Close())
	wantSnaps(t, ss, "2/20 ", "1/20 the second one")

	m, _, err := ss.Open(id)
	must(t, err)
	if m.Index != 20 || m.Term != 1 || m.ConfigurationIndex != 2 || len(m.Configuration.Servers) != 2 ||
		m.Configuration.Servers[1].Suffrage != raft.Nonvoter || m.Version != raft.SnapshotVersionMax {
		t.Errorf("meta of a snapshot = %+v", m)
	}
	for _, id := range []string{"", "x", "00000000000000ff"} {
		if _, _, err := ss.Open(id); err == nil {
			t.Errorf("snapshot %q is there", id)
		}
	}
	if _, err := ss.Create(raft.SnapshotVersionMin, 1, 1, raft.Configuration{}, 0, nil); err == nil {
		t.Error("a snapshot of version 0 is taken")
	}

	crashed := memStore(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	wantSnaps(t, openSnaps(t, crashed), "2/20 ", "1/20 the second one")
	must(t, crashed.close())
	must(t, s.close())
	s = memStore(t, fs)
	ss = openSnaps(t, s)
	if next := takeSnap(t, ss, 40, 4, "after a restart"); next <= id {
		t.Errorf("snapshot %s comes after %s", next, id)
	}
	wantSnaps(t, ss, "4/40 after a restart", "2/20 ")
	must(t, s.close())
}

func TestOpenStoreFails(t *testing.T) {
	fs := vfs.NewMem()
	s := memStore(t, fs)
	defer s.close()
	if _, err := openStore("raft", fs, testLog(t)); err == nil || errors.Is(err, errNotFound) {
		t.Errorf("a store that is open is opened: %v", err)
	}
}
