package tar

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// Positions of the sparse maps in headers of old GNU tar and star.
const (
	gnuSparse   = 386 // in the header: 4 entries, a flag for more, the size
	gnuMore     = 482
	gnuSize     = 483
	starMore    = 355 // likewise
	starSparse  = 356
	starSize    = 452
	headerPairs = 4
	extPairs    = 21 // in a following block
	extMore     = 504
	pairSize    = 24
)

// sparseReader parses the map that follows a member's header: blocks of entries, or (PAX 1.0) text at the front of
// the data.
type sparseReader struct {
	h     header
	size  int64 // of the file
	text  bool
	lines []byte // text not yet parsed
	want  int64  // numbers still missing in the text; -1: unknown
	used  int64  // bytes of the text, in whole blocks
	total int64  // of all blocks
	pairs []int64
}

// sparsePAX holds the values of the records GNU.sparse.*.
type sparsePAX struct {
	name         string
	size         int64 // of the file; -1: unknown
	major, minor string
	pairs        []int64
}

func (o *overrides) sparsePAX(key, value string) error {
	if o.sparse == nil {
		o.sparse = &sparsePAX{size: -1}
	}
	p := o.sparse
	number := func() (int64, error) {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return 0, syscall.EBADMSG
		}
		return n, nil
	}
	var err error
	switch key {
	case "name":
		if p.name = value; strings.ContainsRune(value, 0) {
			err = syscall.EBADMSG
		}
	case "size", "realsize":
		p.size, err = number()
	case "major":
		p.major = value
	case "minor":
		p.minor = value
	case "offset", "numbytes":
		var n int64
		if n, err = number(); (len(p.pairs)%2 == 1) != (key == "numbytes") {
			err = syscall.EBADMSG
		}
		p.pairs = append(p.pairs, n)
	case "map":
		p.pairs = nil
		for s := range strings.SplitSeq(value, ",") {
			if value = s; err == nil && s != "" {
				var n int64
				n, err = number()
				p.pairs = append(p.pairs, n)
			}
		}
	}
	return err
}

// sparse starts to parse the map of a sparse member. ok is false if h is not sparse; the reader is nil if the
// headers contained the whole map.
func (g *Parser) sparse(h header, b []byte) (m *source.Sparse, r *sparseReader, ok bool, err error) {
	stored := h.size
	if g.o.size != nil {
		stored = *g.o.size
	}
	p := g.o.sparse
	switch {
	case p != nil && (p.major == "1" && p.minor == "0"):
		r = &sparseReader{h: h, size: p.size, text: true, want: -1}
	case p != nil && (p.major == "" && p.minor == "" || p.major == "0" && (p.minor == "0" || p.minor == "1")):
		m, err = source.NewSparse(p.pairs, p.size, stored)
		return m, nil, true, err
	case p != nil:
		return nil, nil, true, fmt.Errorf("is sparse in an unknown format %q.%q; make the archive without --sparse: %w", p.major, p.minor, syscall.EINVAL)
	case h.typ != typeSparse:
		return nil, nil, false, nil
	default:
		r = &sparseReader{h: h}
		more := gnuMore
		at, sized := gnuSparse, b[gnuSize:gnuSize+12]
		if string(b[257:263]) == "ustar\x00" && string(b[508:512]) == "tar\x00" {
			at, sized, more = starSparse, b[starSize:starSize+12], starMore
		}
		if r.size, err = numeric(sized); err != nil {
			return nil, nil, true, fmt.Errorf("the size of a sparse file is not a number: %w", syscall.EBADMSG)
		}
		// star puts the whole map behind the header if the header has no entries.
		if err = r.entries(b[at:], headerPairs); err == nil && b[more] == 0 && (more == gnuMore || len(r.pairs) > 0) {
			m, err = source.NewSparse(r.pairs, r.size, stored)
			return m, nil, true, err
		}
	}
	if r.size < 0 || r.size > source.MaxSparse {
		_, err = source.NewSparse(nil, r.size, 0)
	}
	return nil, r, true, err
}

// entries parses up to n pairs of offset and length, ending at an empty one.
func (r *sparseReader) entries(b []byte, n int) error {
	for ; n > 0 && b[0] != 0; n, b = n-1, b[pairSize:] {
		off, err := numeric(b[:12])
		if err != nil {
			return fmt.Errorf("an offset in its sparse map is not a number: %w", syscall.EBADMSG)
		}
		size, err := numeric(b[12:pairSize])
		if err != nil {
			return fmt.Errorf("a length in its sparse map is not a number: %w", syscall.EBADMSG)
		}
		r.pairs = append(r.pairs, off, size)
	}
	return nil
}

// add parses the next block of the map; done is true after the last one.
func (r *sparseReader) add(b []byte) (done bool, err error) {
	if r.total += source.BlockSize; r.total > MaxExtended {
		return false, fmt.Errorf("a sparse map of more than %d bytes; make the archive without --sparse: %w", MaxExtended, syscall.EFBIG)
	}
	if !r.text {
		return b[extMore] == 0, r.entries(b, extPairs)
	}
	r.used += source.BlockSize
	r.lines = append(r.lines, b...)
	for r.want != 0 {
		line, rest, ok := bytes.Cut(r.lines, []byte{'\n'})
		if !ok {
			if len(r.lines) > source.BlockSize+20 {
				return false, fmt.Errorf("no number in its sparse map: %w", syscall.EBADMSG)
			}
			return false, nil
		}
		n, err := strconv.ParseInt(string(line), 10, 64)
		if err != nil || n < 0 {
			return false, fmt.Errorf("no number in its sparse map: %w", syscall.EBADMSG)
		}
		r.lines = rest
		if r.want < 0 {
			if r.want = 2 * n; n > MaxExtended {
				return false, fmt.Errorf("a sparse map of %d extents: make the archive without --sparse: %w", n, syscall.EFBIG)
			}
			continue
		}
		r.pairs, r.want = append(r.pairs, n), r.want-1
	}
	return true, nil
}

// MaxHeaders is the limit of all headers of one member, in bytes.
const MaxHeaders = 3*MaxExtended + 64*source.BlockSize

// SparseIn parses the map of the sparse member whose headers are head, at offset at. Headers without effect may
// precede them.
func SparseIn(head []byte, at int64) (*source.Sparse, error) {
	var g Parser
	g.Reset(at)
	for rest := head; len(rest) >= source.BlockSize; rest = rest[source.BlockSize:] {
		step, err := g.Add(rest[:source.BlockSize])
		if err != nil {
			return nil, err
		}
		if step == Member && len(rest) == source.BlockSize && g.Item.Sparse != nil {
			return g.Item.Sparse, nil
		}
		if step == Skip {
			g.Reset(g.Pos())
		} else if step != More {
			break
		}
	}
	return nil, fmt.Errorf("at offset %d: not the headers of a sparse member: %w", at, syscall.EBADMSG)
}
