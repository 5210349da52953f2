package model

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Node holds all observable properties of one path.
type Node struct {
	Attr
	Data   []byte // of a file; the target of a symbolic link
	Xattrs map[string]string
}

// Tree maps paths below a directory to nodes; the directory itself is "".
type Tree map[string]Node

// Tree returns the model's tree.
func (f *FS) Tree() Tree {
	t := Tree{"": node(f.root)}
	for _, p := range f.paths() {
		i, _ := f.find(p, false)
		t[p] = node(i)
	}
	return t
}

func node(i *inode) Node {
	n := Node{Attr: *i.attr(), Data: i.data, Xattrs: make(map[string]string)}
	n.Atime = 0 // reading a tree changes it, on other systems
	if i.link() {
		n.Data = []byte(i.target)
	}
	for k, v := range i.xattrs {
		n.Xattrs[k] = string(v)
	}
	return n
}

// Tree reads the whole tree through one mount.
func (m *Mounts) Tree(mount int) (Tree, error) {
	t := make(Tree)
	return t, readTree(t, m.dirs[mount], "")
}

func readTree(t Tree, root, path string) error {
	full := filepath.Join(root, path)
	var st unix.Stat_t
	r := attrOf(&st, unix.Lstat(full, &st))
	if r.Err != 0 {
		return fmt.Errorf("lstat %q: %w", path, r.Err)
	}
	n := Node{Attr: *r.Attr}
	var err error
	if n.Xattrs, err = readXattrs(full); err != nil {
		return err
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Data, err = os.ReadFile(full)
	case unix.S_IFLNK:
		r := onPath["readlink"](nil, full, Op{})
		if r.Err != 0 {
			err = fmt.Errorf("readlink %q: %w", path, r.Err)
		}
		n.Data = r.Data
	case unix.S_IFDIR:
		err = readBelow(t, root, path)
	}
	t[path] = n
	return err
}

func readBelow(t Tree, root, path string) error {
	r := readdir(filepath.Join(root, path))
	if r.Err != 0 {
		return fmt.Errorf("readdir %q: %w", path, r.Err)
	}
	seen := make(map[string]bool)
	for _, name := range r.Names {
		if seen[name] {
			return fmt.Errorf("readdir %q: %q is there twice", path, name)
		}
		seen[name] = true
		if err := readTree(t, root, strings.TrimPrefix(path+"/"+strings.TrimRight(name, "/@|"), "/")); err != nil {
			return err
		}
	}
	return nil
}

func readXattrs(path string) (map[string]string, error) {
	r := listXattrs(path)
	if errors.Is(r.Err, syscall.EOPNOTSUPP) {
		return nil, nil
	}
	if r.Err != 0 {
		return nil, fmt.Errorf("listxattr %q: %w", path, r.Err)
	}
	x := make(map[string]string)
	for _, name := range r.Names {
		v := onPath["getxattr"](nil, path, Op{Name: name})
		if v.Err != 0 {
			return nil, fmt.Errorf("getxattr %q %q: %w", path, name, v.Err)
		}
		x[name] = string(v.Data)
	}
	return x, nil
}

// differences returns the differences of got from t, one line per path, at most ten. Hard links must be the same in
// both.
func (t Tree) differences(got Tree) []string {
	var lines []string
	inos := make(map[uint64]uint64)
	all := slices.Sorted(maps.Keys(t))
	for p := range got {
		if _, ok := t[p]; !ok {
			all = append(all, p)
		}
	}
	for _, p := range all {
		if d := t.difference(got, p, inos); d != "" && len(lines) < 10 {
			lines = append(lines, d)
		}
	}
	return lines
}

func (t Tree) difference(got Tree, p string, inos map[uint64]uint64) string {
	want, ok := t[p]
	have, there := got[p]
	switch {
	case !there:
		return fmt.Sprintf("%q is missing", p)
	case !ok:
		return fmt.Sprintf("%q is there", p)
	case p == "":
		want.Mode, have.Mode = 0, 0 // made by the test
	}
	if !want.matches(have.Attr) {
		return fmt.Sprintf("%q is %v, want %v", p, Result{Attr: &have.Attr}, Result{Attr: &want.Attr})
	}
	if !bytes.Equal(want.Data, have.Data) {
		return fmt.Sprintf("%q has %d bytes that differ at %d, want %d", p, len(have.Data), firstDifference(want.Data, have.Data), len(want.Data))
	}
	if !maps.Equal(want.Xattrs, have.Xattrs) {
		return fmt.Sprintf("%q has the attributes %.200q, want %.200q", p, have.Xattrs, want.Xattrs)
	}
	if ino, ok := inos[want.Ino]; ok && ino != have.Ino {
		return fmt.Sprintf("%q has the inode number %d, another name of it %d", p, have.Ino, ino)
	}
	inos[want.Ino] = have.Ino
	return ""
}
