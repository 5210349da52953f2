package fsclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// Sealed answers for the sealed realm on this node, without the network.
type Sealed interface {
	// Datasets is the datasets that can be seen.
	Datasets() []cluster.Dataset
	// Table is the namespace of one of them.
	Table(ds metadata.DatasetID) (metadata.Store, bool)
}

// Config says what a Client routes between. View, Meta and Data are required.
type Config struct {
	// Self is this node; rpc.NoNode if it has no share. Local and LocalData
	// are its share, nil without one.
	Self      metadata.NodeID
	Local     metadata.NodeStore
	LocalData datapath.Store

	// Run is this life of the client, as the homes of what it has open know
	// it; later ones of the same node have greater numbers. 0 is made of Now.
	Run metadata.Run

	// Meta and Data are the stubs of the other nodes. They are asked for
	// once for each node.
	Meta func(metadata.NodeID) metadata.NodeStore
	Data func(metadata.NodeID) datapath.Store

	View   func() cluster.View
	Sealed Sealed // nil is no datasets

	// UID and GID own everything in the sealed realm, whatever the source
	// said, as if the job's user had unpacked it.
	UID, GID uint32

	// VerifyReads is that what other nodes send of datasets is compared with what
	// was staged, by them and by this one.
	VerifyReads bool

	Log *logrus.Entry
	Now func() time.Time
}

func (c *Config) validate() error {
	var errs []error
	if c.Meta == nil || c.Data == nil {
		errs = append(errs, errors.New("no way to the other nodes"))
	}
	if c.View == nil {
		errs = append(errs, errors.New("no cluster view"))
	}
	if (c.Local == nil) != (c.LocalData == nil) {
		errs = append(errs, errors.New("a share needs both metadata and data"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("fsclient: %w: %w", errors.Join(errs...), syscall.EINVAL)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Run == 0 {
		c.Run = metadata.Run(metadata.TimeOf(c.Now()))
	}
	if c.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(l)
	}
	return nil
}

// Client is the whole filesystem as one node sees it.
type Client struct {
	cfg    Config
	stats  counters
	space  spaceCache
	rooms  rooms
	files  fileTable
	tails  tails
	locks  lockTable
	wide   cluster.ShardTable
	leases *leases.Cache
	recent recentAttrs
	forget atomic.Pointer[func([]metadata.Ino)]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	kick   chan struct{}  // something was closed; one is enough
	wg     sync.WaitGroup // of what the client does by itself
	// appended gets a value when a home should hear of an append; one is enough.
	appended chan struct{}

	stubMu sync.RWMutex
	meta   map[metadata.NodeID]metadata.NodeStore // under stubMu
	data   map[metadata.NodeID]datapath.Store     // under stubMu
}

var _ metadata.Store = (*Client)(nil)

// New makes a client. It opens nothing.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{
		cfg:  cfg,
		meta: make(map[metadata.NodeID]metadata.NodeStore),
		data: make(map[metadata.NodeID]datapath.Store),
	}
	if cfg.Local != nil {
		c.meta[cfg.Self] = cfg.Local
		c.data[cfg.Self] = cfg.LocalData
	}
	c.leases = leases.NewCache(cfg.Now)
	c.files.init()
	c.locks.init(uint64(cfg.Run)) // so that those of an earlier life are other ones
	c.space.init()
	c.rooms.init()
	c.tails.init()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.kick, c.appended = make(chan struct{}, 1), make(chan struct{}, 1)
	c.wg.Go(c.closing)
	c.wg.Go(c.settling)
	c.wg.Go(c.ageing)
	c.wg.Go(func() { c.locks.sealed.Serve(c.ctx) })
	return c, nil
}

// Self is the node whose client it is.
func (c *Client) Self() metadata.NodeID { return c.cfg.Self }

// Close sends what was gathered of files that are open, as far as their nodes
// answer, and ends what the client does by itself. What is open stays open for the
// homes until they hear of another life of this node's client.
func (c *Client) Close() {
	c.settleLast()
	c.locks.stop()
	c.cancel()
	c.wg.Wait()
	c.tails.wg.Wait()
}

// Datasets is the datasets that can be seen.
func (c *Client) Datasets() []cluster.Dataset {
	if c.cfg.Sealed == nil {
		return nil
	}
	return c.cfg.Sealed.Datasets()
}

// homeOf is the store that keeps the live inode ino.
func (c *Client) homeOf(ino metadata.Ino) (metadata.NodeStore, error) {
	s, err := c.metaOf(ino.Home())
	if err != nil {
		return nil, fmt.Errorf("inode %v: %w", ino, err)
	}
	return s, nil
}

func (c *Client) metaOf(id metadata.NodeID) (metadata.NodeStore, error) {
	if err := c.alive(id); err != nil {
		return nil, err
	}
	c.countMeta(id)
	return stub(&c.stubMu, c.meta, id, c.cfg.Meta), nil
}

func (c *Client) dataOf(id metadata.NodeID) (datapath.Store, error) {
	if err := c.alive(id); err != nil {
		return nil, err
	}
	return stub(&c.stubMu, c.data, id, c.cfg.Data), nil
}

// alive is EHOSTDOWN for a node that the map has given up, so that nobody
// waits for it.
func (c *Client) alive(id metadata.NodeID) error {
	if id == c.cfg.Self {
		return nil
	}
	n, ok := c.cfg.View().Map.Node(id)
	if !ok {
		return fmt.Errorf("node %d is not in the map: %w", id, syscall.ESTALE)
	}
	if n.State == cluster.Down {
		return fmt.Errorf("node %s is down: %w", n.Host, syscall.EHOSTDOWN)
	}
	return nil
}

// stub is the one stub of the node id, made at its first use.
func stub[S any](mu *sync.RWMutex, have map[metadata.NodeID]S, id metadata.NodeID, make func(metadata.NodeID) S) S {
	mu.RLock()
	s, ok := have[id]
	mu.RUnlock()
	if ok {
		return s
	}
	mu.Lock()
	defer mu.Unlock()
	if s, ok = have[id]; !ok {
		s = make(id)
		have[id] = s
	}
	return s
}

// sealed is the table of the dataset that ino belongs to.
func (c *Client) sealed(ino metadata.Ino) (metadata.Store, error) {
	if c.cfg.Sealed != nil {
		if t, ok := c.cfg.Sealed.Table(ino.Dataset()); ok {
			return t, nil
		}
	}
	return nil, fmt.Errorf("dataset %d: %w", ino.Dataset(), syscall.ESTALE)
}

// own gives a sealed inode to the job's user.
func (c *Client) own(a metadata.Attr) metadata.Attr {
	a.UID, a.GID = c.cfg.UID, c.cfg.GID
	return a
}

func readOnly(ino metadata.Ino) error {
	return fmt.Errorf("inode %v: %w", ino, syscall.EROFS)
}

// epochWait is how long a client waits for a map that somebody else has.
const (
	epochWait = 5 * time.Second
	epochPoll = 5 * time.Millisecond
)

// order is the nodes of a file's stripe. A file that was made under a newer
// map than this node has waits for that map: the order is made of it.
func (c *Client) order(ctx context.Context, ino metadata.Ino, l metadata.Layout) ([]metadata.NodeID, error) {
	if l.Kind == metadata.Spilled {
		return []metadata.NodeID{c.cfg.Self}, nil // who reads fetches it
	}
	m := c.cfg.View().Map
	if l.Epoch > m.Epoch && l.Kind != metadata.Local {
		var err error
		if m, err = c.awaitEpoch(ctx, l.Epoch); err != nil {
			return nil, fmt.Errorf("inode %v: %w", ino, err)
		}
	}
	order := m.Order(ino, l)
	if len(order) == 0 {
		return nil, fmt.Errorf("inode %v: no node was up in epoch %d: %w", ino, l.Epoch, syscall.EIO)
	}
	return order, nil
}

func (c *Client) awaitEpoch(ctx context.Context, e metadata.Epoch) (cluster.Map, error) {
	ctx, cancel := context.WithTimeout(ctx, epochWait)
	defer cancel()
	t := time.NewTicker(epochPoll)
	defer t.Stop()
	for {
		if m := c.cfg.View().Map; m.Epoch >= e {
			return m, nil
		}
		select {
		case <-ctx.Done():
			return cluster.Map{}, fmt.Errorf("map of epoch %d: %w", e, ctxErrno(ctx))
		case <-t.C:
		}
	}
}

// ctxErrno is the errno of a context that ended.
func ctxErrno(ctx context.Context) syscall.Errno {
	if errors.Is(ctx.Err(), context.Canceled) {
		return syscall.EINTR
	}
	return syscall.ETIMEDOUT
}
