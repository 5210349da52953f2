package stageintest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Entry is the content of the dataset at one path.
type Entry struct {
	Mode   uint32
	Size   int64
	Mtime  metadata.Time
	Target string
	Link   string
	Data   string
	Sum    [16]byte
}

// TwinTar reads a whole tar with archive/tar.
func TwinTar(archive []byte) (map[string]Entry, error) {
	tree := map[string]Entry{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return tree, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeXGlobalHeader || h.Typeflag == 'V' {
			continue
		}
		path, err := source.CleanPath(h.Name)
		if err != nil {
			return nil, err
		}
		e := Entry{Mode: uint32(h.Mode) & 0o1777, Mtime: clampTime(h.ModTime)}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeGNUSparse, '7':
			e.Mode |= source.TypeRegular
			b, err := io.ReadAll(r)
			if err != nil {
				return nil, err
			}
			e.Data, e.Size = string(b), int64(len(b))
		case tar.TypeDir:
			e.Mode |= source.TypeDir
		case tar.TypeSymlink:
			e.Mode, e.Target = e.Mode|source.TypeSymlink, h.Linkname
		case tar.TypeLink:
			e.Mode |= source.TypeRegular
			if e.Link, err = source.CleanPath(h.Linkname); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("type %q: %w", h.Typeflag, syscall.EINVAL)
		}
		if old, ok := tree[path]; ok && (h.Typeflag != tar.TypeDir || old.Mode&source.TypeMask != source.TypeDir) {
			return nil, fmt.Errorf("%q: %w", path, syscall.EEXIST)
		}
		tree[path] = e
	}
}

// clampTime limits a time to what a manifest can hold.
func clampTime(t time.Time) metadata.Time {
	const limit = math.MaxInt64/1_000_000_000 - 1
	switch {
	case t.Unix() > limit:
		return limit * 1e9
	case t.Unix() < -limit:
		return -limit * 1e9
	}
	return metadata.TimeOf(t)
}

// CheckTree compares a staged tree with the twin's.
func CheckTree(t *testing.T, got, want map[string]Entry) {
	t.Helper()
	for _, p := range slices.Sorted(maps.Keys(want)) {
		g, ok := got[p]
		if !ok {
			t.Errorf("%q is missing", p)
			continue
		}
		w := want[p]
		if g.Data != w.Data {
			t.Errorf("%q: %d bytes differ from the twin's %d", p, len(g.Data), len(w.Data))
		}
		g.Data, w.Data, g.Sum = "", "", w.Sum
		if g != w {
			t.Errorf("%q = %+v, want %+v", p, g, w)
		}
	}
	for p := range got {
		if _, ok := want[p]; !ok {
			t.Errorf("%q is not in the twin", p)
		}
	}
}

// TwinPacked decompresses a whole tar in memory and reads it with TwinTar.
func TwinPacked(c Codec, archive []byte) (map[string]Entry, error) {
	r, err := c.Unpack(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return TwinTar(b)
}

// TwinZip reads a whole zip archive with archive/zip.
func TwinZip(archive []byte) (map[string]Entry, error) {
	tree := map[string]Entry{}
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return nil, err
	}
	for _, f := range z.File {
		path, err := source.CleanPath(f.Name)
		if err != nil {
			return nil, err
		}
		mode := f.Mode()
		e := Entry{Mode: uint32(mode.Perm()), Mtime: clampTime(f.Modified)}
		if mode&fs.ModeSticky != 0 {
			e.Mode |= 0o1000
		}
		unix := f.CreatorVersion>>8 == 3 || f.CreatorVersion>>8 == 19
		if !unix || f.ExternalAttrs>>16&0o7777 == 0 {
			if e.Mode = 0o644; mode.IsDir() {
				e.Mode = 0o755
			}
		}
		if mode.IsDir() {
			e.Mode |= source.TypeDir
			tree[path] = e
			continue
		}
		if _, ok := tree[path]; ok {
			return nil, fmt.Errorf("%q twice", path)
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if mode&fs.ModeSymlink != 0 {
			e.Mode, e.Target = e.Mode|source.TypeSymlink, string(b)
		} else {
			e.Mode, e.Data, e.Size = e.Mode|source.TypeRegular, string(b), int64(len(b))
		}
		tree[path] = e
	}
	return tree, nil
}
