package remote_test

import (
	"bytes"
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

// piecePeer stores pieces. It reports the pieces in spoiled as corrupt, a given number of times.
type piecePeer struct {
	t       *testing.T
	spoiled map[metadata.Ino]int
	calls   int
	got     map[metadata.Ino][]byte
	short   bool // it answers for fewer pieces than were sent
}

func (p *piecePeer) Do(_ context.Context, c *rpc.Call) error {
	var q wire.PutPiecesReq
	if err := wire.Parse(wire.Append(nil, c.Body), &q); err != nil || c.Op != wire.OpPutPieces {
		p.t.Fatalf("%v: %v", c.Op, err)
	}
	p.calls++
	status := make([]syscall.Errno, len(q.Heads))
	err := q.Split(bytes.Join(c.Data, nil), func(i int, h *wire.PieceHeader, b []byte) {
		if p.spoiled[h.Ino] > 0 {
			p.spoiled[h.Ino]--
			b = append(bytes.Clone(b), 'x')
		}
		if err := h.Check(b); err != nil {
			status[i] = syscall.EBADMSG
			return
		}
		p.got[h.Ino] = bytes.Clone(b)
	})
	if p.short {
		status = status[1:]
	}
	return errors.Join(err, answer(c, &wire.PutPiecesResp{Status: status}))
}

// TestPutPieces: only corrupt pieces are sent again; one that stays corrupt fails alone.
func TestPutPieces(t *testing.T) {
	var ps []datapath.PiecePut
	for i, text := range []string{"one", "two", "three", "four"} {
		ino := metadata.SealedIno(3, 0, uint32(i+1))
		h := [][]byte{[]byte(text[:1]), []byte(text[1:])}
		ps = append(ps, datapath.PiecePut{Ino: ino, Off: int64(i), Data: h, Sum: wire.PieceSum([]byte(text))})
	}
	p := &piecePeer{t: t, got: map[metadata.Ino][]byte{}, spoiled: map[metadata.Ino]int{ps[1].Ino: 2, ps[3].Ino: 99}}
	errs, err := remote.NewData(p).PutPieces(context.Background(), ps)
	if err != nil || len(errs) != len(ps) || p.calls != 3 {
		t.Fatalf("%v, %v after %d calls, want 3", errs, err, p.calls)
	}
	for i := range ps {
		if bad := i == 3; bad != errors.Is(errs[i], syscall.EBADMSG) || bad != (p.got[ps[i].Ino] == nil) {
			t.Errorf("piece %d: %v, stored %q", i, errs[i], p.got[ps[i].Ino])
		}
	}
	if b := p.got[ps[1].Ino]; string(b) != "two" {
		t.Errorf("%q came, want two", b)
	}
	p.short = true
	if _, err := remote.NewData(p).PutPieces(context.Background(), ps[:2]); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("an answer for one of two: %v, want EPROTO", err)
	}
}
