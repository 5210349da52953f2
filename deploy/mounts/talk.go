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
// whose is far. By it comes the tree of a view, or what is Told of a cover, and then what AwaitPlaced and
// AwaitShown wait for. The helper shows nothing any more once near does not write.
func Talk() (near *net.UnixConn, far *os.File, err error) {
	return socketpair(unix.SOCK_STREAM, "talk")
}

// Told is what a helper has to know of a dataset that is to have a cover.
type Told struct {
	Deep  bool // it has directories more than MaxRing levels below its own
	Names int  // how many it has, if all shall be known to the kernel before they are asked for; else 0
}

// toldSize is that of a Told on its way.
const toldSize = 1 + 4

// Tell says it. The helper waits for that.
func (d Told) Tell(to net.Conn) error {
	b := make([]byte, 1, toldSize)
	if d.Deep {
		b[0] = 1
	}
	_, err := to.Write(binary.BigEndian.AppendUint32(b, uint32(d.Names)))
	return err
}

// hear is what Tell says. Who says nothing wants no cover any more.
func hear(talk io.Reader) Told {
	var b [toldSize]byte
	_, err := io.ReadFull(talk, b[:])
	if err != nil {
		return Told{Deep: true}
	}
	return Told{Deep: b[0] != 0, Names: int(binary.BigEndian.Uint32(b[1:]))}
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
// beneath the screen, which it then lifts, and whether it is seen then. Without a screen it is seen already.
func show(talk *os.File, s *screen, failed error) (shown bool, err error) {
	if failed != nil {
		_, err := talk.WriteString(strings.ReplaceAll(failed.Error(), "\n", "; ") + "\n") // who listens may be gone
		return false, errors.Join(failed, err)
	}
	if s != nil {
		defer s.close()
	}
	_, err = talk.WriteString(saidPlaced + "\n")
	if err = errors.Join(err, placed()); err != nil {
		return false, err
	}
	if s != nil && !s.lift(int(talk.Fd())) {
		return false, nil
	}
	_, err = talk.WriteString(saidShown + "\n")
	return true, err
}
