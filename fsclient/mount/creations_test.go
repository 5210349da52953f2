package mount

import (
	"context"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
)

// TestCreationIsOpenedByAnother: the creator of a file sees what other processes wrote to it before the creating open
// returned.
func TestCreationIsOpenedByAnother(t *testing.T) {
	const maker, other = 4711, 4712
	by := func(pid uint32, ino uint64) fuse.InHeader {
		return fuse.InHeader{NodeId: ino, Caller: fuse.Caller{Pid: pid}}
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T, s, there *fsys, ino uint64)
		size   uint64
	}{
		"nobody": {func(*testing.T, *fsys, *fsys, uint64) {}, 0},
		"truncated here": {func(t *testing.T, s, _ *fsys, ino uint64) {
			var out fuse.AttrOut
			in := &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: by(other, ino), Valid: fuse.FATTR_SIZE, Size: 100}}
			if st := s.SetAttr(nil, in, &out); st != fuse.OK {
				t.Fatal(st)
			}
		}, 100},
		"opened here, written there": {func(t *testing.T, s, there *fsys, ino uint64) {
			writeFour(t, there.client, metadata.Ino(ino))
			var out fuse.OpenOut
			if st := s.Open(nil, &fuse.OpenIn{InHeader: by(other, ino), Flags: syscall.O_RDONLY}, &out); st != fuse.OK {
				t.Fatal(st)
			}
		}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, _ := lockNodes(t)
			s := nodes[0]
			var made fuse.CreateOut
			in := &fuse.CreateIn{InHeader: by(maker, uint64(metadata.RootIno)), Flags: syscall.O_RDWR | syscall.O_CREAT, Mode: syscall.S_IFREG | 0o644}
			if st := s.Create(nil, in, "f", &made); st != fuse.OK {
				t.Fatal(st)
			}
			tt.change(t, s, nodes[1], made.NodeId)
			var out fuse.AttrOut
			if st := s.GetAttr(nil, &fuse.GetAttrIn{InHeader: by(maker, made.NodeId)}, &out); st != fuse.OK || out.Size != tt.size {
				t.Errorf("the creator sees %d bytes, %v, want %d", out.Size, st, tt.size)
			}
		})
	}
}

func writeFour(t *testing.T, c *fsclient.Client, ino metadata.Ino) {
	t.Helper()
	f, err := c.Open(context.Background(), ino)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(context.Background(), []byte("four"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// openHome calls before once, ahead of the next open.
type openHome struct {
	*clienttest.Home
	before func()
}

func (h *openHome) Open(ctx context.Context, by metadata.Holder, ino metadata.Ino, o metadata.Opening) (metadata.Holding, error) {
	if before := h.before; before != nil {
		h.before = nil
		before()
	}
	return h.Home.Open(ctx, by, ino, o)
}

// TestCreateOfExisting: a create that finds a new file of another node returns the size at its open, not at its lookup.
func TestCreateOfExisting(t *testing.T) {
	var home *openHome
	nodes, _ := nodesOf(t, func(h *clienttest.Home) metadata.NodeStore {
		home = &openHome{Home: h}
		return home
	})
	there := nodes[1].client
	a, err := there.Create(context.Background(), metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	home.before = func() { writeFour(t, there, a.Ino) }
	var out fuse.CreateOut
	in := &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: uint64(metadata.RootIno)}, Flags: syscall.O_RDWR | syscall.O_CREAT, Mode: syscall.S_IFREG | 0o644}
	if st := nodes[0].Create(nil, in, "f", &out); st != fuse.OK || out.NodeId != uint64(a.Ino) || out.Size != 4 {
		t.Errorf("inode %d with %d bytes, %v, want %d with 4", out.NodeId, out.Size, st, a.Ino)
	}
}

// TestFallocateDropsSetIDs: a user's fallocate drops setuid and setgid bits that another node set after the file was
// opened here.
func TestFallocateDropsSetIDs(t *testing.T) {
	for what, mode := range map[string]uint32{"longer": 0, "as long": unix.FALLOC_FL_KEEP_SIZE} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			nodes, _ := lockNodes(t)
			var made fuse.CreateOut
			in := &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: uint64(metadata.RootIno)}, Flags: syscall.O_RDWR | syscall.O_CREAT, Mode: syscall.S_IFREG | 0o755}
			if st := nodes[0].Create(nil, in, "f", &made); st != fuse.OK {
				t.Fatal(st)
			}
			there, ino := nodes[1].client, metadata.Ino(made.NodeId)
			if _, err := there.Setattr(context.Background(), ino, metadata.Change{Set: metadata.SetMode, Mode: 0o6755}); err != nil {
				t.Fatal(err)
			}
			by := fuse.InHeader{NodeId: made.NodeId, Caller: fuse.Caller{Owner: fuse.Owner{Uid: 4242}}}
			if st := nodes[0].Fallocate(nil, &fuse.FallocateIn{InHeader: by, Fh: made.Fh, Mode: mode, Length: 100}); st != fuse.OK {
				t.Fatal(st)
			}
			a, err := there.Getattr(context.Background(), ino)
			if err != nil || metadata.SetIDs(a.Mode) != 0 {
				t.Errorf("mode %o, %v, want no setuid and setgid", a.Mode, err)
			}
		})
	}
}
