package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// Clamp limits n to the bytes of f from off on.
func Clamp(f datapath.Descriptor, off, n int64) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return max(min(n, st.Size-off), 0), nil
}

// readFile reads the file's range into memory.
func (t *task) readFile(ctx context.Context) error {
	resp := &t.resp
	data, err := t.alloc(ctx, int(resp.Len))
	if err != nil {
		return err
	}
	n, err := resp.File.ReadAt(data, resp.Off)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	resp.Data, resp.File, resp.Len = data[:n], nil, 0
	return nil
}

// readParts reads the parts into memory.
func (t *task) readParts(ctx context.Context, n int64) error {
	resp := &t.resp
	out, err := t.c.s.memory.get(ctx, int(n), t.c.room)
	if err != nil {
		return err
	}
	data, err := joinParts(out.b[:0], resp.Parts)
	if t.out != nil {
		t.out.put()
	}
	t.out, resp.Data, resp.Parts = out, data, nil
	return err
}

// joinParts appends the bytes of all parts to b, which has room for them.
func joinParts(b []byte, parts []Part) ([]byte, error) {
	for i := range parts {
		p := &parts[i]
		if p.File == nil {
			b = append(b, p.Data...)
			continue
		}
		to := slices.Grow(b, int(p.Len))[len(b) : len(b)+int(p.Len)]
		if n, err := p.File.ReadAt(to, p.Off); n < len(to) {
			return nil, fmt.Errorf("%d of %d bytes of a file: %w: %w", n, len(to), syscall.EIO, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		b = b[:len(b)+int(p.Len)]
	}
	return b, nil
}

// sendParts writes a frame whose data is parts. Files are sent without a copy through this process.
// It passes the offset instead of using the file's own, so that one file serves many replies at
// once. If a file yields fewer bytes than the header promised, the error means that the connection
// must be closed. Held by token.
func (w *frameWriter) sendParts(h wire.Header, body []byte, parts ...Part) error {
	h.Body, h.Sum = uint32(len(body)), wire.Sum(body)
	for i := range parts {
		h.Data += uint32(parts[i].size())
	}
	w.buf = append(h.Append(w.buf[:0]), body...)
	w.bytes.Add(int64(len(w.buf)) + int64(h.Data))
	if err := w.sendBytes(w.buf, h.Data > 0); err != nil {
		return err
	}
	for i := range parts {
		p, err := &parts[i], error(nil)
		if p.File != nil {
			err = w.sendFile(p.File, p.Off, p.Len)
		} else {
			err = w.sendBytes(p.Data, i < len(parts)-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendBytes writes b; more means that further bytes follow at once.
func (w *frameWriter) sendBytes(b []byte, more bool) error {
	flags := unix.MSG_NOSIGNAL
	if more {
		flags |= unix.MSG_MORE
	}
	return w.sending(func(out int) (done bool, err error) {
		if len(b) == 0 {
			return true, nil
		}
		k, err := unix.SendmsgN(out, b, nil, nil, flags)
		b = b[max(k, 0):]
		return false, err
	})
}

// sendFile writes n bytes of f from off.
func (w *frameWriter) sendFile(f datapath.Descriptor, off, n int64) error {
	in := int(f.Fd())
	return w.sending(func(out int) (done bool, err error) {
		if n == 0 {
			return true, nil
		}
		k, err := unix.Sendfile(out, in, &off, int(n))
		if err == nil && k == 0 {
			err = io.ErrUnexpectedEOF
		}
		n -= int64(max(k, 0))
		return false, err
	})
}

// sending calls step until it is done or fails, and waits while the socket's send buffer is full.
func (w *frameWriter) sending(step func(out int) (done bool, err error)) error {
	var failed error
	err := w.raw.Write(func(out uintptr) bool {
		for {
			done, err := step(int(out))
			switch err {
			case nil:
				if done {
					return true
				}
			case syscall.EINTR:
			case syscall.EAGAIN:
				return false
			default:
				failed = err
				return true
			}
		}
	})
	return cmp.Or(failed, err)
}
