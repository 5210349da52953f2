package fsclient

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bivouacfs/bivouac/datapath"
)

// Backing opens the object on this node's disk that holds all of a sealed
// file, byte for byte, so that the kernel can read it by itself. It is nil
// where there is no such object: the file is live, empty, on another node, or
// striped. The caller closes it.
func (f *File) Backing() (*os.File, error) {
	opener, ok := f.c.cfg.LocalData.(datapath.Opener)
	if !ok || !f.ino.Sealed() {
		return nil, nil
	}
	f.mu.Lock()
	size, order := f.attr.Size, f.order
	f.mu.Unlock()
	if size == 0 || len(order) != 1 || order[0] != f.c.cfg.Self {
		return nil, nil
	}
	o, err := opener.Open(f.ino)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := o.Stat()
	if err == nil && st.Size() == size {
		return o, nil
	}
	_ = o.Close() // nothing was read
	if err != nil {
		return nil, fmt.Errorf("object %v: %w", f.ino, err)
	}
	return nil, nil
}
