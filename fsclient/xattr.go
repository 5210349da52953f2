package fsclient

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Xattrs = (*Client)(nil)

// Getxattr implements metadata.Xattrs. Attributes with the prefix ReservedXattr are made here.
func (c *Client) Getxattr(ctx context.Context, ino metadata.Ino, name string) ([]byte, error) {
	if strings.HasPrefix(name, ReservedXattr) {
		return layouts{c}.get(ctx, ino, name)
	}
	if ino.Sealed() {
		return nil, fmt.Errorf("inode %v: attribute %q: %w", ino, name, syscall.ENODATA)
	}
	s, err := c.nodes.Home(ino)
	if err != nil {
		return nil, err
	}
	return s.Getxattr(ctx, ino, name)
}

// Setxattr implements metadata.Xattrs.
func (c *Client) Setxattr(ctx context.Context, ino metadata.Ino, x metadata.Xattr) error {
	if ino.Sealed() {
		return readOnly(ino)
	}
	if strings.HasPrefix(x.Name, ReservedXattr) {
		return layouts{c}.set(ctx, ino, x)
	}
	s, err := c.nodes.Home(ino)
	if err != nil {
		return err
	}
	err = s.Setxattr(ctx, ino, x)
	c.changedHere(err, attrKey(ino))
	return err
}

// Listxattr implements metadata.Xattrs. Attributes with the prefix ReservedXattr are not listed, so that programs do
// not copy them.
func (c *Client) Listxattr(ctx context.Context, ino metadata.Ino) ([]string, error) {
	if ino.Sealed() {
		return nil, nil
	}
	s, err := c.nodes.Home(ino)
	if err != nil {
		return nil, err
	}
	return s.Listxattr(ctx, ino)
}

// Removexattr implements metadata.Xattrs. Removing a layout sets the default.
func (c *Client) Removexattr(ctx context.Context, ino metadata.Ino, name string) error {
	if ino.Sealed() {
		return readOnly(ino)
	}
	if strings.HasPrefix(name, ReservedXattr) {
		return layouts{c}.set(ctx, ino, metadata.Xattr{Name: name})
	}
	s, err := c.nodes.Home(ino)
	if err != nil {
		return err
	}
	err = s.Removexattr(ctx, ino, name)
	c.changedHere(err, attrKey(ino))
	return err
}
