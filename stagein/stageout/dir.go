package stageout

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
)

// dirState is a directory being copied.
type dirState struct {
	ino     metadata.Ino // of the directory in scratch; 0: only a file is copied, and this is its target
	changed bool         // this node made, renamed or removed an entry of the copy, which changed its time
	look    bool         // this node checks its time even if it is unchanged
}

// enter records a directory that now exists. If look is set, this node checks its time.
func (o *out) enter(rel string, ino metadata.Ino, look bool) {
	look = look && o.mine(rel)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dirs[rel] = &dirState{ino: ino, look: look}
}

// changes records that an entry in the directory of rel is made, renamed or removed.
func (o *out) changes(rel string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.dirs[path.Dir(rel)]
	if d == nil {
		d = new(dirState)
		o.dirs[path.Dir(rel)] = d
	}
	d.changed = true
}

// makeDir makes a directory. Every node does; one of them counts it.
func (o *out) makeDir(ctx context.Context, e metadata.Entry, rel string) error {
	if o.blocked != nil {
		return nil
	}
	if o.keptDir(rel, e.Ino) {
		o.enter(rel, e.Ino, false)
		return nil
	}
	a, err := o.attr(ctx, e)
	if err != nil {
		return err
	}
	mode := os.FileMode(a.Mode&0o777 | 0o700)
	switch err := o.root.Mkdir(rel, mode); {
	case err == nil:
		o.changes(rel)
		if err = o.openDir(rel, mode); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrExist):
		return err
	default:
		if info, e := o.root.Lstat(rel); e != nil || !info.IsDir() {
			return syscall.ENOTDIR
		}
	}
	if o.mine(rel) {
		o.count(func(r *Result) { r.Dirs++ })
	}
	o.enter(rel, e.Ino, true)
	o.cfg.Memory.add(rel+"/", stamp{ino: e.Ino})
	return nil
}

// openDir sets the mode of a directory just created, independent of the umask. It keeps a set-group-ID bit inherited
// from the parent.
func (o *out) openDir(rel string, mode os.FileMode) error {
	info, err := o.root.Lstat(rel)
	if err != nil {
		return err
	}
	return o.root.Chmod(rel, mode|info.Mode()&os.ModeSetgid)
}

// endDirs sets the times of directories and makes the renames in them durable, after this node's last change in them.
func (o *out) endDirs(ctx context.Context) {
	if o.blocked != nil {
		return
	}
	var g errgroup.Group
	g.SetLimit(o.cfg.Workers)
	for rel, d := range o.dirs {
		if !d.changed && !d.look {
			continue
		}
		g.Go(func() error {
			if err := o.endDir(ctx, rel, d); err != nil {
				o.fail(rel+"/", 0, err)
			}
			return nil
		})
	}
	_ = g.Wait() // failures are in the result
}

func (o *out) endDir(ctx context.Context, rel string, d *dirState) error {
	set, err := false, error(nil)
	if d.look && len(o.cfg.Gone) > 0 && ctx.Err() == nil {
		var removed bool
		removed, err = o.removeLeft(rel, o.ofGone)
		d.changed = d.changed || removed
	}
	if d.ino != 0 && ctx.Err() == nil { // else a later run does it
		var e error
		set, e = o.dirTimes(ctx, rel, d.ino)
		err = errors.Join(err, e)
	}
	if !set && !d.changed {
		return err
	}
	f, e := o.root.Open(rel)
	if e == nil {
		e = errors.Join(f.Sync(), f.Close())
	}
	return errors.Join(err, e)
}

// ofGone reports whether a lost writer wrote under a temporary name.
func (o *out) ofGone(name string) bool {
	return slices.ContainsFunc(o.cfg.Gone, func(w string) bool { return strings.HasSuffix(name, temporarySuffix(w)) })
}

// dirTimes gives a directory the times of the one that it is a copy of, if they differ. A directory of another user in
// the target keeps its own.
func (o *out) dirTimes(ctx context.Context, rel string, ino metadata.Ino) (set bool, err error) {
	a, err := o.cfg.Store.Getattr(ctx, ino)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil // removed meanwhile
	}
	if err != nil {
		return false, err
	}
	info, err := o.root.Lstat(rel)
	if err != nil || info.ModTime().Equal(a.Mtime.Time()) {
		return false, err
	}
	err = o.root.Chtimes(rel, a.Atime.Time(), a.Mtime.Time())
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		return false, nil
	}
	return err == nil, err
}
