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

// Small files of other nodes that are read one after the other, in an order of their directory, are opened and read ahead: by
// one call to their home, and one to each node that has some of them. They are idle until a process opens them. What was read
// is the content of a file as long as its attributes are leased without a change since: its home recalls them before it
// acknowledges a change, as for the pages that the kernel keeps.

const (
	// maxAhead is the size of the largest file that is read ahead.
	maxAhead = 64 << 10
	// maxBatch and maxContents bound what is read ahead at once, and what is kept, in bytes.
	maxBatch    = 1 << 20
	maxContents = 16 << 20
	// aheadWait bounds how long a reader waits for the files after its own. If that is not enough, nothing is read ahead for
	// the time aheadPause.
	aheadWait  = time.Second
	aheadPause = 10 * time.Second
)

// ahead is what a client reads ahead.
type ahead struct {
	kept   atomic.Int64 // bytes of contents
	paused atomic.Int64 // until then, as a metadata.Time
}

// content is all of a file, as it was at a time.
type content struct {
	data    []byte
	ctime   metadata.Time
	session metadata.LeaseSession // of the lease on the attributes
}

// fromAhead reads from the content of f.
func (f *File) fromAhead(p []byte, off int64) (n int, ok bool) {
	x := f.content.Load()
	if x == nil {
		return 0, false
	}
	a, session := f.c.leases.Leased(f.ino)
	f.mu.Lock()
	known := f.known() // a version that an open has seen: its recall may be on the way
	current := f.gen == 0 && session == x.session && a.Ctime == x.ctime && known.Ctime == x.ctime && known.Size == int64(len(x.data))
	f.mu.Unlock()
	if current && off < int64(len(x.data)) {
		n = copy(p, x.data[off:])
	}
	if !current || off+int64(n) == int64(len(x.data)) { // the kernel has it
		f.forgetContent()
	}
	return n, current
}

// forgetContent is called also when f is closed.
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

// aheadFile is a file whose content is to be read.
type aheadFile struct {
	file *File
	is   content
	at   datapath.RangeRead
}

// readAhead is called when the first bytes of f are read, of which order has the attributes a. It reads f too if it reads
// others.
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
		defer b.release() // not before the home has answered: what it opens is reported as closed later
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

// pause reads nothing ahead for a while.
func (b *aheadRead) pause(err error) {
	b.c.cfg.Log.WithError(err).WithField("inode", b.files[0].ino.String()).Debug("files after this one not read ahead")
	b.c.ahead.paused.Store(int64(metadata.TimeOf(b.c.cfg.Now().Add(aheadPause))))
}

func (b *aheadRead) use(ino metadata.Ino) { b.files = append(b.files, b.c.files.acquire(b.c, ino)) }

// choose takes as many of next as there is room for.
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

// open opens those that are not open at their home, by one call. The home leaves out what another node has open.
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

// openedAhead notes that the home knows that f is open, with the attributes a. Alone stays false: others may open it before
// a process here does.
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

// read reads what other nodes have, by one call to each.
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

// place finds where f is to be read, if its attributes are leased and those that it was opened with.
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
			continue // as of a hole; its reader asks again
		}
		f.is.data = slices.Clone(rs[i].Data)
		if f.file.content.CompareAndSwap(nil, &f.is) {
			b.c.ahead.kept.Add(int64(len(f.is.data)))
		}
	}
	return nil
}
