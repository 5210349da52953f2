package daemon

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// VerifySpec says which dataset is read again. It is the body of POST /v1/verify.
type VerifySpec struct {
	Name   string `json:"name"`
	SHA256 bool   `json:"sha256,omitempty"` // list the SHA-256 of every file, too
	Keep   bool   `json:"keep,omitempty"`   // what is bad is not fetched again
	Source bool   `json:"source,omitempty"` // read from the source what is there alone, too
}

// VerifyResult is what was found.
type VerifyResult struct {
	Files    int64     `json:"files"`     // that were read
	Bytes    int64     `json:"bytes"`     // of them
	Unsummed int64     `json:"unsummed"`  // of them that have no checksum
	Bad      int64     `json:"bad"`       // that are not what they were, or cannot be read
	Mended   int64     `json:"mended"`    // that were so, and are right since they were fetched again
	Spilled  int64     `json:"spilled"`   // that are in the source alone, and were not read
	BadFiles []BadFile `json:"bad_files"` // the first of both
}

// BadFile is a file that is not what it was.
type BadFile struct {
	Path   source.Name  `json:"path"` // in the dataset
	Ino    metadata.Ino `json:"ino,omitempty"`
	Host   string       `json:"host"`
	Error  string       `json:"error"`
	Mended bool         `json:"mended,omitempty"` // it was fetched again, and is right
	Source bool         `json:"source,omitempty"` // it is in the source alone
}

// maxBadFiles is how many files a node names, which are those that are mended.
const maxBadFiles = 1000

// add adds what a node has found. A file of which several nodes have a bad piece
// is one.
func (r *VerifyResult) add(o VerifyResult) {
	r.Files, r.Bytes, r.Unsummed, r.Bad = r.Files+o.Files, r.Bytes+o.Bytes, r.Unsummed+o.Unsummed, r.Bad+o.Bad
	r.Spilled += o.Spilled
	for _, f := range o.BadFiles {
		if slices.ContainsFunc(r.BadFiles, func(was BadFile) bool { return was.Ino == f.Ino }) {
			r.Bad--
			continue
		}
		r.BadFiles = append(r.BadFiles, f)
	}
}

// verifyReq is a node's share of it.
type verifyReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	SHA256  bool               `json:"sha256,omitempty"`
	Source  bool               `json:"source,omitempty"`
	Only    []metadata.Ino     `json:"only,omitempty"` // none is all
}

func sumsFile(node metadata.NodeID) string { return "sums-" + strconv.Itoa(int(node)) }

// Verify has all nodes read again what they have of a dataset, in parallel, and
// compare it with the checksums that were taken when it was staged. Of a
// striped file whose chunks have no checksums the first node of the stripe reads all; what a lost node had is
// read by those that stand in for it. What is bad is fetched from its source
// again, unless s says not to. What is in the source alone is only read if s says so.
func (d *Daemon) Verify(ctx context.Context, s VerifySpec) (VerifyResult, error) {
	ds, ok := active(d.View(), s.Name)
	x, here := d.table.get(ds.ID)
	if !ok || !here || ds.Phase != cluster.Sealed {
		return VerifyResult{}, fmt.Errorf("no dataset named %q is sealed: bivouac status tells what there is: %w", s.Name, syscall.EINVAL)
	}
	q := verifyReq{Dataset: ds.ID, SHA256: s.SHA256, Source: s.Source}
	res, err := d.verifyAll(ctx, x, q)
	if !s.Source {
		res.Spilled += x.summary.Spilled.Files
	}
	if err != nil || res.Bad == 0 || s.Keep {
		return res, err
	}
	err = d.mend(ctx, ds, x, &res)
	if err == nil && s.SHA256 && res.Mended > 0 {
		_, err = d.verifyAll(ctx, x, q) // what is right now is listed, too
	}
	return res, err
}

func (d *Daemon) verifyAll(ctx context.Context, x dataset, q verifyReq) (VerifyResult, error) {
	var mu sync.Mutex
	var sum VerifyResult // guarded by mu
	for _, n := range d.View().Map.Nodes {
		// What one has that is Down, others have.
		if files := x.summary.PerNode[n.ID].Files; files > 0 && !node.Serving(n) && n.State != cluster.Down {
			sum.Bad += files
			sum.BadFiles = append(sum.BadFiles, BadFile{Host: n.Host, Error: fmt.Sprintf("%d files are on this node, which is %v", files, n.State)})
		}
	}
	t, err := tasks.NewRequest(fmt.Sprintf("verify-%d-%d", d.job.Self, now()), kindVerify, q)
	if err != nil {
		return sum, err
	}
	err = d.tasks.RunAll(ctx, t, func(_ metadata.NodeID, s tasks.State) {
		var r VerifyResult
		if ok, err := s.Decode(&r); ok && err == nil {
			mu.Lock()
			defer mu.Unlock()
			sum.add(r)
		}
	})
	return sum, err
}

// verifier reads what one node has of a dataset.
type verifier struct {
	d     *Daemon
	ds    metadata.DatasetID
	table *manifest.Table
	m     cluster.Map
	sha   bool
	only  map[metadata.Ino]bool // none is all

	// What is in the source alone, and falls to this node; nil is that it is not read.
	spilled *spilledFiles

	// What was fetched after the manifest was published has its sums in the
	// journal: of whole files, and of this node's pieces of others. Those of the
	// chunks of what was staged while it was read are in the manifest.
	whole  map[metadata.Ino][16]byte
	pieces map[metadata.Ino][]stagein.PieceSum

	mu   sync.Mutex
	res  VerifyResult // guarded by mu
	sums []string     // guarded by mu; a line for each file
}

// verifyAtOnce is how many files a node reads at a time.
const verifyAtOnce = 4

func (d *Daemon) prepareVerify(_ metadata.NodeID, q *verifyReq) (tasks.Task, error) {
	var result atomic.Pointer[VerifyResult]
	return tasks.Task{
		Run: func(ctx context.Context) error {
			r, err := d.verifyShare(ctx, *q)
			result.Store(r)
			return err
		},
		Detail: func(bool) any { return result.Load() },
	}, nil
}

func (d *Daemon) verifyShare(ctx context.Context, q verifyReq) (*VerifyResult, error) {
	x, ok := d.table.get(q.Dataset)
	if !ok {
		return nil, fmt.Errorf("verify: dataset %d is not here: %w", q.Dataset, syscall.ENOENT)
	}
	v := &verifier{d: d, ds: q.Dataset, table: x.table, m: d.View().Map, sha: q.SHA256, only: make(map[metadata.Ino]bool)}
	for _, ino := range q.Only {
		v.only[ino] = true
	}
	if err := v.readJournal(); err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(verifyAtOnce)
	f, _ := d.fill.get(q.Dataset)
	if f != nil && q.Source {
		v.spilled = newSpilledFiles(ctx, v, f)
	}
	seen := make(map[metadata.Ino]bool) // files with several names
	err := x.table.Each(func(path string, a metadata.Attr) bool {
		if len(v.only) > 0 && !v.only[a.Ino] {
			return ctx.Err() == nil
		}
		order := v.m.Order(a.Ino, a.Layout)
		again := seen[a.Ino]
		if a.Nlink > 1 {
			seen[a.Ino] = true
		}
		if stagein.Spilled(&a) && v.spilled != nil && (!again || v.sha) {
			v.spilled.add(path, a, false)
		}
		for _, p := range v.pieces[a.Ino] {
			if !again {
				g.Go(func() error { return v.piece(ctx, path, p) })
			}
		}
		mine := len(order) > 0 && v.m.Holder(a.Ino, order[0]) == d.job.Self && (!again || v.sha)
		switch {
		case mine && a.Layout.Kind == metadata.Local && f != nil && f.Displaced(a.Ino):
			v.displaced(path, a)
		case mine:
			g.Go(func() error { return v.file(ctx, path, a, order) })
		}
		return ctx.Err() == nil
	})
	if e := v.spilled.wait(); err == nil {
		err = e
	}
	if e := g.Wait(); err == nil {
		err = e
	}
	if err == nil && v.sha {
		err = v.writeSums()
	}
	return &v.res, err
}

// displaced is for a file that this node is to have and has no room for.
func (v *verifier) displaced(path string, a metadata.Attr) {
	if v.spilled != nil {
		v.spilled.add(path, a, true)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.res.Spilled++
}

// readJournal finds the sums that the manifest does not have.
func (v *verifier) readJournal() error {
	f, _ := v.d.fill.get(v.ds)
	if f == nil {
		return nil
	}
	sums, err := f.Sums()
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	v.whole, v.pieces = make(map[metadata.Ino][16]byte), make(map[metadata.Ino][]stagein.PieceSum)
	for _, p := range sums {
		if p.Whole {
			v.whole[p.Ino] = p.Sum
		} else {
			v.pieces[p.Ino] = append(v.pieces[p.Ino], p)
		}
	}
	return nil
}

// piece reads this node's piece of a file and compares it.
func (v *verifier) piece(ctx context.Context, path string, p stagein.PieceSum) error {
	err := v.d.comparePiece(ctx, p)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		v.bad(path, p.Ino, fmt.Errorf("from offset %d of the object: %w", p.Off, err))
	}
	return nil
}

// bad takes note of a file that is not what it was, once.
func (v *verifier) bad(path string, ino metadata.Ino, err error) {
	v.note(BadFile{Path: source.Name(path), Ino: ino, Error: err.Error()})
}

func (v *verifier) note(f BadFile) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f.Host = v.d.job.Hosts[v.d.job.Self]
	v.res.add(VerifyResult{Bad: 1, BadFiles: []BadFile{f}})
	if len(v.res.BadFiles) > maxBadFiles {
		v.res.BadFiles = v.res.BadFiles[:maxBadFiles]
	}
}

// file reads a file and compares it. Only an error of the job's own is one.
func (v *verifier) file(ctx context.Context, path string, a metadata.Attr, order []metadata.NodeID) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	want, _, err := v.table.Record(a.Ino)
	if err != nil {
		return err
	}
	chunks, err := v.table.Chunks(a.Ino)
	if err != nil {
		return err
	}
	if want == [16]byte{} {
		want = v.whole[a.Ino]
	}
	// Pieces are compared one by one where each has a sum, there is none of all, or a
	// node that had some of them is lost.
	inPieces := (len(chunks) > 0 || want == [16]byte{} || v.lost(order)) && len(v.pieces[a.Ino]) > 0
	c := stagein.NewChecker(want, a.Size)
	var sha hash.Hash
	w := io.Writer(c)
	if v.sha {
		sha = sha256.New()
		w = io.MultiWriter(c, sha)
	}
	if !inPieces || v.sha {
		if err = v.read(ctx, a, order, w); err == nil {
			err = c.Check()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		v.bad(path, a.Ino, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.res.Files++
	v.res.Bytes += a.Size
	if !c.Summed() && !inPieces && a.Size > 0 {
		v.res.Unsummed++
	}
	if err == nil && sha != nil {
		v.sums = append(v.sums, sumLine(hex.EncodeToString(sha.Sum(nil)), path))
	}
	return nil
}

// lost reports whether one of the nodes does not serve.
func (v *verifier) lost(order []metadata.NodeID) bool {
	return slices.ContainsFunc(order, func(id metadata.NodeID) bool { n, _ := v.m.Node(id); return !node.Serving(n) })
}

// read gives all bytes of a file to w, from the drives where they are here.
func (v *verifier) read(ctx context.Context, a metadata.Attr, order []metadata.NodeID, w io.Writer) error {
	if a.Size == 0 {
		return nil
	}
	if a.Layout.Kind == metadata.Local {
		return v.d.readObject(ctx, a.Ino, 0, a.Size, w)
	}
	buf := make([]byte, wire.MaxData)
	for pos := int64(0); pos < a.Size; {
		n := min(a.Size-pos, int64(len(buf)))
		for _, sp := range datapath.Spans(a.Layout.Chunk(), order, pos, n) {
			b := buf[:sp.Len]
			node := v.m.Holder(a.Ino, sp.Node)
			if node != sp.Node {
				sp.Off = datapath.StandIn(a.Layout.Chunk(), len(order), slices.Index(order, sp.Node), a.Size, sp.Off)
			}
			from := v.d.Data()
			if node != v.d.job.Self {
				from = v.d.cfg.Data(v.d.peers.To(node))
			}
			got, err := from.ReadAt(ctx, a.Ino, b, sp.Off)
			if err == nil && got < len(b) {
				err = fmt.Errorf("%d bytes of %d at offset %d are there: %w", got, len(b), sp.Pos, syscall.EIO)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", v.d.job.Hosts[node], err)
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		pos += n
	}
	return nil
}

// readObject reads from an object of this node, and from the drive: what the page
// cache has may be better than what the drive has.
func (d *Daemon) readObject(ctx context.Context, ino metadata.Ino, off, n int64, w io.Writer) error {
	f, err := d.data.Open(ino)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	fd := int(f.Fd())
	_ = unix.Fdatasync(fd)                           // what is not written yet stays in the cache
	_ = unix.Fadvise(fd, off, n, unix.FADV_DONTNEED) // advice
	got, err := io.Copy(w, readerOf(ctx, io.NewSectionReader(f, off, n)))
	if err == nil && got != n {
		err = fmt.Errorf("%d bytes are there, not %d: %w", got, n, syscall.EIO)
	}
	return err
}

// readerOf reads r until ctx ends.
func readerOf(ctx context.Context, r io.Reader) io.Reader { return &ctxReader{ctx, r} }

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// sumLine is a line as sha256sum writes it: a name with a backslash or a line
// feed in it is escaped, and the line begins with a backslash.
func sumLine(sum, path string) string {
	esc := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`).Replace(path)
	if esc != path {
		sum = `\` + sum
	}
	return sum + "  " + esc + "\n"
}

func (v *verifier) writeSums() error {
	f, err := os.Create(filepath.Join(v.d.stageDir(v.ds), sumsFile(v.d.job.Self)))
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	w := bufio.NewWriter(f)
	for _, l := range v.sums {
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
