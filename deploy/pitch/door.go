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
	maxAsk = 64 // bytes of a request
	// stillLeaving is the answer until there is one.
	stillLeaving = "leaving\n"
	stillEvery   = time.Second
	askTime      = 5 * time.Second
	maxDoor      = 16 // requests at once
	// maxLeave bounds what a request may ask for.
	maxLeave = 24 * time.Hour
)

// door is the keeper's socket. It knows one request, "leave SECONDS", which is
// answered with a line "leaving" every second, so that a keeper which hangs is
// known; and when everything is gone with "ok", "trouble WHAT" or "left WHAT".
type door struct {
	k     *keeper
	l     *net.UnixListener
	slots chan struct{} // one for each request at work
	wg    sync.WaitGroup
}

func (k *keeper) openDoor() (*door, error) {
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
	d := &door{k: k, l: l, slots: make(chan struct{}, maxDoor)}
	d.wg.Add(1)
	go d.accept()
	return d, nil
}

// close waits until those who asked have their answer.
func (d *door) close() {
	_ = d.l.Close()
	d.wg.Wait()
}

func (d *door) accept() {
	defer d.wg.Done()
	for {
		conn, err := d.l.AcceptUnix()
		if err != nil {
			return
		}
		select {
		case d.slots <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			defer func() { <-d.slots }()
			defer conn.Close()
			if err := d.answer(conn); err != nil {
				d.k.log.WithError(err).Warn("a request at the keeper's socket was refused")
			}
		}()
	}
}

func (d *door) answer(conn *net.UnixConn) error {
	if uid, err := peerUID(conn); err != nil || uid != 0 {
		return fmt.Errorf("from uid %d: %w", uid, errors.Join(err, unix.EPERM))
	}
	_ = conn.SetDeadline(time.Now().Add(askTime)) // a failure shows in the read
	line, err := bufio.NewReaderSize(conn, maxAsk).ReadSlice('\n')
	if err != nil {
		return err
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	secs, err := strconv.ParseUint(rest, 10, 31)
	if word != "leave" || err != nil {
		return fmt.Errorf("%q is not leave SECONDS", line)
	}
	d.k.leave(min(time.Duration(secs)*time.Second, maxLeave))
	d.farewell(conn)
	return nil
}

// farewell answers until everything is gone, or until who asked does not
// listen any more.
func (d *door) farewell(conn net.Conn) {
	t := time.NewTicker(stillEvery)
	defer t.Stop()
	say := func(line string) error {
		_ = conn.SetWriteDeadline(time.Now().Add(askTime)) // a failure shows in the write
		_, err := conn.Write([]byte(line))
		return err
	}
	for err := say(stillLeaving); err == nil; err = say(stillLeaving) {
		select {
		case <-t.C:
		case <-d.k.gone:
			d.k.mu.Lock()
			answer := d.k.farewell
			d.k.mu.Unlock()
			_ = say(answer + "\n") // see above
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

// leave asks the job to leave within limit; the first who asks decides.
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

// askLeave tells the keeper at path to leave within limit, and returns its
// answer.
func askLeave(ctx context.Context, path string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+finishTime)
	defer cancel()
	d := net.Dialer{Timeout: askTime}
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
		_ = conn.SetReadDeadline(time.Now().Add(askTime)) // a failure shows in the read
		line, err := in.ReadSlice('\n')
		if err != nil || string(line) != stillLeaving {
			return strings.TrimSpace(string(line)), err
		}
	}
	return "", ctx.Err()
}
