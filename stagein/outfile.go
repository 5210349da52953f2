package stagein

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// temporary is the name under which rel is written. It is the same each time,
// so that what a run that was killed left behind is written over by the next.
func temporary(rel string) string {
	h := fnv.New64a()
	_, _ = io.WriteString(h, path.Base(rel)) // cannot fail
	return path.Join(path.Dir(rel), fmt.Sprintf(".bivouac-%016x.tmp", h.Sum64()))
}

func (o *out) symlink(ctx context.Context, rel string, a metadata.Attr) error {
	target, err := o.cfg.Store.Readlink(ctx, a.Ino)
	if err != nil {
		return err
	}
	tmp := temporary(rel)
	if err := o.root.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := o.root.Symlink(target, tmp); err != nil {
		return err
	}
	return o.rename(tmp, rel)
}

func (o *out) rename(tmp, rel string) error {
	if err := o.root.Rename(tmp, rel); err != nil {
		_ = o.root.Remove(tmp) // the first error counts
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dirs[path.Dir(rel)] = true
	return nil
}

// syncDirs makes the renames durable.
func (o *out) syncDirs() {
	for dir := range o.dirs {
		d, err := o.root.Open(dir)
		if err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
		if err != nil {
			o.fail(dir+"/", err)
		}
	}
}

func (o *out) file(ctx context.Context, rel string, a metadata.Attr) error {
	tmp := temporary(rel)
	if err := o.root.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := o.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = o.fill(ctx, f, tmp, a)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		_ = o.root.Remove(tmp) // the first error counts
		return err
	}
	return o.rename(tmp, rel)
}

// fill writes the content and makes it durable.
func (o *out) fill(ctx context.Context, f *os.File, tmp string, a metadata.Attr) error {
	var buf []byte
	select {
	case buf = <-o.bufs:
	default:
		buf = make([]byte, wire.MaxData)
	}
	defer func() { o.bufs <- buf }()
	if err := o.copy(ctx, f, a, buf); err != nil {
		return err
	}
	if err := f.Truncate(a.Size); err != nil { // a hole at the end
		return err
	}
	now, err := o.cfg.Store.Getattr(ctx, a.Ino)
	if err != nil {
		return err
	}
	if now.Size != a.Size || now.Mtime != a.Mtime {
		return fmt.Errorf("was written to while it was copied: %w", syscall.EBUSY)
	}
	if err := f.Chmod(os.FileMode(a.Mode & 0o777)); err != nil {
		return err
	}
	if err := o.root.Chtimes(tmp, a.Atime.Time(), a.Mtime.Time()); err != nil {
		return err
	}
	return f.Sync()
}

func (o *out) copy(ctx context.Context, f *os.File, a metadata.Attr, buf []byte) error {
	for off := int64(0); off < a.Size; {
		p := buf[:min(int64(len(buf)), a.Size-off)]
		n, err := o.cfg.Read(ctx, a, p, off)
		if err != nil {
			return fmt.Errorf("read at offset %d: %w", off, err)
		}
		if n < len(p) {
			return fmt.Errorf("ends at offset %d of %d: %w", off+int64(n), a.Size, syscall.EBUSY)
		}
		if !zeros(p) { // holes stay holes
			if _, err := f.WriteAt(p, off); err != nil {
				return err
			}
		}
		off += int64(n)
	}
	return nil
}

func zeros(p []byte) bool {
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}
