package mounts

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// talkFD is the helper's descriptor of its end of a talk: a socket between the daemon and the helper. The
// daemon sends the tree of a view, or of a cover the root (TellRoot); the helper answers with
// the line that AwaitMounted waits for.
const talkFD = coverFD + 1

// saidMounted is the line of a helper that has mounted its cover or view.
const saidMounted = "ok"

// TellRoot sends the inode of the root of the dataset that is to be covered.
func TellRoot(to net.Conn, root metadata.Ino) error {
	_, err := to.Write(binary.BigEndian.AppendUint64(nil, uint64(root)))
	return err
}

// hearRoot receives what TellRoot sends.
func hearRoot(talk io.Reader) (metadata.Ino, error) {
	var b [8]byte
	_, err := io.ReadFull(talk, b[:])
	return metadata.Ino(binary.BigEndian.Uint64(b[:])), err
}

// AwaitMounted waits until the helper has mounted over the dataset. The error is the helper's.
func AwaitMounted(from io.Reader) error {
	line, err := bufio.NewReader(from).ReadSlice('\n')
	said := strings.TrimSpace(string(line))
	switch {
	case said == saidMounted:
		return nil
	case said != "":
		return fmt.Errorf("%s: %w", said, unix.EIO)
	}
	return fmt.Errorf("the mount helper has ended: %w", err)
}

// tellFailure sends an error as one line.
func tellFailure(talk *os.File, failed error) error {
	_, err := talk.WriteString(strings.ReplaceAll(failed.Error(), "\n", "; ") + "\n")
	return err
}
