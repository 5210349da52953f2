package mount

import (
	"context"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestNewbornOfAnother: who makes a file is told what others have made of it before
// his open has returned.
func TestNewbornOfAnother(t *testing.T) {
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
			f, err := there.client.Open(context.Background(), metadata.Ino(ino))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(context.Background(), []byte("four"), 0); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
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
				t.Errorf("who has made it sees %d bytes, %v, want %d", out.Size, st, tt.size)
			}
		})
	}
}
