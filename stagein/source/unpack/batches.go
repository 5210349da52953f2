package unpack

import (
	"context"
	"errors"
	"io"
)

// format splits a kind of compressed file into parts that can be decoded independently.
type format interface {
	// cut moves the next parts from the feed to the empty batch. It returns errSerial if the next part is too large
	// or its end is unknown, io.EOF at the end of the file, and otherwise why there is no more.
	cut(f *feed, b *batch) error

	// decode decodes a batch, concurrently with others. An error means that it is damaged, or does not end where
	// cut assumed.
	decode(ctx context.Context, b *batch) error

	// accept is called for each batch that was decoded without error, in order.
	accept(b *batch) error

	// serial returns a serial decoder of the next bytes of the feed, up to where cut can continue. If a batch was
	// rejected, the feed begins with it, and serial may return nil: cut will then find another end for it.
	serial(f *feed, rejected *batch) (io.Reader, error)
}

// restarter is a format whose restart points need more than an offset: restartAt encodes the point of a batch at off,
// or with a nil batch of what is unpacked serially from there on; false if there is none.
type restarter interface {
	restartAt(off int64, b *batch) (at int64, ok bool)
}

// errSerial says that the next part must be decoded serially.
var errSerial = errors.New("not in batches")

// batches decodes a compressed file with several workers and returns the output in order. The beginning of a batch
// may be speculation: its output is used only if the batch before it turned out to end exactly there, which is all
// that a serial decoder would know. The decoder verifies the checksums. A batch that fails is decoded again
// serially, and only that reports an error.
type batches struct {
	ctx     context.Context // for the workers
	cancel  context.CancelFunc
	feed    *feed
	format  format
	max     int           // limit of concurrent batches
	help    chan struct{} // a token for each batch but the first
	free    []*batch
	started []*batch // being decoded, in order
	made    int
	stop    error     // why no more batches are cut
	serial  io.Reader // the serial decoder that is in use, or nil
	skip    int       // bytes to skip, because they were returned before

	points *pointList // collects restart points; nil: none are wanted
	pos    int64      // position in the output of the next byte
}

func newBatches(ctx context.Context, in *packed, f format, help chan struct{}) *batches {
	ctx, cancel := context.WithCancel(ctx)
	return &batches{ctx: ctx, cancel: cancel, feed: &feed{in: in}, format: f, help: help, max: cap(help) + 1}
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

// read may return 0 bytes and no error.
func (d *batches) read(p []byte) (int, error) {
	if d.serial != nil {
		n, err := d.serial.Read(p)
		d.pos += int64(n)
		if err == io.EOF {
			d.serial, err = nil, nil
		}
		return n, err
	}
	if d.cutMore(); len(d.started) == 0 {
		return 0, d.proceed(nil)
	}
	b := d.started[0]
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
		d.started = d.started[1:]
		d.free = append(d.free, b)
		return n, d.format.accept(b)
	case err != nil:
		b.err = err
		return n, d.reject(b)
	}
	return n, nil
}

// proceed continues after the last batch, or after one that was rejected.
func (d *batches) proceed(rejected *batch) (err error) {
	if rejected == nil && d.stop != errSerial {
		return d.stop
	}
	d.stop = nil
	at := d.feed.offset()
	d.serial, err = d.format.serial(d.feed, rejected)
	if d.serial != nil {
		d.seen(at, nil)
	}
	return err
}

// begins records the beginning of a batch. All before it was decoded without error, so a part really begins there.
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

// cutMore starts as many batches as possible.
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
		d.started = append(d.started, b)
		go b.run(func(b *batch) error { return d.format.decode(d.ctx, b) }) // wait waits for it
	}
}

// batch returns a free batch, or nil.
func (d *batches) batch() *batch {
	if n := len(d.free); n > 0 {
		b := d.free[n-1]
		d.free = d.free[:n-1]
		return b
	}
	if d.made > 0 {
		if d.made == d.max {
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

// reject returns all started batches to the feed, and continues at the first.
func (d *batches) reject(b *batch) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	d.wait()
	var raw []byte
	for i, b := range d.started {
		end := d.feed.offset()
		if i+1 < len(d.started) {
			end = d.started[i+1].off
		}
		raw = append(raw, b.raw[:end-b.off]...)
	}
	d.feed.giveBack(raw)
	d.free = append(d.free, d.started...)
	d.started = nil
	d.skip += b.given
	d.pos -= int64(b.given)
	return d.proceed(b)
}

func (d *batches) wait() {
	for _, b := range d.started {
		<-b.done
	}
}

// ahead is how many bytes were read but not used.
func (d *batches) ahead() int {
	n := len(d.feed.b)
	if u, ok := d.serial.(interface{ Buffered() int }); ok {
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
