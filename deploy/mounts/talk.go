package mounts

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// talkFD is the helper's descriptor of its end of a talk.
const talkFD = coverFD + 1

// The lines of a helper: its mount is made, and its mount is attached.
const (
	saidMade     = "ok"
	saidAttached = "attached"
)

// Talk returns both ends of a socket between the daemon (near) and a helper (far). The
// daemon sends the tree of a view, or of a cover whether it is deep; the helper answers with
// the lines that AwaitMade and AwaitAttached wait for. Closing near for writing has the
// helper give up. The helper of an attached cover then waits for AskWarm or the end.
func Talk() (near *net.UnixConn, far *os.File, err error) {
	return socketpair(unix.SOCK_STREAM, "talk")
}

// TellDeep sends whether the dataset of a cover has directories more than MaxRing levels
// deep. The helper waits for it.
func TellDeep(to net.Conn, deep bool) error {
	b := []byte{0}
	if deep {
		b[0] = 1
	}
	_, err := to.Write(b)
	return err
}

// hearDeep receives what TellDeep sends. At the end of the talk it is true.
func hearDeep(talk *os.File) bool {
	var b [1]byte
	n, err := talk.Read(b[:])
	return err != nil || n != 1 || b[0] != 0
}

// AwaitMade waits until the helper has made its mount, which is not attached yet. The error
// is the helper's.
func AwaitMade(from *bufio.Reader) error { return await(from, saidMade) }

// AwaitAttached waits, after AwaitMade, until the mount is attached to the dataset's directory.
func AwaitAttached(from *bufio.Reader) error { return await(from, saidAttached) }

// AskWarm has the helper of an attached cover list its directories, which have that many
// names, and end.
func AskWarm(to net.Conn, names uint32) error {
	_, err := to.Write(binary.BigEndian.AppendUint32(nil, names))
	return err
}

// askedToWarm waits for AskWarm and returns its names; the end of the talk is an error.
func askedToWarm(talk io.Reader) (names int, err error) {
	var b [4]byte
	if _, err := io.ReadFull(talk, b[:]); err != nil {
		return 0, err
	}
	return int(binary.BigEndian.Uint32(b[:])), nil
}

// AwaitEnd waits, after AwaitAttached, until the helper has ended.
func AwaitEnd(from *bufio.Reader) error {
	if _, err := from.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.Join(err, fmt.Errorf("unexpected output of the mount helper: %w", unix.EPROTO))
	}
	return nil
}

func await(from *bufio.Reader, want string) error {
	line, err := from.ReadSlice('\n')
	said := strings.TrimSpace(string(line))
	switch {
	case said == want:
		return nil
	case said != "":
		return fmt.Errorf("%s: %w", said, unix.EIO)
	}
	return fmt.Errorf("the mount helper has ended: %w", err)
}

// attach reports the mount m, or why it failed, to the daemon, attaches it when the dataset
// is idle, and returns whether it is attached.
func attach(talk *os.File, p *point, m int, failed error) (attached bool, err error) {
	if failed != nil {
		return false, errors.Join(failed, tellFailure(talk, failed))
	}
	_, err = talk.WriteString(saidMade + "\n")
	if err = errors.Join(err, tellMade()); err != nil {
		return false, err
	}
	attached, err = p.attachIdle(m, talk)
	switch {
	case err != nil:
		return false, errors.Join(err, tellFailure(talk, err))
	case !attached:
		return false, nil
	}
	_, err = talk.WriteString(saidAttached + "\n")
	return err == nil, err
}

// tellFailure sends an error as one line.
func tellFailure(talk *os.File, failed error) error {
	_, err := talk.WriteString(strings.ReplaceAll(failed.Error(), "\n", "; ") + "\n")
	return err
}
