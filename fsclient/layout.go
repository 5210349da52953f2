package fsclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata"
)

// ReservedXattr is the prefix of the extended attributes that are Bivouac's own:
//
//	user.bivouac.layout   local or stripe
//	user.bivouac.chunk    bytes; a number that is set may end with K, M or G
//	user.bivouac.width    the number of nodes of a striped file, or all; the default is 4
//	user.bivouac.copies   1 or 2: the number of nodes with the data; of a file, the number of copies now
//	user.bivouac.node     the nodes that hold the file's data; cannot be set
//
// New files and directories inherit the attributes of their directory, which can always be set. Those of a file can be
// set while it is empty and open on no node. An empty or missing value means the default.
const ReservedXattr = "user.bivouac."

const (
	xattrLayout = ReservedXattr + "layout"
	xattrChunk  = ReservedXattr + "chunk"
	xattrWidth  = ReservedXattr + "width"
	xattrCopies = ReservedXattr + "copies"
	xattrNode   = ReservedXattr + "node"
)

const (
	layoutLocal  = "local"
	layoutStripe = "stripe"
	widthAll     = "all"
)

// layouts implements the attributes with the prefix ReservedXattr.
type layouts struct{ c *Client }

func (l layouts) get(ctx context.Context, ino metadata.Ino, name string) ([]byte, error) {
	a, err := l.c.Getattr(ctx, ino)
	if err != nil {
		return nil, err
	}
	dir, file := a.Mode&syscall.S_IFMT == syscall.S_IFDIR, a.Mode&syscall.S_IFMT == syscall.S_IFREG
	switch {
	case !dir && !file:
	case name == xattrLayout && a.Layout.Kind == metadata.Local:
		return []byte(layoutLocal), nil
	case name == xattrLayout:
		return []byte(layoutStripe), nil
	case name == xattrChunk:
		return strconv.AppendInt(nil, a.Layout.Chunk(), 10), nil
	case name == xattrWidth && a.Layout.Width == metadata.AllNodes:
		return []byte(widthAll), nil
	case name == xattrWidth:
		return strconv.AppendUint(nil, uint64(cmp.Or(a.Layout.Width, metadata.DefaultWidth)), 10), nil
	case name == xattrCopies && file:
		n, err := l.c.nodes.Copies(ctx, a)
		return strconv.AppendInt(nil, int64(n), 10), err
	case name == xattrCopies:
		return strconv.AppendUint(nil, uint64(max(a.Layout.Copies, 1)), 10), nil
	case name == xattrNode && file:
		hosts, err := l.c.nodes.Hosts(ctx, a)
		return []byte(strings.Join(hosts, ",")), err
	}
	return nil, fmt.Errorf("inode %v: attribute %q: %w", ino, name, syscall.ENODATA)
}

// set changes the layout of a directory or of an empty file. For an open file it returns EBUSY: its users have cached
// the layout.
func (l layouts) set(ctx context.Context, ino metadata.Ino, x metadata.Xattr) error {
	if x.Mode == metadata.XattrCreate {
		return fmt.Errorf("inode %v: attribute %q: %w", ino, x.Name, syscall.EEXIST)
	}
	ch, err := l.change(x.Name, string(x.Value))
	if err != nil {
		return fmt.Errorf("inode %v: %w", ino, err)
	}
	if ch.Set == 0 {
		return nil
	}
	closes, cancel := context.WithTimeout(ctx, closeWait) // the calls may take longer
	defer cancel()
	for {
		err := l.setOnce(ctx, ino, ch)
		if !errors.Is(err, syscall.EBUSY) || !l.closedSoon(closes, ino) {
			return err
		}
	}
}

const (
	// closeWait is how long a change of layout waits for closes in flight: from the
	// kernel to this node, and from other nodes to the home.
	closeWait = time.Second
	closePoll = 20 * time.Millisecond
)

func (l layouts) setOnce(ctx context.Context, ino metadata.Ino, ch metadata.Change) error {
	if l.c.files.get(ino) != nil {
		return fmt.Errorf("inode %v: the layout of an open file cannot be changed: set it before opening, or on the directory: %w", ino, syscall.EBUSY)
	}
	closeReporter(l).reportNow(ctx, ino.Home())
	_, err := l.c.Setattr(ctx, ino, ch)
	return err
}

// closedSoon pauses and returns true. It returns false if the time has passed, or if the file has data, which no close
// changes.
func (l layouts) closedSoon(ctx context.Context, ino metadata.Ino) bool {
	if a, err := l.c.Getattr(ctx, ino); err != nil || a.Size > 0 {
		return false
	}
	return retry.Pause(ctx, closePoll)
}

// change returns the Change that sets one of the reserved attributes.
func (l layouts) change(name, value string) (metadata.Change, error) {
	bad := func(err error, want string) error {
		return fmt.Errorf("%s=%q: %s: %w", name, value, want, err)
	}
	switch name {
	case xattrLayout:
		ch := metadata.Change{Set: metadata.SetLayoutKind}
		switch value {
		case "", layoutStripe:
		case layoutLocal:
			ch.Layout = metadata.Layout{Kind: metadata.Local, Node: l.c.writer()}
		default:
			return ch, bad(syscall.EINVAL, "want local or stripe")
		}
		return ch, nil
	case xattrChunk:
		n, err := parseChunk(value)
		if err != nil {
			return metadata.Change{}, bad(err, "want a power of two from 64K to 1G")
		}
		return metadata.Change{Set: metadata.SetChunkSize, Layout: metadata.Layout{ChunkSize: n}}, nil
	case xattrWidth:
		n, err := parseWidth(value)
		if err != nil {
			return metadata.Change{}, bad(err, "want a number of nodes, or all")
		}
		return metadata.Change{Set: metadata.SetWidth, Layout: metadata.Layout{Width: n}}, nil
	case xattrCopies:
		n, err := strconv.ParseUint(cmp.Or(value, "1"), 10, 8)
		switch {
		case err != nil || n == 0 || n > metadata.MaxCopies:
			return metadata.Change{}, bad(syscall.EINVAL, "want 1 or 2")
		case n > 1 && len(l.c.nodes.Map().Nodes) < 2:
			return metadata.Change{}, bad(syscall.EINVAL, "the job has one node")
		}
		return metadata.Change{Set: metadata.SetCopies, Layout: metadata.Layout{Copies: uint8(n)}}, nil
	}
	return metadata.Change{}, bad(syscall.EPERM, "this attribute cannot be set")
}

// writer returns the node that owns local files written here.
func (c *Client) writer() metadata.NodeID {
	if c.cfg.Local != nil {
		return c.cfg.Self
	}
	return metadata.RootIno.Home() // a client without a share
}

// parseWidth parses a number of nodes, or all; 0 is the default.
func parseWidth(s string) (uint16, error) {
	switch s {
	case "":
		return 0, nil
	case widthAll:
		return metadata.AllNodes, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, syscall.EINVAL
	}
	return uint16(n), nil
}

// parseChunk parses a chunk size in bytes, K, M or G; 0 is the default.
func parseChunk(s string) (uint32, error) {
	if s == "" {
		return 0, nil
	}
	shift := 0
	switch s[len(s)-1] {
	case 'k', 'K':
		shift = 10
	case 'm', 'M':
		shift = 20
	case 'g', 'G':
		shift = 30
	}
	if shift > 0 {
		s = s[:len(s)-1]
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 || n<<shift > metadata.MaxChunkSize {
		return 0, syscall.EINVAL
	}
	return uint32(n << shift), metadata.CheckChunkSize(uint32(n << shift))
}
