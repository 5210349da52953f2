package fill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// adopt makes the journal of a dataset that was staged before its manifest was
// published, unless there is one: all that the layouts give this node is here, if
// it was there all the time. The sums of that are in the manifest.
func (f *Fill) adopt() error {
	path := f.cfg.Journal
	if !f.cfg.Origins.Staged {
		return nil
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	err = f.adopted(file)
	if e := file.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

func (f *Fill) adopted(file io.Writer) error {
	w := bufio.NewWriterSize(file, 1<<18)
	_, bad := w.Write(journalHeader(f.cfg.Digest, f.cfg.Boot))
	m, _ := f.cfg.Watch()
	if !m.Throughout(f.cfg.Self, f.cfg.Origins.Since) {
		return errors.Join(bad, w.Flush())
	}
	err := f.cfg.Files.Located(func(_ manifest.Origin, a metadata.Attr) bool {
		s := placementOf(m, a)
		for chunk := range s.pieces() {
			if bad == nil && len(s.order) > 0 && s.owner(chunk) == f.cfg.Self {
				_, bad = w.Write(entryOf(PieceID{a.Ino, chunk}, [16]byte{}))
			}
		}
		return bad == nil
	})
	return errors.Join(bad, err, w.Flush())
}

// unpack reads a compressed tar up to the last of parts, and stores them here.
func (f *Fill) unpack(src *archive.Content, begin unpacker, parts []*item) error {
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	u := begin(ctx)
	defer u.Close()
	for next := 0; next < len(parts); {
		p, err := u.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: unpacks to less than it did: %w", src.Name, syscall.ESTALE)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", src.Name, err)
		}
		next, err = f.keep(parts, next, p)
		p.Release()
		if err != nil {
			return err
		}
	}
	return src.Unchanged()
}

// keep stores what p has of parts, from the first one on that is not whole, and
// says which is then the first.
func (f *Fill) keep(parts []*item, next int, p *source.Piece) (int, error) {
	for i := next; i < len(parts) && parts[i].begin() < p.End(); i++ {
		x := parts[i]
		if x.sparse {
			if whole, err := f.keepSparse(x, p); err != nil {
				return next, err
			} else if !whole {
				continue
			}
		} else if from, end := max(x.at, p.Off), min(x.end(), p.End()); from < end {
			b := p.B[from-p.Off : end-p.Off]
			x.sum.Write(b)
			if err := f.put(f.ctx, x.Ino, b, x.off+from-x.at); err != nil {
				return next, err
			}
		}
		if x.end() > p.End() {
			continue // never a sparse one
		}
		if err := f.commitOne(x); err != nil {
			return next, err
		}
		next = i + 1
	}
	return next, nil
}

// commitOne records a piece that came with another, and ends the waits for it.
func (f *Fill) commitOne(x *item) error {
	if f.present.has(x.PieceID) {
		return nil
	}
	if err := f.journal.add(x.PieceID, x.sum.Sum128()); err != nil {
		return err
	}
	f.markPresent(x.PieceID, x.n)
	f.mu.Lock()
	fl := f.flights[x.PieceID]
	f.mu.Unlock()
	if fl != nil {
		f.finish(x.PieceID, fl, nil)
	}
	return nil
}
