package dataset

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// verification is one verification of this node's part of a dataset.
type verification struct {
	v     *Verifier
	table table
	fill  *fill.Fill // nil if the dataset has no fill
	q     *verifyRequest
	m     cluster.Map
	only  map[metadata.Ino]bool // empty means all files

	overflow *overflowFiles // nil if overflow is not read
	pace     *rate.Bucket   // pace of a scrub, which reads only this node's files; nil: not a scrub

	// The journal has the checksums of files that were fetched after the manifest was published: of whole files, and of
	// this node's pieces of others. The manifest has the checksums of chunks that were staged in a single pass.
	whole  map[metadata.Ino][16]byte
	pieces map[metadata.Ino][]fill.PieceSum

	mu   sync.Mutex
	res  VerifyResult // guarded by mu
	sums []string     // guarded by mu; one line per file
}

// verifyAtOnce is how many files a node reads concurrently.
const verifyAtOnce = 4

// run verifies this node's files of a dataset.
func (v *Verifier) run(ctx context.Context, q *verifyRequest) (*VerifyResult, error) {
	return v.runPaced(ctx, q, nil)
}

// runPaced is run at a limited pace, over this node's files alone. With a nil pace it is the same as run.
func (v *Verifier) runPaced(ctx context.Context, q *verifyRequest, pace *rate.Bucket) (*VerifyResult, error) {
	x, ok := v.tables.get(q.Dataset)
	if !ok {
		return nil, fmt.Errorf("verify: dataset %d is not here: %w", q.Dataset, syscall.ENOENT)
	}
	r := &verification{v: v, table: x, q: q, m: v.n.View().Map, only: make(map[metadata.Ino]bool), pace: pace}
	r.fill, _ = v.fills.get(q.Dataset)
	for _, ino := range q.Only {
		r.only[ino] = true
	}
	if err := r.readJournal(); err != nil {
		return nil, err
	}
	err := r.files(ctx)
	if err == nil && q.SHA256 {
		err = r.writeSums()
	}
	return &r.res, err
}

func (r *verification) files(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(verifyAtOnce)
	if r.fill != nil && r.q.Source {
		r.overflow = newOverflowFiles(ctx, r, r.fill)
	}
	seen := make(map[metadata.Ino]bool) // for files with several names
	err := r.table.table.Each(func(path string, a metadata.Attr) bool {
		if len(r.only) == 0 || r.only[a.Ino] {
			r.begin(ctx, g, path, a, seen[a.Ino])
		}
		if a.Nlink > 1 {
			seen[a.Ino] = true
		}
		return ctx.Err() == nil
	})
	if e := r.overflow.wait(); err == nil {
		err = e
	}
	if e := g.Wait(); err == nil {
		err = e
	}
	return err
}

// begin starts to verify this node's bytes of a file. again says that the file was seen under another name.
func (r *verification) begin(ctx context.Context, g *errgroup.Group, path string, a metadata.Attr, again bool) {
	order := r.m.Order(a.Ino, a.Layout)
	if fill.IsOverflow(&a) && r.overflow != nil && (!again || r.q.SHA256) {
		r.overflow.add(path, a, false)
	}
	for _, p := range r.pieces[a.Ino] {
		if !again {
			g.Go(func() error { return r.piece(ctx, path, p) })
		}
	}
	if !again {
		for _, p := range r.v.fills.replicas.Pieces(a.Ino) {
			g.Go(func() error { return r.replica(ctx, path, p) })
		}
	}
	mine := len(order) > 0 && r.m.Holder(a.Ino, order[0]) == r.v.n.Self() && (!again || r.q.SHA256)
	if r.pace != nil && (a.Layout.Kind != metadata.Local || r.fill != nil && !r.fill.Stored(a.Ino)) {
		return
	}
	switch {
	case mine && a.Layout.Kind == metadata.Local && r.fill != nil && r.fill.Overflowed(a.Ino):
		r.ownOverflow(path, a)
	case mine:
		g.Go(func() error { return r.file(ctx, path, a, order) })
	case !again && a.Layout.Kind == metadata.Local && r.fill != nil && r.fill.Stored(a.Ino):
		g.Go(func() error { return r.standIn(ctx, path, a) })
	}
}

// standIn compares a file fetched while its own node was lost: it serves reads if that node is lost again.
func (r *verification) standIn(ctx context.Context, path string, a metadata.Attr) error {
	if err := r.pace.Take(ctx, a.Size); err != nil {
		return err
	}
	want, err := r.sum(a.Ino)
	if err != nil {
		return err
	}
	c := stagein.NewChecker(want, a.Size)
	if err = r.read(ctx, a, nil, c); err == nil {
		err = c.Check()
	}
	if err != nil && ctx.Err() == nil {
		r.bad(path, a.Ino, fmt.Errorf("fetched while its node was lost: %w", err))
	}
	return ctx.Err()
}

// ownOverflow handles an overflow file that this node owns: it is read from the source, or only counted.
func (r *verification) ownOverflow(path string, a metadata.Attr) {
	if r.overflow != nil {
		r.overflow.add(path, a, true)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.Overflow++
}

// readJournal reads the checksums that the manifest does not have.
func (r *verification) readJournal() error {
	if r.fill == nil {
		return nil
	}
	sums, err := r.fill.Sums()
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	r.whole, r.pieces = make(map[metadata.Ino][16]byte), make(map[metadata.Ino][]fill.PieceSum)
	for _, p := range sums {
		if p.Whole {
			r.whole[p.Ino] = p.Sum
		} else {
			r.pieces[p.Ino] = append(r.pieces[p.Ino], p)
		}
	}
	return nil
}

// piece compares this node's piece of a file with its checksum.
func (r *verification) piece(ctx context.Context, path string, p fill.PieceSum) error {
	if err := r.pace.Take(ctx, p.Len); err != nil {
		return err
	}
	err := comparePiece(ctx, r.v.store, p)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r.bad(path, p.Ino, fmt.Errorf("from offset %d of the object: %w", p.Off, err))
	}
	return nil
}

// replica compares this node's replica of a piece with its checksum.
func (r *verification) replica(ctx context.Context, path string, p fill.PieceID) error {
	fills := r.v.fills
	err := fills.replicas.Compare(ctx, p)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, replicas.ErrNotHere): // the replica was given back just now
		return nil
	case err != nil:
		r.bad(path, p.Ino, fmt.Errorf("replica: %w", err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Chunk == 0 {
		r.res.Replicas++
	}
	return nil
}

func (r *verification) bad(path string, ino metadata.Ino, err error) {
	r.note(BadFile{Path: source.Name(path), Ino: ino, Error: err.Error()})
}

// note records a bad file once.
func (r *verification) note(f BadFile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Host = r.v.host()
	r.res.add(VerifyResult{Bad: 1, BadFiles: []BadFile{f}})
	if len(r.res.BadFiles) > maxBadFiles {
		r.res.BadFiles = r.res.BadFiles[:maxBadFiles]
	}
}

// sum returns the checksum of a whole file; zeros if it has none.
func (r *verification) sum(ino metadata.Ino) ([16]byte, error) {
	sum, _, err := r.table.table.Record(ino)
	if sum == [16]byte{} {
		sum = r.whole[ino]
	}
	return sum, err
}

// file compares a file with its checksum. It returns only errors that stop the whole run.
func (r *verification) file(ctx context.Context, path string, a metadata.Attr, order []metadata.NodeID) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := r.pace.Take(ctx, a.Size); err != nil {
		return err
	}
	want, err := r.sum(a.Ino)
	if err != nil {
		return err
	}
	chunks, err := r.table.table.Chunks(a.Ino)
	if err != nil {
		return err
	}
	// Compare piece by piece if each piece has a checksum, if the file has none, or if a node with some of the pieces
	// is lost.
	inPieces := (len(chunks) > 0 || want == [16]byte{} || r.lost(order)) && len(r.pieces[a.Ino]) > 0
	c := stagein.NewChecker(want, a.Size)
	var sha hash.Hash
	w := io.Writer(c)
	if r.q.SHA256 {
		sha = sha256.New()
		w = io.MultiWriter(c, sha)
	}
	if !inPieces || r.q.SHA256 {
		if err = r.read(ctx, a, order, w); err == nil {
			err = c.Check()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r.bad(path, a.Ino, err)
	}
	r.count(path, a.Size, !c.Summed() && !inPieces && a.Size > 0, sha, err)
	return nil
}

// count counts a file that was read.
func (r *verification) count(path string, size int64, unsummed bool, sha hash.Hash, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.Files++
	r.res.Bytes += size
	if unsummed {
		r.res.Unsummed++
	}
	if err == nil && sha != nil {
		r.sums = append(r.sums, sumLine(hex.EncodeToString(sha.Sum(nil)), path))
	}
}

// lost reports whether one of the nodes does not serve.
func (r *verification) lost(order []metadata.NodeID) bool {
	return slices.ContainsFunc(order, func(id metadata.NodeID) bool { n, _ := r.m.Node(id); return !node.Serving(n) })
}

// read writes all bytes of a file to w, this node's bytes from the drive.
func (r *verification) read(ctx context.Context, a metadata.Attr, order []metadata.NodeID, w io.Writer) error {
	if a.Size == 0 {
		return nil
	}
	if a.Layout.Kind == metadata.Local {
		return readObject(ctx, r.v.store, a.Ino, 0, a.Size, w)
	}
	buf := make([]byte, wire.MaxData)
	for pos := int64(0); pos < a.Size; {
		n := min(a.Size-pos, int64(len(buf)))
		for _, sp := range datapath.Spans(a.Layout.Chunk(), order, pos, n) {
			b := buf[:sp.Len]
			if err := r.readSpan(ctx, a, order, sp, b); err != nil {
				return err
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		pos += n
	}
	return nil
}

func (r *verification) readSpan(ctx context.Context, a metadata.Attr, order []metadata.NodeID, sp datapath.Span, b []byte) error {
	id := r.m.Holder(a.Ino, sp.Node)
	if id != sp.Node {
		sp.Off = datapath.StandIn(a.Layout.Chunk(), len(order), slices.Index(order, sp.Node), a.Size, sp.Off)
	}
	from := r.v.local
	if id != r.v.n.Self() {
		from = r.v.stores.Of(id)
	}
	got, err := from.ReadAt(ctx, a.Ino, b, sp.Off)
	if err == nil && got < len(b) {
		err = fmt.Errorf("%d bytes of %d at offset %d are there: %w", got, len(b), sp.Pos, syscall.EIO)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.v.hosts[id], err)
	}
	return nil
}

// sumLine formats a line like sha256sum: if the name has a backslash or a line feed, these are escaped and the line
// begins with a backslash.
func sumLine(sum, path string) string {
	esc := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`).Replace(path)
	if esc != path {
		sum = `\` + sum
	}
	return sum + "  " + esc + "\n"
}

func (r *verification) writeSums() error {
	f, err := os.Create(r.v.files.Path(r.q.Dataset, SumsFile(r.v.n.Self())))
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	w := bufio.NewWriter(f)
	for _, l := range r.sums {
		if _, err = w.WriteString(l); err != nil {
			break
		}
	}
	if err == nil {
		err = w.Flush()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// Sums fetches the checksum lists of the last verification of a dataset, and returns their paths, node after node.
func (v *Verifier) Sums(ctx context.Context, name string) ([]string, error) {
	ds, ok := v.n.View().Active(name)
	if !ok {
		return nil, fmt.Errorf("no dataset is named %q: %w", name, syscall.EINVAL)
	}
	var paths []string
	for _, id := range node.Participants(v.n.View().Map) {
		path := v.files.Path(ds.ID, SumsFile(id))
		if id != v.n.Self() {
			if err := v.files.Fetch(ctx, id, ds.ID, SumsFile(id), path); err != nil {
				return nil, err
			}
		}
		paths = append(paths, path)
	}
	return paths, nil
}
