package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Mkdir is metadata.Directories. The new directory is homed by hash.
func (c *Client) Mkdir(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if dir.Sealed() {
		return metadata.Attr{}, readOnly(dir)
	}
	parent, err := c.homeOf(dir)
	if err != nil {
		return metadata.Attr{}, err
	}
	home := c.cfg.View().Map.DirHome(dir, name)
	if home == dir.Home() {
		return parent.Mkdir(ctx, dir, name, n)
	}
	s, err := c.metaOf(home)
	if err != nil {
		return metadata.Attr{}, err
	}
	p, err := c.Getattr(ctx, dir)
	if err != nil {
		return metadata.Attr{}, err
	}
	n.Mode = syscall.S_IFDIR | n.Mode&0o7777
	if p.Mode&syscall.S_ISGID != 0 {
		n.GID = p.GID
		n.Mode |= syscall.S_ISGID
	}
	a, err := s.NewDir(ctx, dir, n)
	if errors.Is(err, syscall.EHOSTDOWN) || errors.Is(err, syscall.EHOSTUNREACH) {
		return parent.Mkdir(ctx, dir, name, n) // the hash is only to spread the load
	}
	if err != nil {
		return metadata.Attr{}, err
	}
	ctx = context.WithoutCancel(ctx)
	_, err = parent.Enter(ctx, dir, metadata.Entry{Name: name, Ino: a.Ino, Mode: a.Mode}, false)
	if err == nil {
		return a, nil
	}
	if c.notThere(ctx, err, dir, name, a.Ino) {
		c.tookBack("mkdir", s.DropDir(ctx, a.Ino))
	}
	return metadata.Attr{}, err
}

// Rmdir is metadata.Directories.
func (c *Client) Rmdir(ctx context.Context, dir metadata.Ino, name string) error {
	if dir.Sealed() {
		return readOnly(dir)
	}
	s, err := c.homeOf(dir)
	if err != nil {
		return err
	}
	if err := s.Rmdir(ctx, dir, name); !errors.Is(err, syscall.EXDEV) {
		return err
	}
	e, err := s.Lookup(ctx, dir, name)
	if err != nil {
		return err
	}
	dropped, err := c.dropDir(ctx, e)
	if err != nil {
		return err
	}
	err = s.Remove(context.WithoutCancel(ctx), dir, name, e.Ino)
	if dropped && (errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ESTALE)) {
		return nil // somebody saw that the directory is gone, and removed its name
	}
	if errors.Is(err, syscall.ESTALE) {
		return fmt.Errorf("entry %q of %v: %w", name, dir, syscall.ENOENT)
	}
	return err
}

// dropDir drops the directory that e names; false if it was gone before.
func (c *Client) dropDir(ctx context.Context, e metadata.Entry) (bool, error) {
	if e.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return false, fmt.Errorf("inode %v: %w", e.Ino, syscall.ENOTDIR)
	}
	s, err := c.homeOf(e.Ino)
	if err != nil {
		return false, err
	}
	err = s.DropDir(ctx, e.Ino)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil, err
}
