package stagein

import (
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// recorder writes the records of a part and numbers its inodes.
type recorder struct {
	ds   metadata.DatasetID
	part uint16
	base uint16 // part, whichever try it is

	mu  sync.Mutex
	w   *manifest.Writer // guarded by mu
	out io.Writer        // what w writes to
	n   uint64           // guarded by mu; records
	seq uint64           // guarded by mu
}

func newRecorder(s *Share, w io.Writer) *recorder {
	return &recorder{
		ds: s.cfg.Plan.Dataset, part: uint16(s.cfg.Part.number(len(s.cfg.Plan.Parts))), base: s.cfg.Part.Index,
		w: manifest.NewWriter(w), out: w,
	}
}

// across returns the inode of the member that begins in this region of a tar and goes on in the next one. There is at most
// one. It is the same in every try, as nodes of later regions may have stored their parts of it already.
func (r *recorder) across() metadata.Ino { return metadata.SealedIno(r.ds, r.base, 0) }

// ino returns the next inode. Numbers begin at 1; 0 is that of across.
func (r *recorder) ino() (metadata.Ino, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seq >= math.MaxUint32 {
		return 0, fmt.Errorf("more than %d things in one part: %w", r.seq, syscall.EOVERFLOW)
	}
	r.seq++
	return metadata.SealedIno(r.ds, r.part, uint32(r.seq)), nil
}

func (r *recorder) add(rec manifest.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	return r.w.Add(rec)
}

// skip writes a line about something that is left out.
func (r *recorder) skip(w io.Writer, line []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := w.Write(line)
	return err
}

func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.w.Close()
}

// keptBits is the bits of a mode that are kept. Set-user-ID and set-group-ID go, as the owner changes.
const keptBits = source.TypeMask | 0o1777

// recordOf makes the record of an item.
func (s *Share) recordOf(it *source.Item, o *object) manifest.Record {
	rec := manifest.Record{Path: it.Path, Target: it.Target, Hardlink: it.Hardlink}
	t := it.Mtime
	rec.Attr = metadata.Attr{
		Mode: it.Mode & keptBits, Nlink: 1, UID: s.cfg.Plan.UID, GID: s.cfg.Plan.GID,
		Size: it.Size, Atime: t, Mtime: t, Ctime: t,
	}
	if it.Is(source.TypeSymlink) {
		rec.Attr.Size = int64(len(it.Target))
	}
	if o != nil {
		rec.Attr.Ino, rec.Attr.Layout = o.ino, o.layout
	}
	switch p := s.cfg.Plan; {
	case it.Hardlink == "" && it.Is(source.TypeRegular) && it.Size > 0:
		rec.From = s.origin(it)
	case p.OnError == OnErrorSkip && it.Off > 0:
		rec.From = manifest.Origin{Source: it.Source + p.Number, Off: it.Off} // for the report, if it is left out
	}
	return rec
}

// origin returns where an item's bytes are; in a compressed tar, in what that unpacks to.
func (s *Share) origin(it *source.Item) manifest.Origin {
	p := s.cfg.Plan
	switch {
	case p.Kind == source.Dir:
		return manifest.Origin{Path: it.Path}
	case it.Zip != (source.ZipMember{}):
		return archive.ZipOrigin(it, it.Source+p.Number)
	}
	return manifest.Origin{Source: it.Source + p.Number, Off: it.Off, Head: it.Head, Check: it.Check, Sparse: it.Sparse != nil}
}

// hasData reports whether a record is of a file with data.
func hasData(rec *manifest.Record) bool {
	return rec.Hardlink == "" && rec.Attr.Mode&source.TypeMask == source.TypeRegular && rec.Attr.Size > 0
}

// place numbers an item and says where its bytes go.
func (s *Share) place(it *source.Item) (*object, error) {
	ino, err := s.rec.ino()
	if err != nil {
		return nil, err
	}
	return s.placeAs(it, ino)
}

// placeAs says where the bytes of the item that has the number ino go.
func (s *Share) placeAs(it *source.Item, ino metadata.Ino) (*object, error) {
	o := &object{path: it.Path, ino: ino}
	switch {
	case !it.Is(source.TypeRegular):
	case it.Size > s.cfg.Plan.Stripe:
		o.layout = metadata.Layout{Kind: metadata.Striped, ChunkSize: stripeChunk, Epoch: s.cfg.Map.Epoch}
	case len(s.cfg.Part.Items) > 0 && s.cfg.Plan.Kind == source.Dir && s.cfg.Part.Try == 0:
		o.layout = metadata.Layout{Kind: metadata.Local, Node: s.cfg.Part.Node} // the plan has chosen the owner
	case s.owner != nil && it.Size > 0:
		o.layout = metadata.Layout{Kind: metadata.Local, Node: s.owner(it)}
	default:
		o.layout = metadata.Layout{Kind: metadata.Local, Node: s.cfg.Map.FileOwner(it.Path)}
	}
	return o, s.order(o)
}

// stripeChunk is the chunk size of striped sealed files, in bytes.
const stripeChunk = 8 << 20

// order finds the nodes of an object.
func (s *Share) order(o *object) error {
	if o.layout.Kind == metadata.Striped && o.layout.Epoch > s.cfg.Map.Epoch {
		return fmt.Errorf("%q is striped by the map of epoch %d, this node has %d: %w",
			o.path, o.layout.Epoch, s.cfg.Map.Epoch, syscall.ESTALE)
	}
	o.order = s.cfg.Map.Order(o.ino, o.layout)
	if len(o.order) == 0 {
		return fmt.Errorf("%q: no node to put it on: %w", o.path, syscall.EHOSTDOWN)
	}
	return nil
}
