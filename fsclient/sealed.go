package fsclient

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/cache"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// sealedRealm is the namespace of the datasets; all of it belongs to the job's user.
type sealedRealm struct {
	datasetTables Sealed // nil: no datasets
	uid, gid      uint32
	attrs         cache.Attrs
	calls         atomic.Int64 // counts calls of the manifests
}

func (r *sealedRealm) datasets() []cluster.Dataset {
	if r.datasetTables == nil {
		return nil
	}
	return r.datasetTables.Datasets()
}

func (r *sealedRealm) space(ino metadata.Ino) (datapath.Space, error) {
	for _, ds := range r.datasets() {
		if ds.ID == ino.Dataset() {
			return datapath.Space{Capacity: ds.Bytes, Used: ds.Bytes, Objects: ds.Files + ds.Dirs}, nil
		}
	}
	return datapath.Space{}, fmt.Errorf("inode %v: its dataset does not exist: %w", ino, syscall.ESTALE)
}

// table returns the namespace of the dataset that contains ino.
func (r *sealedRealm) table(ino metadata.Ino) (metadata.Store, error) {
	if r.datasetTables != nil {
		if t, ok := r.datasetTables.Table(ino.Dataset()); ok {
			return t, nil
		}
	}
	return nil, fmt.Errorf("dataset %d: %w", ino.Dataset(), syscall.ESTALE)
}

// own sets the job's user as the owner of an inode.
func (r *sealedRealm) own(a metadata.Attr) metadata.Attr {
	a.UID, a.GID = r.uid, r.gid
	return a
}

func (r *sealedRealm) getattr(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	t, err := r.table(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	if a := r.attrs.Get(ino); a != nil {
		return *a, nil
	}
	r.calls.Add(1)
	a, err := t.Getattr(ctx, ino)
	return r.own(a), err
}

func (r *sealedRealm) readlink(ctx context.Context, ino metadata.Ino) (string, error) {
	t, err := r.table(ino)
	if err != nil {
		return "", err
	}
	r.calls.Add(1)
	return t.Readlink(ctx, ino)
}

func (r *sealedRealm) lookup(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	t, err := r.table(dir)
	if err != nil {
		return metadata.Entry{}, err
	}
	r.calls.Add(1)
	e, err := t.Lookup(ctx, dir, name)
	if err != nil {
		return metadata.Entry{}, err
	}
	a := e.Attr
	if a == nil {
		got, err := t.Getattr(ctx, e.Ino)
		if err != nil {
			return metadata.Entry{}, err
		}
		a = &got
	}
	owned := r.own(*a)
	e.Attr = &owned
	r.attrs.Put(&owned)
	return e, nil
}

func (r *sealedRealm) readDir(ctx context.Context, dir metadata.Ino, after string, limit int) ([]metadata.Entry, error) {
	t, err := r.table(dir)
	if err != nil {
		return nil, err
	}
	r.calls.Add(1)
	es, err := t.ReadDir(ctx, dir, after, limit)
	for i := range es {
		if es[i].Attr != nil {
			owned := r.own(*es[i].Attr)
			es[i].Attr = &owned
		}
	}
	return es, err
}
