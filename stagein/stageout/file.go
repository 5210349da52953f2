package stageout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

const temporaryPrefix = ".bivouac-"

// temporary returns the name under which a writer writes rel. It is the same each time, so that the next run overwrites
// what a killed run left behind.
func temporary(rel, writer string) string { return temporaryStem(rel) + temporarySuffix(writer) }

// temporaryOnce returns a name for one attempt of several nodes to copy rel, so that a late node never opens the file
// of another attempt.
func temporaryOnce(rel, writer string) string {
	return fmt.Sprintf("%s-%016x%s", temporaryStem(rel), rand.Uint64(), temporarySuffix(writer))
}

// temporaryStem is the prefix of all names under which rel is written.
func temporaryStem(rel string) string {
	return path.Join(path.Dir(rel), fmt.Sprintf("%s%016x", temporaryPrefix, hash(path.Base(rel))))
}

// temporarySuffix is the suffix of all names under which a writer writes.
func temporarySuffix(writer string) string { return fmt.Sprintf("-%016x.tmp", hash(writer)) }

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s) // cannot fail
	return h.Sum64()
}

func (o *out) symlink(ctx context.Context, rel string, a metadata.Attr) error {
	target, err := o.cfg.Store.Readlink(ctx, a.Ino)
	if err != nil {
		return err
	}
	if o.keptLink(rel, target) {
		return o.linkTime(rel, a)
	}
	o.changes(rel)
	tmp := temporary(rel, o.cfg.Writer)
	if err := o.removeStale(tmp); err != nil {
		return err
	}
	if err := o.root.Symlink(target, tmp); err != nil {
		return err
	}
	if err := o.linkTime(tmp, a); err != nil {
		_ = o.root.Remove(tmp) // the first error counts
		return err
	}
	return o.rename(tmp, rel)
}

// linkTime gives a symbolic link the times in a, if they differ and the filesystem supports that.
func (o *out) linkTime(rel string, a metadata.Attr) error {
	if info, err := o.root.Lstat(rel); err != nil || info.ModTime().Equal(a.Mtime.Time()) {
		return err
	}
	dir, err := o.root.Open(path.Dir(rel))
	if err != nil {
		return err
	}
	defer dir.Close() // read only
	times := []unix.Timespec{unix.NsecToTimespec(int64(a.Atime)), unix.NsecToTimespec(int64(a.Mtime))}
	err = unix.UtimesNanoAt(int(dir.Fd()), path.Base(rel), times, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	return err
}

func (o *out) rename(tmp, rel string) error {
	err := o.root.Rename(tmp, rel)
	if errors.Is(err, os.ErrNotExist) {
		return errTaken
	}
	if err != nil {
		_ = o.root.Remove(tmp) // the first error counts
		return err
	}
	return nil
}

// file copies a file. If a helper may still be writing, it copies everything again, to another file and without that
// helper, whose writes must not reach the file under its own name.
func (o *out) file(ctx context.Context, rel string, a metadata.Attr) error {
	o.changes(rel)
	for {
		if err := o.fileOnce(ctx, rel, a); ctx.Err() != nil || !errors.Is(err, ErrUnfinished) {
			return err
		}
	}
}

func (o *out) fileOnce(ctx context.Context, rel string, a metadata.Attr) error {
	tmp := temporary(rel, o.cfg.Writer)
	err := o.removeStale(tmp)
	if err == nil && o.shared(a) {
		tmp, err = temporaryOnce(rel, o.cfg.Writer), o.removeAttempts(rel)
	}
	if err != nil {
		return err
	}
	f, err := o.root.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = o.write(ctx, f, tmp, rel, a)
	mine := o.mineStill(f, tmp)
	err = cmp.Or(err, f.Close())
	switch {
	case !mine:
		return errTaken
	case err != nil:
		_ = o.root.Remove(tmp) // the first error counts
		return err
	}
	return o.rename(tmp, rel)
}

// errTaken reports that others took this writer for lost: its temporary file was removed or replaced.
var errTaken = fmt.Errorf("its temporary file in the target was removed or replaced while it was copied: %w", syscall.EBUSY)

// mineStill reports whether tmp still names f. It returns true if the target cannot tell.
func (o *out) mineStill(f *os.File, tmp string) bool {
	mine, err := f.Stat()
	if err != nil {
		return true
	}
	now, err := o.root.Lstat(tmp)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return os.SameFile(mine, now)
}

// write copies the content and syncs it.
func (o *out) write(ctx context.Context, f *os.File, tmp, rel string, a metadata.Attr) error {
	if err := f.Truncate(a.Size); err != nil { // for a hole at the end
		return err
	}
	if err := o.content(ctx, f, tmp, rel, a); err != nil {
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

func (o *out) content(ctx context.Context, f *os.File, tmp, rel string, a metadata.Attr) error {
	if o.shared(a) {
		return o.pieces(ctx, f, tmp, rel, a)
	}
	var buf []byte
	select {
	case buf = <-o.bufs:
	default:
		buf = make([]byte, wire.MaxData)
	}
	defer func() { o.bufs <- buf }()
	return copyRange(ctx, o.cfg.Read, f, a, 0, a.Size, buf)
}

// shared reports whether several nodes copy a file.
func (o *out) shared(a metadata.Attr) bool {
	return o.cfg.Help != nil && o.cfg.N > 1 && a.Size >= 2*o.cfg.Piece
}

func zeros(p []byte) bool {
	return !slices.ContainsFunc(p, func(c byte) bool { return c != 0 })
}
