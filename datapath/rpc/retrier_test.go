package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// script is a Caller with a list of results; the last one repeats.
type script struct {
	answers []error
	calls   int
}

func (s *script) Do(context.Context, *Call) error {
	err := s.answers[min(s.calls, len(s.answers)-1)]
	s.calls++
	return err
}

func hopeful() error { return nil }

// unanswered is the error of a call without a reply.
func unanswered(errno syscall.Errno) error {
	return &callError{op: wire.OpWrite, peer: 3, errno: errno, cause: errors.New("the wire")}
}

// said returns the error of a handler.
func said(errno syscall.Errno) error { return &callError{op: wire.OpWrite, peer: 3, errno: errno} }

func TestPatient(t *testing.T) {
	down, away, lost := unanswered(syscall.EHOSTDOWN), unanswered(syscall.EHOSTUNREACH), unanswered(syscall.ECONNRESET)
	for _, c := range []struct {
		what    string
		op      wire.Op
		answers []error
		want    error // its errno is compared
		calls   int
	}{
		{"all is well", wire.OpWrite, []error{nil}, nil, 1},
		{"nothing was sent", wire.OpCreate, []error{down, away, down, nil}, nil, 4},
		{"lost, and can be made again", wire.OpWrite, []error{lost, down, lost, nil}, nil, 4},
		{"lost, and cannot", wire.OpCreate, []error{lost, nil}, syscall.ECONNRESET, 1},
		{"lost at the second try, and cannot", wire.OpCreate, []error{down, lost, nil}, syscall.ECONNRESET, 2},
		{"lost, and cannot: sync", wire.OpSync, []error{lost, nil}, syscall.ECONNRESET, 1},
		{"the handler's own host is down", wire.OpRead, []error{said(syscall.EHOSTDOWN), nil}, syscall.EHOSTDOWN, 1},
		{"the handler's own connection", wire.OpRead, []error{said(syscall.ECONNRESET), nil}, syscall.ECONNRESET, 1},
		{"no space at the second try", wire.OpWrite, []error{down, said(syscall.ENOSPC), nil}, syscall.ENOSPC, 2},
		{"no answer in time", wire.OpRead, []error{said(syscall.ETIMEDOUT), nil}, syscall.ETIMEDOUT, 1},
		{"another node has the home", wire.OpCreate, []error{said(syscall.ENOLINK), fmt.Errorf("here: %w", metadata.ErrMoved), nil}, nil, 3},
		{"try again, says a handler", wire.OpLock, []error{said(syscall.EAGAIN), nil}, syscall.EAGAIN, 1},
		{"closed", wire.OpRead, []error{down, said(syscall.ESHUTDOWN), nil}, syscall.ESHUTDOWN, 2},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := &script{answers: c.answers}
			err := NewRetrier(s, hopeful).Do(context.Background(), &Call{Op: c.op})
			if !errors.Is(err, c.want) || s.calls != c.calls {
				t.Errorf("Do = %v after %d calls, want %v after %d", err, s.calls, c.want, c.calls)
			}
		})
	}
}

// TestLastAnswer: a lost attempt of an op that only reads has no effect, so the reply to the next attempt counts. For
// other ops the error says that the first attempt may have taken effect.
func TestLastAnswer(t *testing.T) {
	for op, want := range map[wire.Op]syscall.Errno{wire.OpLookupLease: syscall.ENOENT, wire.OpSetattr: syscall.ECONNRESET} {
		s := &script{answers: []error{unanswered(syscall.ECONNRESET), said(syscall.ENOENT)}}
		err := NewRetrier(s, hopeful).Do(context.Background(), &Call{Op: op})
		if got, _ := StatusOf(err); got != want {
			t.Errorf("%v = %v, want %v", op, err, want)
		}
	}
}

// Retries end when the node is given up. The error still says whether an attempt may have taken
// effect.
func TestPatientGivesUp(t *testing.T) {
	for _, c := range []struct {
		first, want syscall.Errno
	}{{syscall.EHOSTDOWN, syscall.EHOSTDOWN}, {syscall.ECONNRESET, syscall.ECONNRESET}} {
		s := &script{answers: []error{unanswered(c.first), unanswered(syscall.EHOSTDOWN)}}
		gone := func() error {
			if s.calls > 2 {
				return syscall.EHOSTDOWN
			}
			return nil
		}
		wantErrno(t, NewRetrier(s, gone).Do(context.Background(), &Call{Op: wire.OpWrite}), c.want)
		if s.calls != 3 {
			t.Errorf("%d calls, want 3", s.calls)
		}
	}
}

func TestPatientEnds(t *testing.T) {
	moved := said(syscall.ENOLINK)
	if !errors.Is(moved, syscall.EAGAIN) {
		t.Errorf("%v is not EAGAIN for callers that repeat by themselves", moved)
	}
	away := NewRetrier(&script{answers: []error{moved}}, hopeful)
	away.limit = 20 * time.Millisecond
	err := away.Do(context.Background(), &Call{Op: wire.OpSetattr})
	if wantErrno(t, err, syscall.EIO); errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%v is repeated once more", err)
	}

	down := &script{answers: []error{unanswered(syscall.EHOSTDOWN)}}
	p := NewRetrier(down, hopeful)
	p.limit = 20 * time.Millisecond
	wantErrno(t, p.Do(context.Background(), &Call{Op: wire.OpRead}), syscall.EHOSTDOWN)

	ctx, cancel := context.WithCancel(context.Background())
	p = NewRetrier(down, func() error { cancel(); return nil })
	wantErrno(t, p.Do(ctx, &Call{Op: wire.OpRead}), syscall.EINTR)

	ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	wantErrno(t, NewRetrier(down, hopeful).Do(ctx, &Call{Op: wire.OpRead}), syscall.ETIMEDOUT)
}

// A write whose connection keeps breaking is repeated until it has a reply, and its attempts never
// run concurrently.
func TestPatientWriter(t *testing.T) {
	var running, tries atomic.Int64
	var link cutter
	_, addr := startServer(t, map[wire.Op]Handler{
		wire.OpWrite: func(context.Context, *Request, *Response) error {
			if running.Add(1) > 1 {
				t.Error("two tries run at once")
			}
			defer running.Add(-1)
			if tries.Add(1) < 5 {
				link.cut()
			}
			return nil
		},
	}, nil)
	p := startPeers(t, addr, link.use)
	for range 3 {
		if err := NewRetrier(p.To(3), hopeful).Do(context.Background(), &Call{Op: wire.OpWrite}); err != nil {
			t.Fatal(err)
		}
	}
	if n := tries.Load(); n < 5+2 {
		t.Errorf("%d tries, want 4 lost ones and 3 others", n)
	}
}
