package mount

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/pagecache"
	"github.com/bivouacfs/bivouac/metadata"
)

// fsys answers the requests of the kernel.
type fsys struct {
	fuse.RawFileSystem // other requests are ENOSYS

	cfg       Config
	client    *fsclient.Client
	log       *logrus.Entry
	born      metadata.Time // the times of virtual files
	handles   handles
	pipes     pipes
	reads     reads
	creations creations
	gate      gate
	cached    pagecache.Table
	stats     opCounters

	server      atomic.Pointer[fuse.Server] // set by Init
	pages       atomic.Pointer[pages]       // set by Init
	dropsDirect bool                        // set by Init: writes to files with FOPEN_DIRECT_IO drop cached pages
	backings    backings
	covers      covers
	takeover    takeover
	drops       atomic.Int64                  // counts the drops of pages
	trace       atomic.Pointer[func(Request)] // nil: no trace
	given       givenDirs
	warned      atomic.Int64 // when the last error was logged as a warning, Unix seconds
}

func newFS(cfg Config, now time.Time) *fsys {
	s := &fsys{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		cfg:           cfg,
		client:        cfg.Client,
		log:           cfg.Log,
		born:          metadata.TimeOf(now),
	}
	s.handles.init(1)
	s.gate.init(&cfg)
	s.takeover.init(s)
	s.reads.init()
	return s
}

// String returns the name of the file system.
func (s *fsys) String() string { return fsName }

// Init logs the features of the kernel.
func (s *fsys) Init(server *fuse.Server) {
	s.server.Store(server)
	s.pages.Store(&pages{s: s, server: server, direct: true}) // direct: as with passthrough
	s.client.OnRevoke(s.forget, func(inos []metadata.Ino) { s.forget(s.given.among(inos)) })
	k := server.KernelSettings()
	has := func(c uint64) bool { return k.Flags64()&c != 0 }
	s.dropsDirect = has(fuse.CAP_DIRECT_IO_ALLOW_MMAP) // the same kernels do
	s.log.WithFields(logrus.Fields{
		"protocol":        fmt.Sprintf("%d.%d", k.Major, k.Minor),
		"max_write":       maxWrite,
		"max_readahead":   k.MaxReadAhead,
		"readdirplus":     has(fuse.CAP_READDIRPLUS),
		"auto_inval_data": has(fuse.CAP_AUTO_INVAL_DATA),
		"parallel_dirops": has(fuse.CAP_PARALLEL_DIROPS),
		"noflush":         k.SupportsVersion(7, 35),
		"passthrough":     s.startPassthrough(server, has(fuse.CAP_PASSTHROUGH)),
	}).Info("mounted")
}

// call runs a request: it counts and times it, makes its context, and turns the error into a status.
func (s *fsys) call(o op, cancel <-chan struct{}, h *fuse.InHeader, fn func(ctx context.Context) error) fuse.Status {
	s.stats.calls[o].Add(1)
	start := time.Now()
	defer func() { s.stats.answered(o, metadata.Ino(h.NodeId), time.Since(start)) }()
	ctx := newRequest(cancel, h.Pid)
	ctx.waits = o == opSetlkw
	defer ctx.end()
	trace := s.trace.Load()
	ctx.traced = trace != nil
	var err error
	if h.Unique&resent != 0 {
		err = s.takeover.again(o, h)
	}
	if err == nil {
		err = fn(ctx)
	}
	if trace != nil {
		ctx.report(trace, o, h, start, err)
	}
	if err == nil {
		return fuse.OK
	}
	return s.fail(o, h.NodeId, err)
}

// StatFs returns the space of the whole job; within a dataset, the dataset's size.
func (s *fsys) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return s.call(opStatfs, cancel, h, func(ctx context.Context) error {
		statfs := s.client.Statfs
		if ino := metadata.Ino(h.NodeId); ino.Sealed() {
			statfs = func(context.Context) (datapath.Space, error) { return s.client.StatDataset(ino) }
		}
		sp, err := statfs(ctx)
		if err != nil {
			return err
		}
		const block = 4096
		out.Bsize, out.Frsize = block, block
		out.Blocks = uint64(max(sp.Capacity, sp.Used) / block)
		out.Bfree = uint64(max(sp.Free, 0) / block)
		out.Bavail = out.Bfree
		if metadata.Ino(h.NodeId).Sealed() {
			out.Blocks = uint64(sp.Used+block-1) / block
			out.Files = uint64(sp.Objects)
			out.NameLen = metadata.MaxName
			return nil
		}
		out.Files = metadata.MaxCounter
		out.Ffree = metadata.MaxCounter - uint64(max(sp.Objects, 0))
		out.NameLen = metadata.MaxName
		return nil
	})
}
