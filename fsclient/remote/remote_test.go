package remote_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/datapathtest"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

// loop is a Caller that answers in this process, through the encodings.
type loop struct {
	meta metadata.NodeStore
	data datapath.Store
}

type message interface {
	Append([]byte) []byte
}

func (l *loop) Do(ctx context.Context, c *rpc.Call) error {
	m, d := l.meta, l.data
	var err error
	parse := func(p interface{ Parse([]byte) error }) {
		if perr := p.Parse(c.Body); perr != nil {
			panic(perr) // the stub has made it
		}
	}
	attr := func(a metadata.Attr, aerr error) {
		if err = aerr; err == nil || a.Ino != 0 {
			c.Reply = wire.AttrResp{Attr: a}.Append(nil)
		}
	}
	reply := func(r message, rerr error) {
		if err = rerr; err == nil {
			c.Reply = r.Append(nil)
		}
	}
	var name wire.DirName
	var ino wire.InoReq
	var create wire.CreateReq
	switch c.Op {
	case wire.OpLookup:
		parse(&name)
		e, lerr := m.Lookup(ctx, name.Dir, name.Name)
		reply(wire.EntryResp{Entry: &e}, lerr)
	case wire.OpCreate:
		parse(&create)
		attr(m.Create(ctx, create.Dir, create.Name, create.New))
	case wire.OpUnlink:
		parse(&name)
		e, uerr := m.Unlink(ctx, name.Dir, name.Name)
		reply(wire.EntryResp{Entry: &e}, uerr)
	case wire.OpRename:
		var q wire.RenameReq
		parse(&q)
		e, rerr := m.Rename(ctx, q.Rename)
		reply(wire.EntryResp{Entry: e}, rerr)
	case wire.OpReadDir:
		var q wire.ReadDirReq
		parse(&q)
		es, rerr := m.ReadDir(ctx, q.Dir, q.After, int(min(q.Limit, wire.MaxEntries)))
		reply(wire.EntriesResp{Entries: es}, rerr)
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
		reply(wire.StringResp{S: s}, rerr)
	case wire.OpReap:
		parse(&ino)
		err = m.Reap(ctx, ino.Ino)
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
	case wire.OpNewDir:
		var q wire.NewDirReq
		parse(&q)
		attr(m.NewDir(ctx, q.Parent, q.New))
	case wire.OpDropDir:
		parse(&ino)
		err = m.DropDir(ctx, ino.Ino)
	case wire.OpEnter:
		var q wire.EnterReq
		parse(&q)
		e, eerr := m.Enter(ctx, q.Dir, q.Entry, q.Replace)
		reply(wire.EntryResp{Entry: e}, eerr)
	case wire.OpRemove:
		var q wire.RemoveReq
		parse(&q)
		err = m.Remove(ctx, q.Dir, q.Name, q.Ino)
	case wire.OpRelink:
		var q wire.RelinkReq
		parse(&q)
		attr(m.Relink(ctx, q.Ino, int(q.Delta)))
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
	case wire.OpSpace:
		sp, serr := d.Space(ctx)
		reply(wire.SpaceResp{Space: sp}, serr)
	default:
		err = syscall.EBADRQC
	}
	return err
}

func openMeta(t *testing.T, self metadata.NodeID) *remote.Store {
	t.Helper()
	s, err := pebblestore.Open(pebblestore.Config{Dir: "meta", FS: vfs.NewMem(), Self: self, CacheSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return remote.NewStore(&loop{meta: s})
}

func TestStore(t *testing.T) {
	metadatatest.Run(t, func(t *testing.T) metadata.Store { return openMeta(t, 0) })
}

func TestHalves(t *testing.T) {
	metadatatest.RunHalves(t, func(t *testing.T) metadata.NodeStore { return openMeta(t, 0) })
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

// TestLongDirectory: a listing that is longer than a frame comes in pieces.
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

// badPeer answers without an error and with a body that is no message.
type badPeer struct{}

func (badPeer) Do(_ context.Context, c *rpc.Call) error {
	c.Reply = []byte{0}
	return nil
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
