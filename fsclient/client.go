package fsclient

import (
	"cmp"
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
	"github.com/bivouacfs/bivouac/fsclient/cache"
	"github.com/bivouacfs/bivouac/fsclient/locks"
	"github.com/bivouacfs/bivouac/fsclient/route"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/fsclient/writeback"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// Sealed serves the sealed realm on this node, without the network.
type Sealed interface {
	// Datasets returns the visible datasets.
	Datasets() []cluster.Dataset
	// Table returns the namespace of a dataset.
	Table(ds metadata.DatasetID) (metadata.Store, bool)
}

// Config says what a Client routes between. View, Meta and Data are required.
type Config struct {
	// Self is this node; rpc.NoNode if it has no share. Local and LocalData are its share, nil without one.
	Self      metadata.NodeID
	Local     metadata.NodeStore
	LocalData datapath.Store

	// Run identifies this run of the client to the homes of its open files; later runs of the same node have greater
	// numbers. If it is 0, it is derived from Now.
	Run metadata.Run

	// Meta and Data make the stubs of the other nodes, once for each node.
	Meta func(metadata.NodeID) metadata.NodeStore
	Data func(metadata.NodeID) datapath.Store

	View   func() cluster.View
	Sealed Sealed // nil: no datasets
	// Replicas appends the nodes that have a replica of owner's chunk of the file ino. If it is nil, there are no
	// replicas.
	Replicas func(buf []metadata.NodeID, ino metadata.Ino, chunk uint32, owner metadata.NodeID) []metadata.NodeID

	// UID and GID own all files of datasets, whatever the source recorded, as if the job's user had unpacked them.
	UID, GID uint32

	// VerifyReads compares dataset bytes from other nodes with the staged content.
	VerifyReads bool

	Log *logrus.Entry
	Now func() time.Time
}

func (c *Config) validate() error {
	var errs []error
	if c.Meta == nil || c.Data == nil {
		errs = append(errs, errors.New("no stubs of other nodes"))
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
	c.Run = cmp.Or(c.Run, metadata.Run(metadata.TimeOf(c.Now())))
	c.Log = cmp.Or(c.Log, logrus.NewEntry(&logrus.Logger{Out: io.Discard}))
	return nil
}

// Client is the whole filesystem as one node sees it.
type Client struct {
	cfg    Config
	nodes  *route.Router
	data   *stripe.Data
	places *sources.Table
	sealed sealedRealm
	space  *cache.Space
	pool   *writeback.Pool
	locks  *locks.Locker

	files    fileTable
	leases   *leases.Cache
	ahead    ahead
	onRevoke atomic.Pointer[forgetting]

	published atomic.Int64

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup // the client's own goroutines
	closed   wait.Signal    // set when a home must be informed of closes
	appended wait.Signal    // set when a home must be informed of appends
}

var (
	_ metadata.Store = (*Client)(nil)
	_ metadata.Woken = (*Client)(nil)
)

// New makes a client. It connects to nothing.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, leases: leases.NewCache(cfg.Now), closed: wait.NewSignal(), appended: wait.NewSignal()}
	c.nodes = route.New(route.Config{
		Self: cfg.Self, Local: cfg.Local, LocalData: cfg.LocalData, Meta: cfg.Meta, Data: cfg.Data, View: cfg.View, Replicas: cfg.Replicas,
	})
	c.places = sources.New(cfg.Self, cfg.Now, nil)
	c.data = stripe.New(stripe.Config{
		Self: cfg.Self, Nodes: dataNodes{c.nodes}, VerifyReads: cfg.VerifyReads, Sources: c.places, Log: cfg.Log, Now: cfg.Now,
	})
	c.space = cache.NewSpace(dataNodes{c.nodes}, cfg.Now)
	c.pool = writeback.NewPool(bufferedClient{c}, cfg.Log, cfg.Now)
	c.locks = locks.New(locks.Config{Holder: c.holder(), Files: lockedFiles{c}, Log: cfg.Log})
	c.sealed = sealedRealm{datasetTables: cfg.Sealed, uid: cfg.UID, gid: cfg.GID}
	c.files.init()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wg.Go(closeReporter{c}.run)
	c.wg.Go(settler{c}.run)
	c.wg.Go(c.renewLeases)
	return c, nil
}

// Self returns the node of this client.
func (c *Client) Self() metadata.NodeID { return c.cfg.Self }

// Close sends the buffered bytes as far as the nodes answer, and stops the client's goroutines. For their homes, open
// files stay open until the homes learn of a later run of this node's client.
func (c *Client) Close() {
	c.pool.Close()
	c.locks.Close()
	c.cancel()
	c.wg.Wait()
}

// holder identifies this client to the homes of its open files.
func (c *Client) holder() metadata.Holder { return metadata.Holder{Node: c.cfg.Self, Run: c.cfg.Run} }

// Epoch returns the epoch of this node's map.
func (c *Client) Epoch() metadata.Epoch { return c.nodes.Map().Epoch }

// Datasets returns the visible datasets.
func (c *Client) Datasets() []cluster.Dataset { return c.sealed.datasets() }

func readOnly(ino metadata.Ino) error {
	return fmt.Errorf("inode %v: %w", ino, syscall.EROFS)
}

// Statfs returns the space of the whole job: the sum over the nodes that are up. A node that does not answer in time
// counts with its last answer, as full.
func (c *Client) Statfs(ctx context.Context) (datapath.Space, error) { return c.space.Total(ctx) }

// StatDataset returns the size of the dataset that contains ino, as a full filesystem; its Objects are its files and
// directories.
func (c *Client) StatDataset(ino metadata.Ino) (datapath.Space, error) { return c.sealed.space(ino) }
