package partner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/copies"
	"github.com/bivouacfs/bivouac/metadata/mirror"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

// Receiver holds the copies of other homes.
type Receiver struct {
	node  node.Node
	lease *copies.Lease
	dir   string
	room  func() bool
	log   *logrus.Entry
	over  atomic.Bool // the copies are closed, or about to be

	mu    sync.Mutex
	homes map[metadata.NodeID]*received // under mu
}

// received holds the copies of one home.
type received struct {
	mu            sync.Mutex
	state         mirror.Copies     // under mu
	whole, coming *pebblestore.Copy // under mu; nil if there is none; whole is also nil while it is open as a home
}

// openReceiver opens the copies that an earlier daemon has left, and removes incomplete ones.
func openReceiver(cfg *Config) (*Receiver, error) {
	r := &Receiver{node: cfg.Node, lease: cfg.Lease, dir: cfg.Dir, room: cfg.Room, log: cfg.Node.Log().WithField("part", "partner"), homes: make(map[metadata.NodeID]*received)}
	found, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range found {
		dir := filepath.Join(r.dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), removing):
			err = os.RemoveAll(dir)
		case strings.Contains(e.Name(), "-"):
			err = r.loadOrMove(dir)
		}
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	return r, nil
}

// loadOrMove loads the copy in dir. It moves a damaged copy aside, for diagnosis, as it may be the only one. A copy
// that may be readable later stays in place.
func (r *Receiver) loadOrMove(dir string) error {
	err := r.load(dir)
	if err == nil {
		return nil
	}
	for _, e := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EACCES} {
		if errors.Is(err, e) && !pebblestore.Damaged(err) {
			return fmt.Errorf("copy of another node's names in %s: %w", dir, err)
		}
	}
	r.log.WithError(err).WithField("dir", dir).Error("a copy of another node's names cannot be read: it is moved aside, and made again if that node is up")
	return os.Rename(dir, filepath.Join(r.dir, "damaged_"+strings.ReplaceAll(filepath.Base(dir), "-", "_")))
}

// removing is the prefix of the name of a copy that is being removed.
const removing = "removing_"

func (r *Receiver) load(dir string) error {
	var id metadata.NodeID
	var name mirror.Copy
	if _, err := fmt.Sscanf(filepath.Base(dir), "%d-%x-%x", &id, &name.Seat, &name.Gen); err != nil {
		return fmt.Errorf("copy %s: %v: %w", dir, err, syscall.EINVAL)
	}
	c, err := pebblestore.OpenCopy(pebblestore.Config{Dir: dir, Log: r.log})
	if err != nil {
		return err
	}
	var at mirror.Copy
	b, err := c.State()
	if err == nil && b != nil {
		err = json.Unmarshal(b, &at)
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	h := r.of(id)
	if at.Complete && r.path(id, at) == r.path(id, name) && at.Newer(h.state.Whole) {
		err = h.drop(r.path(id, h.state.Whole), h.whole)
		h.state.Whole, h.whole = at, c
		return err
	}
	return h.drop(dir, c)
}

// drop closes and removes a copy, if there is one.
func (*received) drop(dir string, c *pebblestore.Copy) error {
	if c == nil {
		return nil
	}
	return errors.Join(c.Close(), remove(dir))
}

// remove removes the directory of a closed copy. It may be repeated after an error, and after the removal.
func remove(dir string) error {
	away := filepath.Join(filepath.Dir(dir), removing+strings.ReplaceAll(filepath.Base(dir), "-", "_"))
	if err := os.Rename(dir, away); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(away)
}

func (r *Receiver) path(id metadata.NodeID, c mirror.Copy) string {
	return filepath.Join(r.dir, fmt.Sprintf("%d-%x-%x", id, uint64(c.Seat), c.Gen))
}

// of returns the copies of a home.
func (r *Receiver) of(id metadata.NodeID) *received {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.homes[id]
	if h == nil {
		h = &received{}
		r.homes[id] = h
	}
	return h
}

// onMirror handles a message of a home, or of the node that stands in for it.
func (r *Receiver) onMirror(_ context.Context, req *rpc.Request, q *wire.MirrorReq) (node.Appender, error) {
	h := r.of(q.Home)
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.over.Load() {
		return nil, fmt.Errorf("the daemon ends: %w", syscall.ESHUTDOWN)
	}
	n, _ := r.node.View().Map.Node(q.Home)
	seat := n.Seat()
	if q.Seat == 0 && q.Home != req.Peer || q.Seat > 0 && q.Seat == seat.Since && seat.Node != req.Peer {
		return nil, fmt.Errorf("records of node %d from node %d: %w", q.Home, req.Peer, syscall.EPERM)
	}
	if q.Gen == 0 || q.Seq == 0 {
		return nil, fmt.Errorf("message %d of stream %d: %w", q.Seq, q.Gen, syscall.EPROTO)
	}
	m := mirror.Message{Seat: q.Seat, Gen: q.Gen, Seq: q.Seq, Complete: q.Complete}
	next, apply, v := h.state.Accept(m, seat.Since)
	if v == mirror.Later || !r.lease.Begun() { // a wiped node with an old map would accept old records for its seat
		r.node.Nudge()
		return nil, fmt.Errorf("this node has not yet seen that node %d stands in for node %d, or has older records of it: %w", req.Peer, q.Home, syscall.EAGAIN)
	}
	if apply {
		if err := r.apply(h, m, q, next); err != nil {
			return nil, err
		}
	}
	return &wire.MirrorResp{Verdict: uint8(v), Last: h.state.Last(), Full: !r.room()}, nil
}

// apply applies the changes of a message, after which the state is next. The caller holds h.mu.
func (r *Receiver) apply(h *received, m mirror.Message, q *wire.MirrorReq, next mirror.Copies) error {
	at, to := next.Coming, &h.coming
	switch {
	case h.state.Whole.Of(m):
		at, to = next.Whole, &h.whole
	case next.Whole.Of(m):
		at = next.Whole
	}
	if !h.state.Whole.Of(m) && !h.state.Coming.Of(m) { // the first message
		if err := h.drop(r.path(q.Home, h.state.Coming), h.coming); err != nil {
			return err
		}
		h.state.Coming, h.coming = mirror.Copy{}, nil
		c, err := pebblestore.OpenCopy(pebblestore.Config{Dir: r.path(q.Home, at), Log: r.log})
		if err != nil {
			return err
		}
		h.coming = c
	}
	state, err := json.Marshal(at)
	if err != nil {
		return err
	}
	if err := (*to).Apply(q.Batches, state); err != nil {
		return err
	}
	was := h.state
	h.state = next
	if !next.Whole.Newer(was.Whole) {
		return nil
	}
	old := h.whole
	h.whole, h.coming = h.coming, nil
	err = h.whole.Sync()
	if err == nil { // on an error, a later start finds the old copy, too
		err = h.drop(r.path(q.Home, was.Whole), old)
	}
	if err != nil {
		r.log.WithError(err).WithField("home", q.Home).Warn("old copy of a home's names not removed: it takes space until the job ends")
	}
	return nil
}

// seal ends the copying of a home whose seat this node has, and returns the directory of the complete copy, to be
// opened as a home.
func (r *Receiver) seal(id metadata.NodeID, seat metadata.Epoch) (dir string, err error) {
	h := r.of(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	next, ok := h.state.Seal(seat)
	if !ok {
		return "", fmt.Errorf("there is no complete copy of the names of node %d: %w", id, syscall.ENODATA)
	}
	if h.whole != nil {
		state, err := json.Marshal(next.Whole)
		if err != nil {
			return "", err
		}
		if err := errors.Join(h.whole.Apply(nil, state), h.whole.Sync(), h.whole.Close()); err != nil {
			return "", err
		}
		h.state, h.whole = next, nil
	}
	if err := h.drop(r.path(id, h.state.Coming), h.coming); err != nil {
		return "", err
	}
	h.state.Coming, h.coming = mirror.Copy{}, nil
	return r.path(id, h.state.Whole), nil
}

// giveUp removes the copy with which this node stood in for a home whose seat has moved. No server has it open.
func (r *Receiver) giveUp(id metadata.NodeID, seat metadata.Epoch) error {
	h := r.of(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.state.Outdated(seat) {
		return nil
	}
	if h.whole != nil { // left by an earlier daemon that stood in
		if err := h.whole.Close(); err != nil {
			return err
		}
		h.whole = nil
	}
	if err := remove(r.path(id, h.state.Whole)); err != nil {
		return err
	}
	h.state = mirror.Copies{}
	return nil
}

func (r *Receiver) close() error {
	r.over.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, h := range r.homes {
		h.mu.Lock()
		for _, c := range []*pebblestore.Copy{h.whole, h.coming} {
			if c != nil {
				errs = append(errs, c.Close())
			}
		}
		h.whole, h.coming = nil, nil
		h.mu.Unlock()
	}
	return errors.Join(errs...)
}
