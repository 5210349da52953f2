package pitch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxRequest = 64 // bytes
	// leavingLine is sent every leavingEvery until the job has left.
	leavingLine  = "leaving\n"
	leavingEvery = time.Second
	requestTime  = 5 * time.Second
	maxRequests  = 16 // served at once
	// maxLeave bounds the time in a request.
	maxLeave = 24 * time.Hour
)

// controlSocket serves the keeper's control socket. The answer to "leave SECONDS" is a line "leaving" every second, so
// that the caller notices a hanging keeper, and after the removal "ok", "trouble WHAT" or "left WHAT".
type controlSocket struct {
	k     *keeper
	l     *net.UnixListener
	slots chan struct{} // one for each request in service
	wg    sync.WaitGroup
}

func (k *keeper) listenControl() (*controlSocket, error) {
	path := k.place.sock()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &controlSocket{k: k, l: l, slots: make(chan struct{}, maxRequests)}
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

// close stops listening and waits until all requests are answered.
func (s *controlSocket) close() {
	_ = s.l.Close()
	s.wg.Wait()
}

func (s *controlSocket) accept() {
	defer s.wg.Done()
	for {
		conn, err := s.l.AcceptUnix()
		if err != nil {
			return
		}
		select {
		case s.slots <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		s.wg.Go(func() {
			defer func() { <-s.slots }()
			defer conn.Close()
			if err := s.answer(conn); err != nil {
				s.k.log.WithError(err).Warn("refused a request on the keeper's control socket")
			}
		})
	}
}

func (s *controlSocket) answer(conn *net.UnixConn) error {
	if uid, err := peerUID(conn); err != nil || uid != 0 {
		return fmt.Errorf("from uid %d: %w", uid, errors.Join(err, unix.EPERM))
	}
	_ = conn.SetDeadline(time.Now().Add(requestTime)) // the read reports a failure
	line, err := bufio.NewReaderSize(conn, maxRequest).ReadSlice('\n')
	if err != nil {
		return err
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	n, err := strconv.ParseUint(rest, 10, 31)
	if err != nil || word != "leave" {
		return fmt.Errorf("request %q: want leave SECONDS", line)
	}
	s.k.leave(min(time.Duration(n)*time.Second, maxLeave))
	s.sendAnswer(conn)
	return nil
}

// sendAnswer sends leavingLine until everything is removed, then the answer. It ends when the
// client hangs up.
func (s *controlSocket) sendAnswer(conn net.Conn) {
	t := time.NewTicker(leavingEvery)
	defer t.Stop()
	say := func(line string) error {
		_ = conn.SetWriteDeadline(time.Now().Add(requestTime)) // the write reports a failure
		_, err := conn.Write([]byte(line))
		return err
	}
	for err := say(leavingLine); err == nil; err = say(leavingLine) {
		select {
		case <-t.C:
		case <-s.k.gone:
			s.k.mu.Lock()
			answer := s.k.answer
			s.k.mu.Unlock()
			_ = say(answer + "\n") // the client may have hung up
			return
		}
	}
}

func peerUID(conn *net.UnixConn) (uid uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var e error
	err = raw.Control(func(fd uintptr) { cred, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, e); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// leave makes the job leave within limit. Only the first call counts.
func (k *keeper) leave(limit time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.deadline.IsZero() {
		return
	}
	k.deadline = time.Now().Add(limit)
	close(k.leaving)
}

func (k *keeper) leaveDeadline() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deadline
}

func (k *keeper) isLeaving() bool {
	select {
	case <-k.leaving:
		return true
	default:
		return false
	}
}

// askLeave asks the keeper at path to leave within limit and returns its answer.
func askLeave(ctx context.Context, path string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+finishTime)
	defer cancel()
	d := net.Dialer{Timeout: requestTime}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "leave %d\n", max(1, int(limit/time.Second))); err != nil {
		return "", err
	}
	in := bufio.NewReaderSize(conn, 2*maxLine)
	for ctx.Err() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(requestTime)) // the read reports a failure
		line, err := in.ReadSlice('\n')
		if err != nil || string(line) != leavingLine {
			return strings.TrimSpace(string(line)), err
		}
	}
	return "", ctx.Err()
}
