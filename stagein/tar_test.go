package stagein

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// member is one of a generated archive.
type member struct {
	tar.Header
	data []byte
}

func writeTar(t testing.TB, format tar.Format, members []member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := m.Header
		h.Format, h.Size = format, int64(len(m.data))
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o640
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func randBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// randomMembers makes a tree. Names of ustar must be short.
func randomMembers(r *rand.Rand, format tar.Format, n int) []member {
	dirs, files := []string{""}, []string{}
	var ms []member
	for i := range n {
		name := dirs[r.IntN(len(dirs))] + fmt.Sprintf("m%d", i)
		if format != tar.FormatUSTAR && r.IntN(4) == 0 {
			name += strings.Repeat("x", r.IntN(240))
		}
		m := member{Header: tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(r.IntN(0o10000)), ModTime: time.Unix(r.Int64N(1<<31), 0)}}
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
			m.data = randBytes(r, r.IntN(9000))
			files = append(files, name)
		default:
			m.data = randBytes(r, r.IntN(1500))
			files = append(files, name)
		}
		ms = append(ms, m)
	}
	return ms
}

// checkTar stages archive with n nodes and compares it with the twin. It
// returns how many bytes were read.
func checkTar(t *testing.T, archive []byte, nodes int, set ...func(*job)) int64 {
	t.Helper()
	want, err := twin(archive)
	if err != nil {
		t.Fatalf("twin: %v", err)
	}
	j := tarJob(archive, nodes)
	for _, f := range set {
		f(j)
	}
	got, err := j.run(context.Background())
	if err != nil {
		t.Fatalf("%d nodes: %v", nodes, err)
	}
	checkTree(t, got, want)
	var bytes, files int64
	for _, e := range want {
		bytes += e.Size
		if e.Link == "" && e.Mode&0o170000 == 0o100000 {
			files++
		}
	}
	read := j.fs.read.Load()
	if j.sum.SourceBytes != read || j.sum.Bytes != bytes || j.sum.Files != files || !j.sum.Done || j.sum.SourceTotal != int64(len(archive)) {
		t.Errorf("%d nodes: progress %+v, want %d source bytes, %d bytes, %d files", nodes, j.sum, read, bytes, files)
	}
	if j.sum.Again == 0 && read != int64(len(archive)) {
		t.Errorf("%d nodes: %d bytes were read of an archive of %d", nodes, read, len(archive))
	}
	return read
}

func seed(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 1))
}

func TestTarEqualsTwin(t *testing.T) {
	r := seed(t)
	again := 0
	for i := range 60 {
		format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[i%3]
		archive := writeTar(t, format, randomMembers(r, format, 1+r.IntN(60)))
		for nodes := 1; nodes <= 7; nodes++ {
			if read := checkTar(t, archive, nodes); read != int64(len(archive)) {
				again++
			}
		}
	}
	// Random bytes have no headers in them, and a boundary between the extended
	// headers and their member is covered by guessing the member's end.
	if again > 0 {
		t.Errorf("%d of 420 were read again", again)
	}
}
