package metadata

import (
	"context"
	"fmt"
	"syscall"
)

// The bounds of extended attributes are those of Linux, in bytes.
const (
	MaxXattrName  = 255
	MaxXattrValue = 64 << 10
	// MaxXattrList limits the names of one inode together, each with its terminating byte.
	MaxXattrList = 64 << 10
)

// XattrMode is the flag of a Setxattr; the numbers are those of setxattr(2).
type XattrMode uint8

// The modes.
const (
	XattrAny     XattrMode = 0
	XattrCreate  XattrMode = 1 // EEXIST if the attribute exists
	XattrReplace XattrMode = 2 // ENODATA if it does not exist
)

// Xattr is an extended attribute to be set.
type Xattr struct {
	Name  string
	Value []byte
	Mode  XattrMode
}

// Check returns EINVAL or ERANGE for an invalid name, and E2BIG for a value that is too long.
func (x Xattr) Check() error {
	if x.Mode > XattrReplace {
		return fmt.Errorf("attribute %q: mode %d: %w", x.Name, x.Mode, syscall.EINVAL)
	}
	if len(x.Value) > MaxXattrValue {
		return fmt.Errorf("attribute %q of %d bytes: %w", x.Name, len(x.Value), syscall.E2BIG)
	}
	return CheckXattrName(x.Name)
}

// CheckXattrName returns ERANGE for an empty or too long name, and EINVAL for one with a zero byte.
func CheckXattrName(name string) error {
	if name == "" || len(name) > MaxXattrName {
		return fmt.Errorf("name of an attribute of %d bytes %.32q: %w", len(name), name, syscall.ERANGE)
	}
	for i := range len(name) {
		if name[i] == 0 {
			return fmt.Errorf("name of an attribute %q: %w", name, syscall.EINVAL)
		}
	}
	return nil
}

// Xattrs accesses the extended attributes of inodes, which are removed with the inode. Upper layers decide which names
// are allowed.
type Xattrs interface {
	// Getxattr returns a value that the caller owns. It returns ENODATA if there is no such attribute, and ENOENT if
	// there is no such inode.
	Getxattr(ctx context.Context, ino Ino, name string) ([]byte, error)
	// Setxattr sets one attribute, and Ctime. It returns ENOSPC if the names would exceed MaxXattrList.
	Setxattr(ctx context.Context, ino Ino, x Xattr) error
	// Listxattr returns the names in byte order.
	Listxattr(ctx context.Context, ino Ino) ([]string, error)
	// Removexattr removes one attribute, and sets Ctime. It returns ENODATA if there is no such attribute.
	Removexattr(ctx context.Context, ino Ino, name string) error
}
