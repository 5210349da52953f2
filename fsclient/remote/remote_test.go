package remote_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/datapathtest"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
)

// loop is a Caller that answers in this process, through the wire encodings.
type loop struct {
	meta metadata.NodeStore
	tx   metadata.TxPeer
	data datapath.Store
}

// answer answers c with m, through the wire encodings.
func answer(c *rpc.Call, m wire.Message) error { return wire.Parse(wire.Append(nil, m), c.Reply) }

func (l *loop) Do(ctx context.Context, c *rpc.Call) error {
	m, d := l.meta, l.data
	var err error
	parse := func(q wire.Message) {
		if perr := wire.Parse(wire.Append(nil, c.Body), q); perr != nil {
			panic(perr) // the stub has encoded it
		}
	}
	attr := func(a metadata.Attr, aerr error) {
		if err = aerr; err == nil {
			err = answer(c, &wire.AttrResp{Attr: a})
		} else if a.Ino != 0 {
			c.ErrBody = wire.Append(nil, &wire.AttrResp{Attr: a})
		}
	}
	reply := func(r wire.Message, rerr error) {
		if err = rerr; err == nil {
			err = answer(c, r)
		}
	}
	var name wire.DirName
	var ino wire.InoReq
	var create wire.CreateReq
	var tx wire.TxReq
	switch c.Op {
	case wire.OpLookup:
		parse(&name)
		e, lerr := m.Lookup(ctx, name.Dir, name.Name)
		reply(&wire.EntryResp{Entry: &e}, lerr)
	case wire.OpCreate:
		parse(&create)
		attr(m.Create(ctx, create.Dir, create.Name, create.New))
	case wire.OpUnlink:
		parse(&name)
		e, uerr := m.Unlink(ctx, name.Dir, name.Name)
		reply(&wire.EntryResp{Entry: &e}, uerr)
	case wire.OpRename:
		var q wire.RenameReq
		parse(&q)
		e, rerr := m.Rename(ctx, q.Rename)
		reply(&wire.EntryResp{Entry: e}, rerr)
	case wire.OpReadDir:
		var q wire.ReadDirReq
		parse(&q)
		es, rerr := m.ReadDir(ctx, q.Dir, q.After, int(min(q.Limit, wire.MaxEntries)))
		reply(&wire.EntriesResp{Entries: es}, rerr)
	case wire.OpGetattr:
		parse(&ino)
		attr(m.Getattr(ctx, ino.Ino))
	case wire.OpSetattr:
		var q wire.SetattrReq
		parse(&q)
		attr(m.Setattr(ctx, q.Ino, q.Change))
	case wire.OpReadlink:
		parse(&ino)
		s, rerr := m.Readlink(ctx, ino.Ino)
		reply(&wire.StringResp{S: s}, rerr)
	case wire.OpMkdir:
		parse(&create)
		attr(m.Mkdir(ctx, create.Dir, create.Name, create.New))
	case wire.OpRmdir:
		parse(&name)
		err = m.Rmdir(ctx, name.Dir, name.Name)
	case wire.OpLink:
		var q wire.LinkReq
		parse(&q)
		attr(m.Link(ctx, q.Ino, q.Dir, q.Name))
	case wire.OpPrepare:
		var q wire.PrepareReq
		parse(&q)
		v, perr := l.tx.Prepare(ctx, q.Tx, q.Edits)
		reply(&wire.VoteResp{Vote: v}, perr)
	case wire.OpCommit:
		parse(&tx)
		err = l.tx.Commit(ctx, tx.Tx)
	case wire.OpAbort:
		parse(&tx)
		err = l.tx.Abort(ctx, tx.Tx)
	case wire.OpOutcome:
		parse(&tx)
		o, oerr := l.tx.Outcome(ctx, tx.Tx)
		reply(&wire.OutcomeResp{Outcome: o}, oerr)
	case wire.OpRenameLock:
		var q wire.RenameLockReq
		parse(&q)
		if err = l.tx.LockRename(ctx, q.Tx); q.Unlock {
			err = l.tx.UnlockRename(ctx, q.Tx)
		}
	case wire.OpAncestor:
		var q wire.AncestorReq
		parse(&q)
		parse(&q)
		up, cerr := l.tx.Ancestor(ctx, q.From, q.Stop)
		reply(&wire.InoReq{Ino: up}, cerr)
	case wire.OpGetxattr:
		var q wire.XattrReq
		parse(&q)
		v, xerr := m.Getxattr(ctx, q.Ino, q.Name)
		reply(&wire.BytesResp{B: v}, xerr)
	case wire.OpSetxattr:
		var q wire.SetxattrReq
		parse(&q)
		err = m.Setxattr(ctx, q.Ino, q.Xattr)
	case wire.OpListxattr:
		parse(&ino)
		names, xerr := m.Listxattr(ctx, ino.Ino)
		reply(&wire.NamesResp{Names: names}, xerr)
	case wire.OpRemovexattr:
		var q wire.XattrReq
		parse(&q)
		err = m.Removexattr(ctx, q.Ino, q.Name)
	case wire.OpRead:
		var q wire.ReadReq
		parse(&q)
		if int(q.Len) != len(c.Into) || q.Len > wire.MaxData {
			return syscall.EINVAL
		}
		c.N, err = d.ReadAt(ctx, q.Ino, c.Into, q.Off)
	case wire.OpWrite:
		var q wire.WriteReq
		parse(&q)
		if len(c.Data) != 1 || len(c.Data[0]) > wire.MaxData {
			return syscall.EINVAL
		}
		err = d.WriteAt(ctx, q.Ino, c.Data[0], q.Off)
	case wire.OpWriteSummed:
		var q wire.SummedWriteReq
		parse(&q)
		if len(c.Data) != 1 || len(c.Data[0]) > wire.MaxData {
			return syscall.EINVAL
		}
		if err = wire.CheckSum(c.Data[0], q.Sum); err == nil {
			err = d.WriteAt(ctx, q.Ino, c.Data[0], q.Off)
		}
	case wire.OpSync:
		parse(&ino)
		err = d.Sync(ctx, ino.Ino)
	case wire.OpTruncate:
		var q wire.TruncateReq
		parse(&q)
		err = d.Truncate(ctx, q.Ino, q.Size)
	case wire.OpRemoveObject:
		parse(&ino)
		err = d.Remove(ctx, ino.Ino)
	case wire.OpAllocate, wire.OpPunch:
		var q wire.RangeReq
		parse(&q)
		shape := d.Allocate
		if c.Op == wire.OpPunch {
			shape = d.Punch
		}
		err = shape(ctx, q.Ino, q.Off, q.Len)
	case wire.OpData:
		var q wire.DataReq
		parse(&q)
		e, derr := d.Data(ctx, q.Ino, q.Off)
		reply(&wire.ExtentResp{Extent: e}, derr)
	case wire.OpAllocated:
		parse(&ino)
		n, aerr := d.Allocated(ctx, ino.Ino)
		reply(&wire.SizeResp{Bytes: n}, aerr)
	case wire.OpSpace:
		sp, serr := d.Space(ctx)
		reply(&wire.SpaceResp{Space: sp}, serr)
	default:
		err = syscall.EBADRQC
	}
	return err
}

// client is the stub; it also removes orphans at the home.
type client struct {
	*remote.Store
	home *clienttest.Home
}

func (c client) Reap(ctx context.Context, ino metadata.Ino) error { return c.home.Reap(ctx, ino) }

func openMeta(t *testing.T, self metadata.NodeID) client {
	t.Helper()
	m := cluster.NewMap(7, []string{"n0"}).WithState(0, cluster.Up, "n0:1")
	h := clienttest.New(t, clienttest.Config{Self: self, Keep: true, View: func() cluster.View { return cluster.View{Map: m} }})
	return client{remote.NewStore(&loop{meta: h, tx: h}), h}
}

func TestStore(t *testing.T) {
	metadatatest.Run(t, func(t *testing.T) metadatatest.Store { return openMeta(t, 0) })
}

func TestParticipant(t *testing.T) {
	metadatatest.RunParticipant(t, func(t *testing.T) metadatatest.Participant { return openMeta(t, 0) })
}

// TestPeer: calls between homes are answered.
func TestPeer(t *testing.T) {
	s := openMeta(t, 0)
	ctx := context.Background()
	if o, err := s.Outcome(ctx, 5000); err != nil || o != metadata.Aborted {
		t.Errorf("Outcome of an unknown transaction = %v, %v, want aborted", o, err)
	}
	if _, err := s.Outcome(ctx, metadata.TxID(metadata.LiveIno(3, 5000))); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Outcome of another home's transaction = %v, want EINVAL", err)
	}
	if err := s.LockRename(ctx, 1); err != nil {
		t.Errorf("LockRename = %v", err)
	}
	if err := s.LockRename(ctx, 2); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("LockRename while another has it = %v, want EAGAIN", err)
	}
	if err := errors.Join(s.UnlockRename(ctx, 3), s.UnlockRename(ctx, 1), s.LockRename(ctx, 2)); err != nil {
		t.Errorf("LockRename after UnlockRename = %v", err)
	}
	a, err := s.Mkdir(ctx, metadata.RootIno, "a", metadata.New{Mode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Mkdir(ctx, a.Ino, "b", metadata.New{Mode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	for stop, want := range map[metadata.Ino]metadata.Ino{a.Ino: a.Ino, 99: metadata.RootIno} {
		if up, err := s.Ancestor(ctx, b.Ino, stop); err != nil || up != want {
			t.Errorf("Ancestor(%v, %v) = %v, %v, want %v", b.Ino, stop, up, err, want)
		}
	}
}

func TestXattrs(t *testing.T) {
	metadatatest.RunXattrs(t, func(t *testing.T) metadatatest.XattrStore { return openMeta(t, 0) })
}

func TestData(t *testing.T) {
	datapathtest.Run(t, func(t *testing.T) datapath.Store {
		s, err := chunkstore.Open(chunkstore.Config{Dirs: []string{t.TempDir()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return remote.NewData(&loop{data: s})
	})
}

// TestLongDirectory: a listing larger than a frame takes several calls.
func TestLongDirectory(t *testing.T) {
	s := openMeta(t, 0)
	ctx := context.Background()
	n := wire.MaxEntries + 10
	for i := range n {
		if _, err := s.Create(ctx, metadata.RootIno, fmt.Sprintf("%06d", i), metadata.New{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{n - 1, n, n + 1} {
		es, err := s.ReadDir(ctx, metadata.RootIno, "", limit)
		if err != nil || len(es) != min(limit, n) {
			t.Errorf("ReadDir by %d = %d entries, %v, want %d", limit, len(es), err, min(limit, n))
		}
	}
}

// badPeer answers without an error, but with an invalid body.
type badPeer struct{}

func (badPeer) Do(_ context.Context, c *rpc.Call) error {
	return wire.Parse([]byte{0}, c.Reply)
}

func TestBadPeer(t *testing.T) {
	s := remote.NewStore(badPeer{})
	if _, err := s.Getattr(context.Background(), 5000); !errors.Is(err, syscall.EBADMSG) {
		t.Errorf("Getattr = %v, want EBADMSG", err)
	}
	if _, err := s.Lookup(context.Background(), metadata.RootIno, "x"); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("Lookup without an entry = %v, want EPROTO", err)
	}
}
