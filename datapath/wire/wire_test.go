package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

var (
	sampleLayout = metadata.Layout{Kind: metadata.Local, Copies: 2, Node: 0x0304, ChunkSize: 1 << 20, Width: 9, Epoch: 77}
	sampleAttr   = metadata.Attr{
		Ino: metadata.LiveIno(3, 1041), Mode: 0o100644, Nlink: 2, UID: 1000, GID: 1001, Rdev: 5, Size: 1 << 40,
		Atime: -1, Mtime: 1<<62 + 7, Ctime: 12, Layout: sampleLayout,
	}
	sampleLock = metadata.Lock{
		Kind: metadata.FlockLock, Type: metadata.WriteLock, Owner: 1 << 63, Start: 4, End: metadata.MaxLockEnd, PID: 77,
	}
	sampleNew    = metadata.New{Mode: 0o120777, UID: 1, GID: 2, Rdev: 3, Target: "../über", Layout: sampleLayout}
	sampleChange = metadata.Change{
		Set: metadata.SetSize | metadata.MtimeNow, Mode: 0o600, UID: 7, GID: 8, Size: -3, Atime: 4, Mtime: 5, Layout: sampleLayout,
	}
)

// messages returns each message at least once, with all fields set.
func messages() []Message {
	full := metadata.Entry{Name: "a", Ino: 17, Mode: 0o100000, Attr: &sampleAttr}
	bare := metadata.Entry{Name: strings.Repeat("x", metadata.MaxName), Ino: 18, Mode: 0o40000}
	return []Message{
		&DirName{Dir: 16, Name: "name"},
		&CreateReq{Dir: 16, Name: "n", New: sampleNew},
		&RenameReq{metadata.Rename{Dir: 1, Name: "a", NewDir: 2, NewName: "b", Flags: metadata.RenameExchange}},
		&ReadDirReq{Dir: 16, After: "m", Limit: 100},
		&InoReq{Ino: metadata.SealedIno(1, 2, 3)},
		&SetattrReq{Ino: 16, Change: sampleChange},
		&LinkReq{Ino: 1024, Dir: 16, Name: "l"},
		&PrepareReq{Tx: 7, Edits: []metadata.Edit{
			{Kind: metadata.EditMake, ToDir: 16, ToName: "d", New: &sampleNew},
			{Kind: metadata.EditSwap, Dir: 16, Name: "a", Ino: 99, Mode: 0o40755, ToDir: 17, ToName: "b"},
		}},
		&VoteResp{},
		&VoteResp{Vote: metadata.Vote{Old: &full, Attr: &sampleAttr}},
		&TxReq{Tx: 1 << 50},
		&MirrorReq{Home: 2, Seat: 5, Gen: 3, Seq: 4, Complete: true, Batches: [][]byte{{1, 2}, {3}}},
		&MirrorResp{Verdict: 1, Last: 9, Full: true},
		&StandInReq{From: 1, To: 2, Op: OpLookup, Body: []byte{1, 2, 3}},
		&OutcomeResp{Outcome: metadata.Aborted},
		&RenameLockReq{Tx: 5, Unlock: true},
		&AncestorReq{From: 17, Stop: 18},
		&AttrResp{Attr: sampleAttr},
		&EntryResp{},
		&EntryResp{Entry: &full},
		&EntriesResp{},
		&EntriesResp{Entries: []metadata.Entry{full, bare, full, full}},
		&StringResp{S: "target"},
		&RedirectResp{metadata.Redirect{Dir: 16, Epoch: 9}},
		&ShardCreateReq{metadata.NewShard{
			Shard: metadata.Shard{Dir: 16, Gen: 1024}, Epoch: 9, Seed: 7, Attr: sampleAttr, Nodes: []metadata.NodeID{0, 2, 0x0304},
		}},
		&ShardFillReq{Shard: metadata.Shard{Dir: 16, Gen: 1}, Entries: []metadata.Entry{bare, full}},
		&ShardChangeReq{metadata.ShardChange{
			Shard: metadata.Shard{Dir: 16, Gen: 1}, Order: metadata.ShardFreeze, Freeze: 3, Attr: sampleAttr,
		}},
		&ShardReportReq{metadata.ShardReport{Shard: metadata.Shard{Dir: 16, Gen: 1}, Freeze: 3, Subdirs: 4, Mtime: 5}},
		&ShardReportResp{metadata.ShardAnswer{State: metadata.ShardActive, Attr: sampleAttr}},
		&ShardReadReq{ReadDirReq: ReadDirReq{Dir: 16, After: "m", Limit: 100}, Epoch: 9},
		&SpaceResp{Space: datapath.Space{Capacity: 1, Used: 2, Free: 3, Objects: 4}},
		&LeasedEntryResp{Entry: full, Lease: metadata.Lease{Entry: time.Second, Attr: 20 * time.Millisecond}},
		&LeasedEntryResp{Entry: bare},
		&LeasedAttrResp{Attr: sampleAttr, Lease: metadata.Lease{Attr: time.Millisecond}},
		&RevokeReq{},
		&RenewLeaseReq{Session: 7},
		&RenewLeaseResp{Term: 3 * time.Millisecond},
		&RevokeReq{Keys: []metadata.LeaseKey{{Ino: 16}, {Ino: 17, Name: "d"}}},
		&DrainReq{},
		&DrainReq{Conns: []Nonce{{1, 2}, {3}}},
		&CachedReplyReq{Conn: Nonce{1, 2}, Tag: 7},
		&CachedReplyResp{},
		&CachedReplyResp{Fate: NotStarted},
		&CachedReplyResp{Fate: Answered, Status: 17, Body: []byte("what is there")},
		&CachedReplyResp{Fate: Answered},
		&ReadReq{Ino: 5, Off: -1, Len: MaxData},
		&WriteReq{Ino: 5, Off: 1 << 50},
		&SummedWriteReq{WriteReq{Ino: 5, Off: 1 << 50}, 0xfedcba98},
		&CopyRangeReq{Ino: 5, By: 6, Run: 7, Try: 8, Seq: 9, Off: 1 << 50, Expected: 1 << 51},
		&SumResp{0xfedcba98},
		&PutPiecesReq{},
		&PutPiecesReq{Heads: []PieceHeader{{Ino: 5, Off: 1 << 50, Len: 7, Sum: [16]byte{1, 15: 2}}, {Ino: 6}}},
		&PutPiecesResp{},
		&ReadManyReq{},
		&ReadManyReq{Summed: true, Files: []ReadReq{{Ino: 5, Off: 1 << 50, Len: 7}, {Ino: 6}}},
		&ReadManyResp{},
		&ReadManyResp{Files: []ManyFile{{Len: 9, Sum: 3}, {Status: syscall.EAGAIN}}},
		&PutPiecesResp{Status: []syscall.Errno{0, syscall.EBADMSG}},
		&TruncateReq{Ino: 5, Size: 12},
		&OpenReq{Run: 1 << 60, Ino: 5, Opening: metadata.Opening{Ticket: 9, Maps: true}},
		&OpenResp{metadata.Holding{Attr: sampleAttr, Maps: true, Run: 1 << 60}},
		&OpenAheadReq{Run: 7, Files: []metadata.OpenAhead{{Ino: 5, Ticket: 9}, {Ino: 6, Ticket: 10}}},
		&OpenAheadResp{Run: 3, Attrs: []metadata.Attr{sampleAttr, {Ino: 6}}},
		&CreateOpenReq{Run: 1, Opening: metadata.Opening{Ticket: 2}, CreateReq: CreateReq{Dir: 16, Name: "n", New: sampleNew}},
		&ClosedReq{Run: 3},
		&ClosedReq{Run: 3, Files: []metadata.Opened{{Ino: 5, Ticket: 6}, {Ino: 7, Ticket: 8, Unsure: true, Written: []metadata.Extent{{Off: 1, Len: 2}, {Off: 3, Len: 4}}, Locks: []metadata.Lock{sampleLock}}}},
		&RecallReq{Run: 3, After: 4},
		&RecallReq{Run: 3, Only: []metadata.Ino{5, 6}},
		&RecallResp{metadata.Recalled{Run: 1, Floor: 2, More: true, Busy: true, Files: []metadata.Opened{{
			Ino: 5, Ticket: 6, Unsure: true, Outstanding: metadata.Reservation{Seq: 7, Extent: metadata.Extent{Off: -1, Len: 8}},
		}}}},
		&InosReq{Inos: []metadata.Ino{1, 2, 3}},
		&RangeReq{Ino: 5, Off: 1 << 50, Len: -1},
		&DataReq{Ino: 5, Off: 7},
		&ExtentResp{Extent: datapath.NoData},
		&SizeResp{Bytes: 1 << 40},
		&XattrReq{Ino: 5, Name: "user.a"},
		&SetxattrReq{Ino: 5, Xattr: metadata.Xattr{Name: "user.a", Value: []byte("v\x00"), Mode: metadata.XattrReplace}},
		&SetxattrReq{Ino: 5, Xattr: metadata.Xattr{Name: "user.empty"}},
		&BytesResp{},
		&BytesResp{B: []byte{0, 1}},
		&NamesResp{},
		&NamesResp{Names: []string{"user.a", "user.b"}},
		&AppendReq{Run: 1, Req: metadata.Append{Ino: 5, Seq: 6, Len: 7, End: 8, Wait: 9, Unused: 4, Thaw: true}},
		&LockReq{Run: 1, Req: metadata.LockReq{Ino: 5, Lock: sampleLock, Waiter: 6, Cancel: true}},
		&LockResp{metadata.LockAnswer{Granted: true, Version: 7}},
		&HeldLockResp{Node: 3, Lock: sampleLock},
		&WakeReq{Waiters: []uint64{1, 2}},
		&PlaceResp{metadata.Place{Off: 5, Tail: 6, Attr: sampleAttr, Alone: true}},
		&Hello{Purpose: PurposeBulk, From: 1, To: 0xffff, Nonce: Nonce{1, 2}},
		&Challenge{Nonce: Nonce{3}, MAC: MAC{4}},
		&Proof{MAC: MAC{5}},
		&Verdict{MAC: MAC{6}},
	}
}

func fresh(m Message) Message {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, m := range messages() {
		b := Append([]byte("before"), m)
		got := fresh(m)
		if err := Parse(b[6:], got); err != nil {
			t.Errorf("%T: Parse(Append) = %v", m, err)
			continue
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%T: got %+v, want %+v", m, got, m)
		}
	}
}

// TestStandInReq: a request embedded in a request is parsed like a separate one.
func TestStandInReq(t *testing.T) {
	want, got := &DirName{Dir: 16, Name: "name"}, new(DirName)
	var m StandInReq
	if err := Parse(Append(nil, &StandInReq{From: 1, To: 2, Op: OpLookup, Request: want}), &m); err != nil {
		t.Fatal(err)
	}
	if err := Parse(m.Body, got); err != nil || *got != *want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func encoded[T any](field func(*codec, *T), v *T) []byte {
	c := codec{encoding: true}
	field(&c, v)
	return c.b
}

// A truncated message, or one with an extra byte, is refused.
func TestMessagesCutShort(t *testing.T) {
	for _, m := range messages() {
		b := Append(nil, m)
		for n := range b {
			if err := Parse(b[:n], fresh(m)); !errors.Is(err, syscall.EBADMSG) {
				t.Fatalf("%T of %d bytes: Parse of %d = %v, want EBADMSG", m, len(b), n, err)
			}
		}
		if err := Parse(append(b, 0), fresh(m)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%T: Parse with a byte too many = %v, want ErrMalformed", m, err)
		}
	}
}

func TestParseKeepsNothing(t *testing.T) {
	for _, m := range messages() {
		b := Append(nil, m)
		got := fresh(m)
		if err := Parse(b, got); err != nil {
			t.Fatal(err)
		}
		clear(b)
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%T changed with the buffer it was parsed from", m)
		}
	}
}

// The encodings match the package comment.
func TestGolden(t *testing.T) {
	layout := "0102" + "0403" + "00001000" + "0900" + "4d00000000000000"
	attr := "1104000000000300" + "a4810000" + "02000000" + "e8030000" + "e9030000" + "05000000" +
		"0000000000010000" + "ffffffffffffffff" + "0700000000000040" + "0c00000000000000" + layout
	for _, c := range []struct {
		m    Message
		want string
	}{
		{&DirName{Dir: 16, Name: "ab"}, "1000000000000000" + "02000000" + "6162"},
		{&AttrResp{Attr: sampleAttr}, attr + "0000000000000000"},
		{&EntryResp{Entry: &metadata.Entry{Name: "a", Ino: 17, Mode: 3, Attr: &sampleAttr}},
			"01" + "1100000000000000" + "03000000" + "01" + attr + "01000000" + "61"},
		{&CreateReq{Dir: 1, Name: "n", New: metadata.New{Mode: 1, UID: 2, GID: 3, Rdev: 4, Target: "t", Layout: sampleLayout}},
			"0100000000000000" + "01000000" + "6e" + "01000000" + "02000000" + "03000000" + "04000000" + "01000000" + "74" + layout},
		{&SetattrReq{Ino: 1, Change: metadata.Change{Set: 1, Mode: 2, UID: 3, GID: 4, Size: 5, Atime: 6, Mtime: 7, Layout: sampleLayout, Freeze: 8}},
			"0100000000000000" + "01000000" + "02000000" + "03000000" + "04000000" + "0500000000000000" + "0600000000000000" +
				"0700000000000000" + layout + "0800000000000000"},
		{&PrepareReq{Tx: 2, Edits: []metadata.Edit{{Kind: metadata.EditSwap, Dir: 3, Name: "a", Ino: 4, Mode: 5, ToDir: 6, ToName: "b"}}},
			"0200000000000000" + "01000000" + "04" + "0300000000000000" + "01000000" + "61" + "0400000000000000" + "05000000" +
				"0600000000000000" + "01000000" + "62" + "00"},
		{&ReadReq{Ino: 2, Off: 3, Len: 4}, "0200000000000000" + "0300000000000000" + "04000000"},
		{&EntriesResp{}, "00000000"},
		{&LeasedAttrResp{Attr: sampleAttr, Lease: metadata.Lease{Entry: 1500 * time.Microsecond, Attr: time.Second, Session: metadata.LeaseSession{Home: 2, ID: 3}, Term: time.Millisecond}},
			attr + "01000000" + "e8030000" + "0200" + "0300000000000000" + "01000000"},
		{&RevokeReq{Keys: []metadata.LeaseKey{{Ino: 16, Name: "d"}}}, "01000000" + "1000000000000000" + "01000000" + "64"},
		{&Hello{Purpose: PurposeStream, Protection: 2, From: 1, To: 2, Nonce: Nonce{9}},
			hex.EncodeToString([]byte("BVhi")) + "0a00" + "03" + "02" + "0100" + "0200" + "09" + strings.Repeat("00", 31)},
	} {
		if got := hex.EncodeToString(Append(nil, c.m)); got != c.want {
			t.Errorf("%T = %s, want %s", c.m, got, c.want)
		}
	}
	sizes := map[string][2]int{
		"layout":    {len(encoded((*codec).layout, &sampleLayout)), layoutSize},
		"attr":      {len(encoded((*codec).attr, &sampleAttr)), attrSize},
		"entry":     {len(encoded((*codec).entry, &metadata.Entry{})), entrySize},
		"hello":     {len(Append(nil, &Hello{})), HelloSize},
		"challenge": {len(Append(nil, &Challenge{})), ChallengeSize},
		"proof":     {len(Append(nil, &Proof{})), ProofSize},
		"verdict":   {len(Append(nil, &Verdict{})), VerdictSize},
		"header":    {len(Header{}.Append(nil)), HeaderSize},
	}
	for what, s := range sizes {
		if s[0] != s[1] {
			t.Errorf("%s is %d bytes, want %d", what, s[0], s[1])
		}
	}
	for _, l := range []string{LabelServer, LabelClient, LabelAccept} {
		if len(l) != 16 {
			t.Errorf("label %q is %d bytes, want 16", l, len(l))
		}
	}
}

func TestMaxEntriesFit(t *testing.T) {
	e := metadata.Entry{Name: strings.Repeat("x", metadata.MaxName), Attr: &sampleAttr}
	m := LeasedListingResp{metadata.LeasedListing{Entries: make([]metadata.LeasedEntry, MaxEntries)}}
	for i := range m.Entries {
		m.Entries[i].Entry = e
	}
	if n := len(Append(nil, &m)); n > MaxFrame {
		t.Fatalf("MaxEntries entries are %d bytes, want at most %d", n, MaxFrame)
	}
}

// A count larger than the message can hold causes no allocation.
func TestEntriesCountIsNotTrusted(t *testing.T) {
	b := []byte{0xff, 0xff, 0xff, 0xff, 0, 0}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var m EntriesResp
	if err := Parse(b, &m); err == nil || m.Entries != nil {
		t.Fatalf("Parse = %v with %d entries, want an error", err, len(m.Entries))
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 32<<10 {
		t.Errorf("%d bytes are allocated, want those of the error only", n)
	}
}

func TestBoolsAreZeroOrOne(t *testing.T) {
	if err := Parse([]byte{2}, new(EntryResp)); !errors.Is(err, ErrMalformed) {
		t.Errorf("Parse of 2 as a bool = %v, want ErrMalformed", err)
	}
}

func TestHeader(t *testing.T) {
	h := Header{Body: 5, Data: 7, Op: OpWrite, Status: syscall.ENOENT, Tag: 0x01020304, Epoch: 9, Wait: 1000, Sum: 0x0a0b0c0d}
	b := h.Append(nil)
	want := "0c000000" + "05000000" + "2100" + "0200" + "04030201" + "0900000000000000" + "e8030000" + "0d0c0b0a"
	if got := hex.EncodeToString(b[:32]); got != want {
		t.Errorf("header is %s, want %s", got, want)
	}
	var got Header
	if err := got.Parse(b); err != nil || got != h {
		t.Errorf("Parse = %+v, %v, want %+v", got, err, h)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		if err := got.Parse(bad); err == nil {
			t.Errorf("Parse with byte %d changed is accepted", i)
		}
	}
	if err := got.Parse(b[:35]); !errors.Is(err, ErrMalformed) {
		t.Errorf("Parse of 35 bytes = %v, want ErrMalformed", err)
	}
}

func TestHeaderBounds(t *testing.T) {
	for _, c := range []struct {
		length, body uint32
		ok           bool
	}{
		{0, 0, true},
		{MaxFrame, MaxFrame, true},
		{MaxFrame + 1, MaxFrame, false},
		{MaxFrame + 1, MaxFrame + 1, false},
		{MaxData, 0, true},
		{MaxData + 1, 0, false},
		{10, 11, false},
		{0xffffffff, 0xffffffff, false},
		{0, 0xffffffff, false},
	} {
		b := Header{}.Append(nil)
		binary.LittleEndian.PutUint32(b, c.length)
		binary.LittleEndian.PutUint32(b[4:], c.body)
		binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
		err := new(Header).Parse(b)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrTooLarge) {
			t.Errorf("Parse of length %d, body %d = %v, want ok %v", c.length, c.body, err, c.ok)
		}
	}
}

func TestHandshakeVersion(t *testing.T) {
	b := Append(nil, &Hello{Purpose: PurposeMeta})
	b[4]++
	if err := Parse(b, new(Hello)); !errors.Is(err, ErrVersion) {
		t.Errorf("Parse = %v, want ErrVersion", err)
	}
	b = Append(nil, &Challenge{})
	b[4]++
	if err := Parse(b, new(Challenge)); !errors.Is(err, ErrVersion) {
		t.Errorf("Parse = %v, want ErrVersion", err)
	}
	for _, purpose := range []Purpose{0, 6} {
		b := Append(nil, &Hello{Purpose: purpose})
		if err := Parse(b, new(Hello)); !errors.Is(err, ErrMalformed) {
			t.Errorf("Parse of purpose %d = %v, want ErrMalformed", purpose, err)
		}
	}
}

func TestOpNames(t *testing.T) {
	names := map[string]Op{}
	for op := range MaxOp {
		if !op.Known() {
			continue
		}
		if other, taken := names[op.String()]; taken {
			t.Errorf("ops %d and %d are both %q", op, other, op)
		}
		names[op.String()] = op
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z-]+) +(\d+)  `).FindAllSubmatch(doc, -1) {
		if n, err := strconv.Atoi(string(m[2])); err != nil || names[string(m[1])] != Op(n) {
			t.Errorf("the package comment has %s as op %s, it is %d", m[1], m[2], names[string(m[1])])
		}
		delete(names, string(m[1]))
	}
	for name, op := range names {
		if op < FirstControl {
			t.Errorf("the package comment has no op %s", name)
		}
	}
	if got := Op(1000).String(); got != "op 1000" {
		t.Errorf("Op(1000) is %q", got)
	}
	b, err := json.Marshal(map[Op]int{OpRead: 1})
	if err != nil || string(b) != `{"read":1}` {
		t.Errorf("as a key: %s, %v", b, err)
	}
}

func TestJSON(t *testing.T) {
	type q struct{ A, B int }
	b := Append([]byte("x"), &JSON{V: q{1, 2}})
	var got q
	if err := Parse(b[1:], &JSON{V: &got}); err != nil || got != (q{1, 2}) {
		t.Errorf("Parse(Append) = %+v, %v", got, err)
	}
	if err := Parse([]byte("{"), &JSON{V: &got}); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("Parse of a cut message = %v, want EPROTO", err)
	}
	if _, err := Encode(nil, &JSON{V: func() {}}); err == nil {
		t.Error("a function is encoded")
	}
}
