package ingest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// stageBad stages archive with 1, 3 and 5 nodes and wants an error that contains all of parts, soon.
func stageBad(t *testing.T, archive []byte, parts ...string) {
	t.Helper()
	for _, nodes := range []int{1, 3, 5} {
		j := jobtest.TarJob(archive, nodes)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := j.Run(ctx)
		cancel()
		if !stageintest.ErrorHas(err, append(parts, "/src/a.tar")...) {
			t.Errorf("%d nodes: %v, want an error with %q", nodes, err, parts)
		}
	}
}

func TestTarRefuses(t *testing.T) {
	r := stageintest.Rand(t)
	fill := func(n int) (ms []stageintest.Member) {
		for i := range n {
			ms = append(ms, stageintest.TarFile(fmt.Sprint("fill", i), stageintest.RandBytes(r, 600)))
		}
		return ms
	}
	header := func(h tar.Header) []byte {
		ms := append(fill(7), stageintest.Member{Header: h})
		return stageintest.WriteTar(t, tar.FormatPAX, append(ms, stageintest.TarFile("after", nil)))
	}
	const at = "at offset 10752" // 512+1024 bytes for each of seven members
	for _, c := range []struct {
		h    tar.Header
		want string
	}{
		{tar.Header{Name: "/abs/olute", Typeflag: tar.TypeReg}, "absolute"},
		{tar.Header{Name: "a/../../b", Typeflag: tar.TypeReg}, ".."},
		{tar.Header{Name: "..", Typeflag: tar.TypeDir}, ".."},
		{tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1}, "device"},
		{tar.Header{Name: "sda", Typeflag: tar.TypeBlock}, "device"},
		{tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}, "FIFO"},
		{tar.Header{Name: "hard", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}, "/etc/passwd"},
		{tar.Header{Name: "hard", Linkname: "../x", Typeflag: tar.TypeLink}, "../x"},
		{tar.Header{Name: strings.Repeat("n", 256), Typeflag: tar.TypeReg}, "256 bytes"},
		{tar.Header{Name: strings.Repeat("n/", 17000) + "n", Typeflag: tar.TypeReg}, "path of"},
		{tar.Header{Name: "./", Typeflag: tar.TypeSymlink, Linkname: "x"}, "no name"},
		{tar.Header{Name: "multi", Typeflag: 'M'}, "multi-volume"},
		{tar.Header{Name: "odd", Typeflag: 'Q'}, "unknown"},
	} {
		t.Run(c.want, func(t *testing.T) {
			parts := []string{fmt.Sprintf("%q", c.h.Name), c.want, at}
			var archive []byte
			if slices.Contains([]byte("MQ"), c.h.Typeflag) {
				letter := c.h.Typeflag
				c.h.Typeflag = tar.TypeReg
				archive = stageintest.Retype(header(c.h), c.h.Name, letter)
			} else {
				archive = header(c.h)
			}
			stageBad(t, archive, parts...)
		})
	}
	t.Run("duplicate", func(t *testing.T) {
		archive := stageintest.WriteTar(t, tar.FormatPAX, append(append([]stageintest.Member{stageintest.TarFile("twice", nil)}, fill(9)...), stageintest.TarFile("./twice", nil)))
		for _, nodes := range []int{1, 3} {
			j := jobtest.TarJob(archive, nodes)
			if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "twice") {
				t.Errorf("%d nodes: %v, want EEXIST", nodes, err)
			}
		}
	})
}

func TestTarTruncated(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{
		stageintest.TarFile("a", stageintest.RandBytes(r, 1000)), stageintest.TarDir(strings.Repeat("d/", 80)), stageintest.TarFile("big", stageintest.RandBytes(r, 20_000)), stageintest.TarFile("z", stageintest.RandBytes(r, 100)),
	})
	whole := len(archive)
	for cut := 300; cut < whole; cut += 1 + r.IntN(300) {
		j := jobtest.TarJob(archive[:cut], 1+r.IntN(5))
		got, err := j.Run(context.Background())
		if err == nil {
			// Between members, an end without an end-of-archive mark is accepted.
			want, terr := stageintest.TwinTar(archive[:cut])
			if terr != nil {
				t.Errorf("cut at %d of %d: staged, but archive/tar says %v", cut, whole, terr)
			}
			stageintest.CheckTree(t, got, want)
			continue
		}
		if !stageintest.ErrorHas(err, "/src/a.tar") || !stageintest.ErrorHas(err, "ends") {
			t.Errorf("cut at %d: %v, want where it ends", cut, err)
		}
	}
	stageBad(t, archive[:10_000], `"big"`, "truncated", "10000")
}

func TestTarCorrupt(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 12 {
		members = append(members, stageintest.TarFile(fmt.Sprint("f", i), stageintest.RandBytes(r, 800)))
	}
	archive := stageintest.WriteTar(t, tar.FormatGNU, members)
	for i := range 11 {
		bad := slices.Clone(archive)
		at := (i + 1) * 1536
		bad[at+20] ^= 1
		stageBad(t, bad, fmt.Sprintf("at offset %d", at), "damaged")
	}
	joined := append(slices.Clone(archive), archive...)
	stageBad(t, joined, "another begins", fmt.Sprintf("offset %d", len(archive)))
	lone := append(slices.Clone(archive[:1536*12]), make([]byte, 512)...)
	stageBad(t, append(lone, archive[1536:3072]...), "block of zeros")
	// One block of zeros at the end counts as an end-of-archive mark, as for tar.
	checkTar(t, lone, 3)
}

func TestTarEmpty(t *testing.T) {
	for _, c := range []struct {
		name, want string
		archive    []byte
	}{
		{"nothing", "is empty", nil},
		{"zeros", "no members", make([]byte, 10240)},
		{"text", "not a tar", bytes.Repeat([]byte("hello "), 1000)},
		{"gzip", "cannot be unpacked", append([]byte("\x1f\x8b\x08"), make([]byte, 600)...)},
		{"short", "not a tar", []byte("x")},
	} {
		t.Run(c.name, func(t *testing.T) { stageBad(t, c.archive, c.want) })
	}
	global := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}}})
	stageBad(t, global, "no members")
}

func TestTarChangesWhileStaged(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatPAX, stageintest.RandomMembers(r, tar.FormatPAX, 100))
	for name, change := range map[string]func(*stageintest.MemNode){
		"shorter": func(n *stageintest.MemNode) { n.Data = n.Data[:len(n.Data)/2] },
		"changed": func(n *stageintest.MemNode) { n.Info.Mtime++ },
		"now":     func(n *stageintest.MemNode) { n.Info.Size++ },
	} {
		j := jobtest.TarJob(archive, 3)
		n := j.FS.Nodes[j.Path]
		once := false
		j.FS.OnRead = func(_ string, off int64) {
			j.FS.Mu.Lock()
			defer j.FS.Mu.Unlock()
			if off > 512 && !once {
				once = true
				change(n)
			}
		}
		if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "/src/a.tar", name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTarFailureStopsAll lets one share fail; the others, which wait for boundaries, end.
func TestTarFailureStopsAll(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatGNU, stageintest.RandomMembers(r, tar.FormatGNU, 200))
	j := jobtest.TarJob(archive, 5)
	gone := fmt.Errorf("transport: %w", syscall.EIO)
	j.Target = &stageintest.MemTarget{OnPut: func(_ metadata.NodeID, ino metadata.Ino, _ int) error {
		if ino.Part() == 1 {
			return gone
		}
		return nil
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := j.Run(ctx); !stageintest.ErrorHas(err, "transport") || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}
