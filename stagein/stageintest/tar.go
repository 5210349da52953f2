package stageintest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// Retype changes the type of a member and updates the checksum of its header.
func Retype(archive []byte, name string, letter byte) []byte {
	i := bytes.Index(archive, append([]byte(name), 0))
	b := archive[i : i+512]
	b[156] = letter
	FixSum(b)
	return archive
}

// FixSum recomputes the checksum of a tar header.
func FixSum(b []byte) {
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// SmallTar returns a tar of n members of 600 bytes, each of which takes one page on disk.
func SmallTar(t *testing.T, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		data := bytes.Repeat([]byte{byte(i)}, 600)
		NoError(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("c%02d/f%05d", i%10, i), Mode: 0o644, Size: 600}))
		_, err := w.Write(data)
		NoError(t, err)
	}
	NoError(t, w.Close())
	return b.Bytes()
}

// Spoil truncates an archive and flips bits in it. If honest is set, it recomputes the header checksums, so that the
// flips get past them.
func Spoil(archive []byte, cut, flips uint16, r *rand.Rand, honest bool) []byte {
	b := slices.Clone(archive)
	for range flips % 8 {
		i := r.IntN(len(b))
		if honest { // the headers' offsets; archive/tar refuses odd device numbers, also of files
			i = i&^511 | r.IntN(329)
		}
		b[i%len(b)] ^= 1 << r.IntN(8)
	}
	if honest {
		for i := 0; i+512 <= len(b); i += 512 {
			if string(b[i+257:i+262]) == "ustar" {
				FixSum(b[i : i+512])
			}
		}
	}
	if cut != 0 {
		b = b[:int(cut)%(len(b)+1)]
	}
	return b
}

// PackAs packs members in the format that the suffix of name states: zip, gzipped tar, or tar.
func PackAs(t *testing.T, name string, members []Member) []byte {
	t.Helper()
	switch {
	case strings.HasSuffix(name, ".zip"):
		var z []ZipMember
		for _, m := range members {
			z = append(z, ZipFile(m.Name, m.Data))
		}
		return WriteZip(t, "", z...)
	case strings.HasSuffix(name, ".gz"):
		return PackGzip(t, WriteTar(t, tar.FormatPAX, members))
	}
	return WriteTar(t, tar.FormatPAX, members)
}

// Member is a member of a generated tar.
type Member struct {
	tar.Header
	Data []byte
}

// WriteTar returns a tar of the members.
func WriteTar(t testing.TB, format tar.Format, members []Member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := m.Header
		h.Format, h.Size = format, int64(len(m.Data))
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o640
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// RandomMembers returns n members that form a tree. Names are short if the format is USTAR.
func RandomMembers(r *rand.Rand, format tar.Format, n int) []Member {
	dirs, files := []string{""}, []string{}
	var ms []Member
	for i := range n {
		name := dirs[r.IntN(len(dirs))] + fmt.Sprintf("m%d", i)
		if format != tar.FormatUSTAR && r.IntN(4) == 0 {
			name += strings.Repeat("x", r.IntN(240))
		}
		m := Member{Header: tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(r.IntN(0o10000)), ModTime: time.Unix(r.Int64N(1<<31), 0)}}
		if format == tar.FormatPAX && r.IntN(2) == 0 {
			m.ModTime = time.Unix(r.Int64N(1<<32)-1<<31, r.Int64N(1e9))
		}
		switch k := r.IntN(10); {
		case k == 0 && len(dirs) < 6:
			m.Typeflag, m.Name = tar.TypeDir, name+"/"
			dirs = append(dirs, name+"/")
		case k == 1:
			m.Typeflag, m.Linkname = tar.TypeSymlink, "../"+strings.Repeat("y", r.IntN(90))
			if format != tar.FormatUSTAR && r.IntN(2) == 0 {
				m.Linkname += strings.Repeat("/zz", r.IntN(100))
			}
		case k == 2 && len(files) > 0:
			m.Typeflag, m.Linkname = tar.TypeLink, files[r.IntN(len(files))]
		case k == 3:
			files = append(files, name) // empty
		case k == 4:
			m.Data = RandBytes(r, r.IntN(9000))
			files = append(files, name)
		default:
			m.Data = RandBytes(r, r.IntN(1500))
			files = append(files, name)
		}
		ms = append(ms, m)
	}
	return ms
}

// TarFile returns a regular file.
func TarFile(name string, data []byte) Member {
	return Member{Header: tar.Header{Name: name, Typeflag: tar.TypeReg}, Data: data}
}

// TarDir returns a directory.
func TarDir(name string) Member {
	return Member{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}

// ManySmall returns a tar of n members of about size bytes, half of which are random.
func ManySmall(t testing.TB, r *rand.Rand, n, size int) []byte {
	t.Helper()
	return Shard(t, r, "", n, size)
}

// Shard is ManySmall with paths that begin with prefix.
func Shard(t testing.TB, r *rand.Rand, prefix string, n, size int) []byte {
	t.Helper()
	var members []Member
	for i := range n {
		k := 1 + r.IntN(2*size)
		members = append(members, TarFile(fmt.Sprintf("%sd%d/f%04d", prefix, i%7, i), append(RandBytes(r, k-k/2), make([]byte, k/2)...)))
	}
	return WriteTar(t, tar.FormatGNU, members)
}

// HalfRandomTar returns a tar of n members of 25,000 bytes, half of which are random.
func HalfRandomTar(t *testing.T, n int) []byte {
	t.Helper()
	r := Rand(t)
	var members []Member
	for i := range n {
		members = append(members, TarFile(fmt.Sprint("f", i), append(RandBytes(r, 12_500), make([]byte, 12_500)...)))
	}
	return WriteTar(t, tar.FormatGNU, members)
}
