package remote_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
)

// manyPeer answers every read of many files with a fixed reply.
type manyPeer struct {
	reply wire.ReadManyResp
	data  string
	err   error
}

func (p *manyPeer) Do(_ context.Context, c *rpc.Call) error {
	if p.err != nil {
		return p.err
	}
	c.N = copy(c.Into, p.data)
	return wire.Parse(wire.Append(nil, &p.reply), c.Reply)
}

// TestReadMany: each file has its own bytes or its own error; a reply with wrong lengths is rejected as a whole.
func TestReadMany(t *testing.T) {
	read := func(p *manyPeer, verified bool) ([]datapath.RangeRead, error) {
		rs := []datapath.RangeRead{{Len: 3}, {Len: 4}, {Len: 2}}
		for i := range rs {
			rs[i].Ino = metadata.SealedIno(1, 0, uint32(i+1))
		}
		return rs, remote.NewData(p).ReadMany(context.Background(), rs, make([]byte, 9), verified)
	}
	sum := func(s string) uint32 { return wire.Sum([]byte(s)) }
	rs, err := read(&manyPeer{data: "abcd", reply: wire.ReadManyResp{Files: []wire.ManyFile{
		{Len: 3, Sum: sum("abc")}, {Status: syscall.EAGAIN}, {Len: 1, Sum: sum("d")},
	}}}, true)
	if err != nil || string(rs[0].Data) != "abc" || rs[0].Err != nil || !errors.Is(rs[1].Err, syscall.EAGAIN) || !errors.Is(rs[2].Err, syscall.EIO) {
		t.Errorf("ReadMany = %v, %+v", err, rs)
	}
	rs, err = read(&manyPeer{data: "abcdefghi", reply: wire.ReadManyResp{Files: []wire.ManyFile{
		{Len: 3, Sum: sum("abc")}, {Len: 4, Sum: sum("wrong")}, {Len: 2, Sum: sum("hi")},
	}}}, true)
	if err != nil || rs[0].Err != nil || !errors.Is(rs[1].Err, syscall.EBADMSG) || rs[2].Err != nil {
		t.Errorf("with a wrong sum: ReadMany = %v, %+v", err, rs)
	}
	for name, files := range map[string][]wire.ManyFile{
		"long":  {{Len: 4}, {Len: 4}, {Len: 1}},
		"short": {{Len: 3}, {Len: 4}, {}},
		"few":   {{Len: 3}, {Len: 4}},
	} {
		if _, err = read(&manyPeer{data: "abcdefghi", reply: wire.ReadManyResp{Files: files}}, false); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: ReadMany = %v, want EPROTO", name, err)
		}
	}
	if _, err = read(&manyPeer{err: syscall.ECONNRESET}, false); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("cut: ReadMany = %v", err)
	}
	if err := remote.NewData(nil).ReadMany(context.Background(), []datapath.RangeRead{{Ino: metadata.SealedIno(1, 0, 1), Len: 10}}, nil, false); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("without room: ReadMany = %v, want EINVAL", err)
	}
}
