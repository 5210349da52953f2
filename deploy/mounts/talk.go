package mounts

import (
	"bufio"
	"errors"
	"fmt"
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
// AwaitShown wait for. The helper shows nothing any more once near does not write.
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

// show is the end of a helper's work: it says whether its mount is in its place
// beneath the screen, which it then lifts. Without a screen it is seen already.
func show(talk *os.File, s *screen, failed error) error {
	if failed != nil {
		_, err := talk.WriteString(strings.ReplaceAll(failed.Error(), "\n", "; ") + "\n") // who listens may be gone
		return errors.Join(failed, err)
	}
	if s != nil {
		defer s.close()
	}
	_, err := talk.WriteString(saidPlaced + "\n")
	if err = errors.Join(err, placed()); err != nil {
		return err
	}
	if s == nil || s.lift(int(talk.Fd())) {
		_, err = talk.WriteString(saidShown + "\n")
	}
	return err
}
