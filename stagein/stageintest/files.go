package stageintest

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// MemFiles is the manifest of a dataset, in memory.
type MemFiles struct {
	Records []manifest.Record // in the order of the manifest
	ByIno   map[metadata.Ino]*manifest.Record
	Walks   atomic.Int64 // how often Files was called
}

// FilesOf builds the manifest from the records of one part and reads it back.
func FilesOf(records []byte) (*MemFiles, error) {
	return FilesOfParts([][]byte{records}, nil)
}

// FilesOfParts is FilesOf for several parts; sums has the checksums of files that were read in pieces.
func FilesOfParts(records [][]byte, sums map[metadata.Ino][16]byte) (*MemFiles, error) {
	var b bytes.Buffer
	var parts []*manifest.Reader
	for _, r := range records {
		p := manifest.NewReader(bytes.NewReader(r))
		p.Sums = sums
		parts = append(parts, p)
	}
	if _, err := manifest.Build(manifest.BuildConfig{Dataset: 3, Root: metadata.Attr{Mode: source.TypeDir | 0o755}, Scratch: &manifest.Scratch{}}, parts, &b); err != nil {
		return nil, err
	}
	m := &MemFiles{ByIno: make(map[metadata.Ino]*manifest.Record)}
	for r := manifest.NewReader(&b); ; {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		m.Records = append(m.Records, rec)
	}
	for i := range m.Records {
		m.ByIno[m.Records[i].Attr.Ino] = &m.Records[i]
	}
	return m, nil
}

// Files calls fn for every regular file until it returns false.
func (m *MemFiles) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	m.Walks.Add(1)
	dirs := map[string]uint32{}
	for _, r := range m.Records {
		dir, name := filepath.Split(r.Path)
		dir = strings.TrimSuffix(dir, "/")
		switch r.Attr.Mode & source.TypeMask {
		case source.TypeDir:
			dirs[r.Path] = r.Attr.Ino.Seq()
		case source.TypeRegular:
			if !fn(dir, dirs[dir], name, r.Attr) {
				return nil
			}
		}
	}
	return nil
}

// Located calls fn for every record that has an origin until it returns false.
func (m *MemFiles) Located(fn func(from manifest.Origin, a metadata.Attr) bool) error {
	for _, r := range m.Records {
		if r.From.Known() && !fn(r.From, r.Attr) {
			return nil
		}
	}
	return nil
}

// Origin returns the place of a file's bytes in its source.
func (m *MemFiles) Origin(ino metadata.Ino) (manifest.Origin, metadata.Attr, error) {
	r, ok := m.ByIno[ino]
	if !ok {
		return manifest.Origin{}, metadata.Attr{}, syscall.ENOENT
	}
	return r.From, r.Attr, nil
}

// Record returns the checksum and the attributes of a file.
func (m *MemFiles) Record(ino metadata.Ino) (sum [16]byte, a metadata.Attr, err error) {
	_, a, err = m.Origin(ino)
	if err == nil {
		sum = m.ByIno[ino].Sum
	}
	return sum, a, err
}

// Chunks returns the chunk checksums of a file.
func (m *MemFiles) Chunks(ino metadata.Ino) (manifest.CRCs, error) {
	if _, _, err := m.Origin(ino); err != nil {
		return "", err
	}
	return m.ByIno[ino].Chunks, nil
}

// Each calls fn for every regular file, in the order of the manifest.
func (m *MemFiles) Each(fn func(path string, a metadata.Attr) bool) error {
	for _, r := range m.Records {
		if r.Attr.Mode&source.TypeMask == source.TypeRegular && !fn(r.Path, r.Attr) {
			return nil
		}
	}
	return nil
}
