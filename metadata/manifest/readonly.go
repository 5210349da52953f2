package manifest

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func (t *Table) readOnly() error {
	return fmt.Errorf("dataset %d is sealed: %w", t.ds, syscall.EROFS)
}

// Create returns EROFS.
func (t *Table) Create(context.Context, metadata.Ino, string, metadata.New) (metadata.Attr, error) {
	return metadata.Attr{}, t.readOnly()
}

// Unlink returns EROFS.
func (t *Table) Unlink(context.Context, metadata.Ino, string) (metadata.Entry, error) {
	return metadata.Entry{}, t.readOnly()
}

// Rename returns EROFS.
func (t *Table) Rename(context.Context, metadata.Rename) (*metadata.Entry, error) {
	return nil, t.readOnly()
}

// Setattr returns EROFS.
func (t *Table) Setattr(context.Context, metadata.Ino, metadata.Change) (metadata.Attr, error) {
	return metadata.Attr{}, t.readOnly()
}

// Mkdir returns EROFS.
func (t *Table) Mkdir(context.Context, metadata.Ino, string, metadata.New) (metadata.Attr, error) {
	return metadata.Attr{}, t.readOnly()
}

// Rmdir returns EROFS.
func (t *Table) Rmdir(context.Context, metadata.Ino, string) error { return t.readOnly() }

// Link returns EROFS.
func (t *Table) Link(context.Context, metadata.Ino, metadata.Ino, string) (metadata.Attr, error) {
	return metadata.Attr{}, t.readOnly()
}
