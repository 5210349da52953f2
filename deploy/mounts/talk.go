package mounts

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// talkFD is the helper's descriptor of its end of a talk: a socket between the daemon and the helper. The daemon sends
// the tree of a view, or the root of a cover (TellRoot); the helper answers with the line for which AwaitMounted waits.
const talkFD = coverFD + 1

// saidMounted is the line that a helper sends when it has mounted its cover or view.
const saidMounted = "ok"

// TellRoot sends the inode of the root of the dataset to cover.
func TellRoot(to net.Conn, root metadata.Ino) error {
	_, err := to.Write(binary.BigEndian.AppendUint64(nil, uint64(root)))
	return err
}

// hearRoot receives the inode that TellRoot sends.
func hearRoot(talk io.Reader) (metadata.Ino, error) {
	var b [8]byte
	_, err := io.ReadFull(talk, b[:])
	return metadata.Ino(binary.BigEndian.Uint64(b[:])), err
}

// AwaitMounted waits until the helper has mounted over the dataset. It returns a handle of the root of a view, nil if there
// is none. The error is the helper's.
func AwaitMounted(from *net.UnixConn) (root *os.File, err error) {
	var line []byte
	b, oob := make([]byte, 4<<10), make([]byte, unix.CmsgSpace(4))
	for err == nil && !bytes.HasSuffix(line, []byte("\n")) {
		n, rights, _, _, e := from.ReadMsgUnix(b, oob)
		line, err = append(line, b[:n]...), e
		if err == nil && n == 0 {
			err = io.EOF
		}
		if rights > 0 && root == nil {
			root, _ = sentFile(oob[:rights], "root of a view") // without it, opens are not counted
		}
	}
	said := strings.TrimSpace(string(line))
	switch {
	case said == saidMounted:
		return root, nil
	case said != "":
		err = unix.EIO
	default:
		said = "the mount helper has ended"
	}
	if root != nil {
		_ = root.Close() // it was only a handle
	}
	return nil, fmt.Errorf("%s: %w", said, err)
}

// tellFailure sends an error as one line.
func tellFailure(talk *os.File, failed error) error {
	_, err := talk.WriteString(strings.ReplaceAll(failed.Error(), "\n", "; ") + "\n")
	return err
}
