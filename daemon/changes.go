package daemon

import (
	"context"
	"errors"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
)

// The methods of leasing that change directories. Each does what the home does,
// and then keeps the promises about what it has changed. An error that says
// that nothing was done needs none; any other may come too late.

// Create is metadata.Namespace.
func (l *leasing) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	a, err := l.home.Create(ctx, dir, name, n)
	if done(err) {
		l.changed(ctx, attrKey(dir))
	}
	return a, err
}

// CreateOpen is metadata.Opens.
func (l *leasing) CreateOpen(ctx context.Context, by metadata.Holder, t metadata.Ticket, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	a, err := l.home.CreateOpen(ctx, by, t, dir, name, n)
	if done(err) {
		l.changed(ctx, attrKey(dir))
	}
	return a, err
}

// Unlink is metadata.Namespace.
func (l *leasing) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	e, err := l.home.Unlink(ctx, dir, name)
	if done(err) {
		l.changed(ctx, attrKey(dir))
	}
	return e, err
}

// Rename is metadata.Namespace.
func (l *leasing) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	moved := l.dirsOf(ctx, entryKey(r.Dir, r.Name), entryKey(r.NewDir, r.NewName))
	old, err := l.home.Rename(ctx, r)
	if done(err) {
		l.changed(ctx, append(moved, attrKey(r.Dir), attrKey(r.NewDir), entryKey(r.Dir, r.Name), entryKey(r.NewDir, r.NewName))...)
	}
	return old, err
}

// dirsOf is the keys of the directories that names lead to.
func (l *leasing) dirsOf(ctx context.Context, names ...metadata.LeaseKey) []metadata.LeaseKey {
	var keys []metadata.LeaseKey
	for _, k := range names {
		if e, err := l.Lookup(ctx, k.Ino, k.Name); err == nil && isDir(e.Mode) {
			keys = append(keys, attrKey(e.Ino))
		}
	}
	return keys
}

// done reports whether an operation that ended with err may have changed
// something.
func done(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOENT, syscall.EEXIST, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.EINVAL, syscall.EXDEV} {
		if errors.Is(err, e) {
			return false
		}
	}
	return true
}

// Setattr is metadata.Inodes.
func (l *leasing) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	a, err := l.home.Setattr(ctx, ino, c)
	if done(err) && (err != nil || isDir(a.Mode)) {
		l.changed(ctx, attrKey(ino))
	}
	return a, err
}

// Setxattr is metadata.Xattrs.
func (l *leasing) Setxattr(ctx context.Context, ino metadata.Ino, x metadata.Xattr) error {
	err := l.home.Setxattr(ctx, ino, x)
	if done(err) {
		l.changed(ctx, attrKey(ino))
	}
	return err
}

// Removexattr is metadata.Xattrs.
func (l *leasing) Removexattr(ctx context.Context, ino metadata.Ino, name string) error {
	err := l.home.Removexattr(ctx, ino, name)
	if done(err) {
		l.changed(ctx, attrKey(ino))
	}
	return err
}

// Mkdir is metadata.Directories.
func (l *leasing) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	a, err := l.home.Mkdir(ctx, dir, name, n)
	if done(err) {
		l.changed(ctx, attrKey(dir))
	}
	return a, err
}

// Rmdir is metadata.Directories.
func (l *leasing) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	gone := l.dirsOf(ctx, entryKey(dir, name))
	err := l.home.Rmdir(ctx, dir, name)
	if done(err) {
		l.changed(ctx, append(gone, attrKey(dir), entryKey(dir, name))...)
	}
	return err
}

// Link is metadata.Directories.
func (l *leasing) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	a, err := l.home.Link(ctx, ino, dir, name)
	if done(err) {
		l.changed(ctx, attrKey(dir))
	}
	return a, err
}

// ReportShard is metadata.Sections. What a section reports some client has
// done there, who may hold a promise of this home.
func (l *leasing) ReportShard(ctx context.Context, by metadata.NodeID, r metadata.ShardReport) (metadata.ShardAnswer, error) {
	a, err := l.home.ReportShard(ctx, by, r)
	if done(err) {
		l.changedBy(ctx, rpc.NoNode, attrKey(r.Dir))
	}
	return a, err
}
