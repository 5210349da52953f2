package unpack

import (
	"context"
	"errors"
	"io"
)

// format knows how a kind of compressed file falls into parts that can be
// unpacked without those before them.
type format interface {
	// cut moves from the feed what is next to the batch, which is empty. It
	// returns errSerial if that is too large or cannot be told, io.EOF if there is
	// nothing, and else why there is no more.
	cut(f *feed, b *batch) error

	// decode unpacks a batch, at the same time as others. An error means that it
	// is damaged, or does not end where cut thought.
	decode(ctx context.Context, b *batch) error

	// accept is called with each batch whose bytes all were right, in order.
	accept(b *batch) error

	// serial returns what unpacks the next bytes of the feed in the usual way, up
	// to where cut can go on. If a batch was rejected, the feed begins with it; then
	// serial may return nil: cut will find another end for it.
	serial(f *feed, rejected *batch) (io.Reader, error)
}

// restarter is a format whose restart points need more than an offset: restartAt encodes the point of a batch at off,
// or with a nil batch of what is unpacked serially from there on; false if there is none.
type restarter interface {
	restartAt(off int64, b *batch) (at int64, ok bool)
}

// errSerial says that what is next is not unpacked as a batch.
var errSerial = errors.New("not in batches")

// batches unpacks a compressed file by several workers, and gives out what comes
// in order. A batch may begin where only a guess says that something begins: it is
// given out when the one before turned out to end just there, because that is
// all that the usual way would know; its checksums are checked by the decoder.
// What is wrong is unpacked again by the usual way, which is the one that says so.
type batches struct {
	ctx    context.Context // of the workers
	cancel context.CancelFunc
	feed   *feed
	format format
	most   int           // batches at once
	help   chan struct{} // a token for each batch but the first
	free   []*batch
	under  []*batch // under way, in order
	made   int
	stop   error     // why there are no more batches
	usual  io.Reader // that is in use now, or nil
	skip   int       // bytes to come that were given out before

	points *pointList // collects restart points; nil: none are wanted
	pos    int64      // in what comes out, of the next byte of a batch, or of usual
}

func newBatches(ctx context.Context, in *packed, f format, help chan struct{}) *batches {
	ctx, cancel := context.WithCancel(ctx)
	return &batches{ctx: ctx, cancel: cancel, feed: &feed{in: in}, format: f, help: help, most: cap(help) + 1}
}

// Read implements io.Reader.
func (d *batches) Read(p []byte) (int, error) {
	for {
		n, err := d.read(p)
		if again := min(n, d.skip); again > 0 {
			d.skip -= again
			n = copy(p, p[again:n])
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// read may return nothing and no error.
func (d *batches) read(p []byte) (int, error) {
	if d.usual != nil {
		n, err := d.usual.Read(p)
		d.pos += int64(n)
		if err == io.EOF {
			d.usual, err = nil, nil
		}
		return n, err
	}
	if d.cutMore(); len(d.under) == 0 {
		return 0, d.goOn(nil)
	}
	b := d.under[0]
	<-b.done
	if b.err != nil {
		return 0, d.reject(b)
	}
	if b.given == 0 {
		d.begins(b)
	}
	n, err := b.Read(p)
	d.pos += int64(n)
	switch {
	case err == io.EOF:
		d.under = d.under[1:]
		d.free = append(d.free, b)
		return n, d.format.accept(b)
	case err != nil:
		b.err = err
		return n, d.reject(b)
	}
	return n, nil
}

// goOn goes on where there is no batch, or one was wrong.
func (d *batches) goOn(rejected *batch) (err error) {
	if rejected == nil && d.stop != errSerial {
		return d.stop
	}
	d.stop = nil
	at := d.feed.offset()
	d.usual, err = d.format.serial(d.feed, rejected)
	if d.usual != nil {
		d.seen(at, nil)
	}
	return err
}

// begins takes note of where a batch does. What was before it was right, so that it, or what
// the usual way makes of it, does begin there.
func (d *batches) begins(b *batch) { d.seen(b.off, b) }

func (d *batches) seen(at int64, b *batch) {
	ok := true
	if f, is := d.format.(restarter); is {
		at, ok = f.restartAt(at, b)
	}
	if ok && d.points != nil {
		d.points.see(RestartPoint{At: at, Off: d.pos})
	}
}

// cutMore lets as many batches be under way as there may be.
func (d *batches) cutMore() {
	for d.stop == nil {
		b := d.batch()
		if b == nil {
			return
		}
		*b = batch{raw: b.raw[:0], out: b.out[:0], done: make(chan struct{}), off: d.feed.offset()}
		if d.stop = d.format.cut(d.feed, b); d.stop != nil {
			d.free = append(d.free, b)
			return
		}
		d.under = append(d.under, b)
		go b.run(func(b *batch) error { return d.format.decode(d.ctx, b) }) // wait waits
	}
}

// batch returns one that is free, or nil.
func (d *batches) batch() *batch {
	if n := len(d.free); n > 0 {
		b := d.free[n-1]
		d.free = d.free[:n-1]
		return b
	}
	if d.made > 0 {
		if d.made == d.most {
			return nil
		}
		select {
		case d.help <- struct{}{}:
		default:
			return nil
		}
	}
	d.made++
	return new(batch)
}

// reject gives all that is under way back to the feed, and goes on from the first.
func (d *batches) reject(b *batch) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	d.wait()
	var raw []byte
	for i, b := range d.under {
		end := d.feed.offset()
		if i+1 < len(d.under) {
			end = d.under[i+1].off
		}
		raw = append(raw, b.raw[:end-b.off]...)
	}
	d.feed.giveBack(raw)
	d.free = append(d.free, d.under...)
	d.under = nil
	d.skip += b.given
	d.pos -= int64(b.given)
	return d.goOn(b)
}

func (d *batches) wait() {
	for _, b := range d.under {
		<-b.done
	}
}

// ahead is how many bytes were read and not used.
func (d *batches) ahead() int {
	n := len(d.feed.b)
	if u, ok := d.usual.(interface{ Buffered() int }); ok {
		n += u.Buffered()
	}
	return n
}

// Close stops the workers and waits for them.
func (d *batches) Close() error {
	d.cancel()
	d.wait()
	for ; d.made > 1; d.made-- {
		<-d.help
	}
	if c, ok := d.format.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
