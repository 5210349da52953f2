package home

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
)

// The methods of leased that change names and inodes. Each recalls the leases on whatever it has changed, unless its
// error proves that nothing was changed. The calling client itself drops its cached names and inodes that the call
// names, as they were when the change began.

// Create implements metadata.Namespace.
func (l *leased) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	began := l.now()
	a, err := l.store.Create(ctx, dir, name, n)
	if mayHaveChanged(err) {
		l.revoke(ctx, began, attrKey(dir))
	}
	return a, err
}

// CreateOpen implements metadata.Opens.
func (l *leased) CreateOpen(ctx context.Context, by metadata.Holder, o metadata.Opening, dir metadata.Ino, name string, n metadata.New) (metadata.Holding, error) {
	began := l.now()
	h, err := l.store.CreateOpen(ctx, by, o, dir, name, n)
	if name != "" && mayHaveChanged(err) {
		l.revoke(ctx, began, attrKey(dir))
	}
	return h, err
}

// Unlink implements metadata.Namespace.
func (l *leased) Unlink(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	began := l.now()
	e, err := l.store.Unlink(ctx, dir, name)
	if mayHaveChanged(err) {
		keys := []metadata.LeaseKey{attrKey(dir), entryKey(dir, name)}
		if e.Ino != 0 {
			keys = append(keys, attrKey(e.Ino))
		}
		l.revoke(ctx, began, keys...)
	}
	return e, err
}

// Rename implements metadata.Namespace. It recalls the leases on the names and directories before the change as well: a
// node that holds a lease on one of them must not see it unchanged when it sees the other one changed.
func (l *leased) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	began := l.now()
	names := []metadata.LeaseKey{entryKey(r.Dir, r.Name), entryKey(r.NewDir, r.NewName)}
	keys := append(l.inosOf(ctx, names...), append(names, attrKey(r.Dir), attrKey(r.NewDir))...)
	l.revoke(ctx, began, keys...)
	old, err := l.store.Rename(ctx, r)
	if mayHaveChanged(err) { // other inodes may have got the names since then
		keys = append(keys, l.inosOf(ctx, names...)...)
		if old != nil {
			keys = append(keys, attrKey(old.Ino))
		}
		l.revoke(ctx, began, keys...)
	}
	return old, err
}

// inosOf returns the lease keys of the inodes that the names refer to.
func (l *leased) inosOf(ctx context.Context, names ...metadata.LeaseKey) []metadata.LeaseKey {
	var keys []metadata.LeaseKey
	for _, k := range names {
		if e, err := l.Lookup(ctx, k.Ino, k.Name); err == nil {
			keys = append(keys, attrKey(e.Ino))
		}
	}
	return keys
}

// mayHaveChanged reports whether an operation that ended with err may have changed something.
func mayHaveChanged(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOENT, syscall.EEXIST, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.EINVAL, syscall.EXDEV} {
		if errors.Is(err, e) {
			return false
		}
	}
	return true
}

// Setattr implements metadata.Inodes.
func (l *leased) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	began := l.now()
	if c.Set&(metadata.SetCopies|metadata.SetLayout) != 0 && c.Layout.Copied() {
		if err := l.copies(ctx); err != nil {
			return metadata.Attr{}, err
		}
	}
	a, err := l.store.Setattr(ctx, ino, c)
	if mayHaveChanged(err) {
		l.revoke(ctx, began, attrKey(ino))
	}
	return a, err
}

// Append implements metadata.Opens. It may have set the size.
func (l *leased) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	began := l.now()
	p, err := l.store.Append(ctx, by, q)
	l.revoke(ctx, began, attrKey(q.Ino))
	return p, err
}

// Setxattr implements metadata.Xattrs.
func (l *leased) Setxattr(ctx context.Context, ino metadata.Ino, x metadata.Xattr) error {
	began := l.now()
	err := l.store.Setxattr(ctx, ino, x)
	if mayHaveChanged(err) {
		l.revoke(ctx, began, attrKey(ino))
	}
	return err
}

// Removexattr implements metadata.Xattrs.
func (l *leased) Removexattr(ctx context.Context, ino metadata.Ino, name string) error {
	began := l.now()
	err := l.store.Removexattr(ctx, ino, name)
	if mayHaveChanged(err) {
		l.revoke(ctx, began, attrKey(ino))
	}
	return err
}

// Mkdir implements metadata.Directories.
func (l *leased) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	began := l.now()
	a, err := l.store.Mkdir(ctx, dir, name, n)
	if mayHaveChanged(err) {
		l.revoke(ctx, began, attrKey(dir))
	}
	return a, err
}

// Rmdir implements metadata.Directories.
func (l *leased) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	began := l.now()
	gone := l.inosOf(ctx, entryKey(dir, name))
	err := l.store.Rmdir(ctx, dir, name)
	if mayHaveChanged(err) {
		l.revoke(ctx, began, append(gone, attrKey(dir), entryKey(dir, name))...)
	}
	return err
}

// Link implements metadata.Directories.
func (l *leased) Link(ctx context.Context, ino, dir metadata.Ino, name string) (metadata.Attr, error) {
	began := l.now()
	a, err := l.store.Link(ctx, ino, dir, name)
	if mayHaveChanged(err) {
		l.revoke(ctx, began, attrKey(dir), attrKey(ino))
	}
	return a, err
}

// ReportShard implements metadata.Shards. The client that made the change at the shard may hold a lease of this home,
// so leases of all holders are recalled.
func (l *leased) ReportShard(ctx context.Context, by metadata.NodeID, r metadata.ShardReport) (metadata.ShardAnswer, error) {
	a, err := l.store.ReportShard(ctx, by, r)
	if mayHaveChanged(err) {
		l.revokeFor(ctx, rpc.NoNode, time.Time{}, attrKey(r.Dir))
	}
	return a, err
}
