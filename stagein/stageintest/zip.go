package stageintest

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// EmptyDamaged reports whether archive/zip cannot read a member that is empty.
func EmptyDamaged(archive []byte) bool {
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return false
	}
	for _, f := range z.File {
		if f.UncompressedSize64 > 0 {
			continue
		}
		r, err := f.Open()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if err != nil {
			return true
		}
	}
	return false
}

// ZipPipe returns a FIFO in a zip archive.
func ZipPipe(name string) ZipMember {
	z := ZipFile(name, nil)
	z.SetMode(fs.ModeNamedPipe | 0o600)
	return z
}

// ZipMember is a member of a generated zip archive.
type ZipMember struct {
	zip.FileHeader
	data []byte
}

// WriteZip returns a zip archive of the members.
func WriteZip(t testing.TB, comment string, members ...ZipMember) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	err := w.SetComment(comment)
	for i := range members {
		m := &members[i]
		var to io.Writer
		if err == nil {
			to, err = w.CreateHeader(&m.FileHeader)
		}
		if err == nil && len(m.data) > 0 {
			_, err = to.Write(m.data)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// ZipFile returns a deflated regular file.
func ZipFile(name string, data []byte) ZipMember {
	z := ZipMember{zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Unix(1e9+1, 0)}, data}
	z.SetMode(0o640)
	return z
}

// RandomZip returns n members that form a tree.
func RandomZip(r *rand.Rand, n int) (ms []ZipMember) {
	dirs := []string{""}
	for i := range n {
		z := ZipFile(dirs[r.IntN(len(dirs))]+fmt.Sprintf("m%d", i), nil)
		if r.IntN(4) == 0 {
			z.Name += strings.Repeat("é", r.IntN(110))
		}
		z.Method = uint16(r.IntN(2) * 8)
		z.Modified = time.Unix(r.Int64N(1<<31-1<<29)+1<<29, 0)
		z.SetMode(fs.FileMode(r.IntN(0o777) + 1))
		switch k := r.IntN(10); {
		case k == 0 && len(dirs) < 6:
			z.Name += "/"
			z.SetMode(fs.ModeDir | 0o755)
			dirs = append(dirs, z.Name)
		case k == 1:
			z.SetMode(fs.ModeSymlink | 0o777)
			z.data = []byte("../" + strings.Repeat("y", r.IntN(900)))
		case k == 2:
		case k == 3:
			z.data = bytes.Repeat([]byte("text "), r.IntN(9000))
		case k == 4:
			z.data = RandBytes(r, r.IntN(9000))
		default:
			z.data = bytes.Repeat(RandBytes(r, 10+r.IntN(200)), r.IntN(10))
		}
		ms = append(ms, z)
	}
	return ms
}
