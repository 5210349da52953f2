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

// talkFD is where a helper has its end of a talk.
const talkFD = coverFD + 1

// What a helper says when its mount is in its place, and when that is what is seen.
const (
	saidPlaced = "ok"
	saidShown  = "shown"
)

// Talk is two ends of a socket between who wants a cover or a view and the helper,
// whose is far. By it comes the tree of a view, or of a cover that it is deep, and then what AwaitPlaced and
// AwaitShown wait for. The helper shows nothing any more once near does not write. Who shows a cover then waits for
// AskVisit, or for the end of the talk.
func Talk() (near *net.UnixConn, far *os.File, err error) {
	return socketpair(unix.SOCK_STREAM, "talk")
}

// TellDeep says of a dataset that is to have a cover whether it is deep: whether it has
// directories more than MaxRing levels below its own. The helper waits for that.
func TellDeep(to net.Conn, deep bool) error {
	b := []byte{0}
	if deep {
		b[0] = 1
	}
	_, err := to.Write(b)
	return err
}

// hearDeep is what TellDeep says. Who says nothing wants no cover any more.
func hearDeep(talk *os.File) bool {
	var b [1]byte
	n, err := talk.Read(b[:])
	return err != nil || n != 1 || b[0] != 0
}

// AwaitPlaced waits until the mount is in its place, where nobody sees it yet; an
// error is why it will not be.
func AwaitPlaced(from *bufio.Reader) error { return await(from, saidPlaced) }

// AwaitShown waits, after AwaitPlaced, until the mount is what is seen at the
// dataset's directory. An error is that it will not be.
func AwaitShown(from *bufio.Reader) error { return await(from, saidShown) }

// AskVisit has the helper whose cover is shown list its directories, once, and end. names is how
// many names there are.
func AskVisit(to net.Conn, names uint32) error {
	_, err := to.Write(binary.BigEndian.AppendUint32(nil, names))
	return err
}

// askedToVisit waits for AskVisit, and returns its names; an error is that the talk has ended.
func askedToVisit(talk io.Reader) (names int, err error) {
	var b [4]byte
	if _, err := io.ReadFull(talk, b[:]); err != nil {
		return 0, err
	}
	return int(binary.BigEndian.Uint32(b[:])), nil
}

// AwaitEnd waits, after AwaitShown, until the helper has ended.
func AwaitEnd(from *bufio.Reader) error {
	if _, err := from.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.Join(err, fmt.Errorf("who mounts says more: %w", unix.EPROTO))
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
	return fmt.Errorf("who mounts has gone: %w", err)
}

// show says whether a helper's mount is in its place beneath the screen, which it then lifts, and reports whether
// it is what is seen. Without a screen it is already.
func show(talk *os.File, s *screen, failed error) (shown bool, err error) {
	if failed != nil {
		_, err := talk.WriteString(strings.ReplaceAll(failed.Error(), "\n", "; ") + "\n") // who listens may be gone
		return false, errors.Join(failed, err)
	}
	_, err = talk.WriteString(saidPlaced + "\n")
	if err = errors.Join(err, placed()); err != nil {
		return false, err
	}
	if s != nil && !s.lift(int(talk.Fd())) {
		return false, nil
	}
	_, err = talk.WriteString(saidShown + "\n")
	return err == nil, err
}
