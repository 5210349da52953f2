package fsclient

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

// Small files of other nodes that are read one after the other, in an order of their directory, are opened and read
// ahead: by one call to their home, and one call to each node that stores some of them. They are idle until a process
// opens them. The content read ahead is valid as long as the file's attributes are leased and unchanged: the home
// recalls them before it acknowledges a change, as it does for the pages that the kernel caches.

const (
	// maxAhead is the size of the largest file that is read ahead.
	maxAhead = 64 << 10
	// maxBatch bounds the bytes read ahead at once, maxContents the bytes kept.
	maxBatch    = 1 << 20
	maxContents = 16 << 20
	// aheadWait bounds how long a reader waits for the files after its own. If that is not enough, read-ahead stops for
	// aheadPause.
	aheadWait  = time.Second
	aheadPause = 10 * time.Second
)

// ahead is the read-ahead state of a client.
type ahead struct {
	kept   atomic.Int64 // bytes of contents
	paused atomic.Int64 // until then, as a metadata.Time
}

// content is the whole content of a file at one version.
type content struct {
	data    []byte
	ctime   metadata.Time
	session metadata.LeaseSession // of the lease on the attributes
}

// fromAhead reads from the content of f that was read ahead; ok is false if there is none or it is not current.
func (f *File) fromAhead(p []byte, off int64) (n int, ok bool) {
	x := f.content.Load()
	if x == nil {
		return 0, false
	}
	a, session := f.c.leases.Leased(f.ino)
	f.mu.Lock()
	known := f.known() // an open may have seen a newer version, whose recall is still in flight
	current := f.gen == 0 && session == x.session && a.Ctime == x.ctime && known.Ctime == x.ctime && known.Size == int64(len(x.data))
	f.mu.Unlock()
	if current && off < int64(len(x.data)) {
		n = copy(p, x.data[off:])
	}
	if !current || off+int64(n) == int64(len(x.data)) { // at the end the kernel has it all
		f.forgetContent()
	}
	return n, current
}

// forgetContent drops the content read ahead. It is also called when f is closed.
func (f *File) forgetContent() {
	if x := f.content.Swap(nil); x != nil {
		f.c.ahead.kept.Add(-int64(len(x.data)))
	}
}

// aheadRead is a batch of files of one home that are read ahead.
type aheadRead struct {
	c     *Client
	files []*File // in use
	nodes map[metadata.NodeID][]aheadFile
}

// aheadFile is a file in a batch, with the range to read and the content to fill.
type aheadFile struct {
	file *File
	is   content
	at   datapath.RangeRead
}

// readAhead is called when the first bytes of f are read; f has the attributes a and the stripe order. If it reads
// other files ahead, it reads f with them.
func readAhead(ctx context.Context, f *File, a *metadata.Attr, order []metadata.NodeID) {
	c := f.c
	if a.Size > maxAhead || f.ino.Sealed() || f.ino.Home() == c.cfg.Self {
		return
	}
	if node, _, ok := stripe.Whole(a, order); !ok || node == c.cfg.Self {
		return
	}
	next := c.leases.Ahead(f.ino)
	if len(next) == 0 || metadata.TimeOf(c.cfg.Now()) < metadata.Time(c.ahead.paused.Load()) {
		return
	}
	b := aheadRead{c: c, nodes: make(map[metadata.NodeID][]aheadFile)}
	b.use(f.ino)
	b.choose(next)
	done := make(chan struct{})
	c.wg.Go(func() {
		defer close(done)
		defer b.release() // not before the home has answered: the files it opens are reported as closed later
		b.run()
	})
	ctx, cancel := context.WithTimeout(ctx, aheadWait)
	defer cancel()
	if wait.For(ctx, done) != nil {
		b.pause(context.Cause(ctx))
	}
}

// run opens and reads the files. It ends with the client.
func (b *aheadRead) run() {
	err := b.open(b.c.ctx)
	if err == nil {
		ctx, cancel := context.WithTimeout(b.c.ctx, aheadWait)
		defer cancel()
		err = b.read(ctx)
	}
	if err != nil {
		b.pause(err)
	}
}

// pause stops read-ahead for aheadPause.
func (b *aheadRead) pause(err error) {
	b.c.cfg.Log.WithError(err).WithField("inode", b.files[0].ino.String()).Debug("read-ahead of the following files failed")
	b.c.ahead.paused.Store(int64(metadata.TimeOf(b.c.cfg.Now().Add(aheadPause))))
}

func (b *aheadRead) use(ino metadata.Ino) { b.files = append(b.files, b.c.files.acquire(b.c, ino)) }

// choose adds as many of next as there is room for.
func (b *aheadRead) choose(next []metadata.Attr) {
	home, room := b.files[0].ino.Home(), min(maxBatch, maxContents-b.c.ahead.kept.Load())
	for _, a := range next {
		if a.Size == 0 || a.Size > maxAhead || a.Layout.Copied() || a.Ino.Home() != home {
			continue
		}
		if room -= a.Size; room < 0 {
			return
		}
		b.use(a.Ino)
	}
}

func (b *aheadRead) release() {
	for _, f := range b.files {
		b.c.release(f)
	}
}

// open opens, by one call, the files not yet open at their home. The home leaves out files open on another node.
func (b *aheadRead) open(ctx context.Context) error {
	var ask []metadata.OpenAhead
	type asked struct {
		file    *File
		recalls uint64
	}
	byIno := make(map[metadata.Ino]asked)
	for _, f := range b.files {
		f.mu.Lock()
		if !f.atHome {
			ask, byIno[f.ino] = append(ask, metadata.OpenAhead{Ino: f.ino, Ticket: f.ticket}), asked{f, f.app.recalls}
		}
		f.mu.Unlock()
	}
	if len(ask) == 0 {
		return nil
	}
	s, err := b.c.nodes.Home(b.files[0].ino)
	if err != nil {
		return err
	}
	home, ok := s.(metadata.AheadOpener)
	if !ok {
		return nil
	}
	opened, run, err := home.OpenAhead(ctx, b.c.holder(), ask)
	if err != nil {
		return err
	}
	for _, a := range opened {
		x, ok := byIno[a.Ino]
		if !ok {
			continue
		}
		x.file.openedAhead(a, run, x.recalls)
		if err := x.file.begin(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// openedAhead records that the home knows that f is open, with the attributes a. Alone stays false: other nodes may
// open f before a process here does.
func (f *File) openedAhead(a metadata.Attr, run metadata.Run, recalls uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.atHome = true
	if recalls == f.app.recalls {
		f.homeRun = run
	}
	if a.Ctime >= f.attr.Ctime { // else a later answer has overtaken it
		f.attr = a
	}
}

// read reads the files from the nodes that have them, by one call to each node.
func (b *aheadRead) read(ctx context.Context) error {
	for _, f := range b.files {
		if f.content.Load() == nil {
			b.place(f)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for node, files := range b.nodes {
		g.Go(func() error { return b.readFrom(ctx, node, files) })
	}
	return g.Wait()
}

// place finds the node to read f from, if its attributes are leased and unchanged since it was opened.
func (b *aheadRead) place(f *File) {
	leased, session := b.c.leases.Leased(f.ino)
	f.mu.Lock()
	a, order, ok := f.known(), f.order, f.atHome && f.gen == 0
	f.mu.Unlock()
	if !ok || session == (metadata.LeaseSession{}) || leased.Ctime != a.Ctime || leased.Size != a.Size {
		return
	}
	node, at, ok := stripe.Whole(&a, order)
	if ok && node != b.c.cfg.Self {
		b.nodes[node] = append(b.nodes[node], aheadFile{f, content{ctime: a.Ctime, session: session}, at})
	}
}

func (b *aheadRead) readFrom(ctx context.Context, node metadata.NodeID, files []aheadFile) error {
	rs := make([]datapath.RangeRead, len(files))
	var size int64
	for i := range files {
		rs[i] = files[i].at
		size += files[i].at.Len
	}
	if err := b.c.data.ReadMany(ctx, node, rs, make([]byte, size)); err != nil {
		return err
	}
	for i, f := range files {
		if rs[i].Err != nil {
			continue // a hole, for example; its reader asks again
		}
		f.is.data = slices.Clone(rs[i].Data)
		if f.file.content.CompareAndSwap(nil, &f.is) {
			b.c.ahead.kept.Add(int64(len(f.is.data)))
		}
	}
	return nil
}
