package rpc

import (
	"context"
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// clamp clips n to the size of f behind off.
func clamp(f datapath.Descriptor, off, n int64) (int64, error) {
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

// sendFile writes a frame whose data is n bytes of f from off, without a copy through this process.
// It passes the offset instead of using the file's own, so that one file serves many replies at
// once. If f yields fewer bytes than the header promised, the error means that the connection must
// be closed. Held by token.
func (w *frameWriter) sendFile(h wire.Header, body []byte, f datapath.Descriptor, off, n int64) error {
	h.Body, h.Sum, h.Data = uint32(len(body)), wire.Sum(body), uint32(n)
	w.buf = append(h.Append(w.buf[:0]), body...)
	w.bytes.Add(int64(len(w.buf)) + n)
	head, in := w.buf, int(f.Fd())
	var failed error
	err := w.raw.Write(func(out uintptr) bool {
		for len(head) > 0 {
			k, err := unix.SendmsgN(int(out), head, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			if done, stop := settle(err, &failed); stop {
				return done
			}
			head = head[max(k, 0):]
		}
		for n > 0 {
			k, err := unix.Sendfile(int(out), in, &off, int(n))
			if err == nil && k == 0 {
				err = io.ErrUnexpectedEOF
			}
			if done, stop := settle(err, &failed); stop {
				return done
			}
			n -= int64(max(k, 0))
		}
		return true
	})
	if failed != nil {
		return failed
	}
	return err
}

// settle translates a system call's error into the end of a RawConn.Write function: done false
// waits until the socket has room.
func settle(err error, failed *error) (done, stop bool) {
	switch err {
	case nil, syscall.EINTR:
		return false, false
	case syscall.EAGAIN:
		return false, true
	}
	*failed = err
	return true, true
}
