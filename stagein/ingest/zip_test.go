package ingest_test

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	srczip "github.com/bivouacfs/bivouac/stagein/source/zip"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// checkZip stages with n nodes and compares the tree with the twin; up to more bytes may be read twice.
func checkZip(t *testing.T, archive []byte, nodes int, more int64, set ...func(*jobtest.Job)) *jobtest.Job {
	t.Helper()
	want, err := stageintest.TwinZip(archive)
	if err != nil {
		t.Fatalf("twin: %v", err)
	}
	j := jobtest.TarJob(archive, nodes)
	for _, f := range set {
		f(j)
	}
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatalf("%d nodes: %v", nodes, err)
	}
	stageintest.CheckTree(t, got, want)
	read, size := j.FS.Read.Load(), int64(len(archive))
	if read < size || read > size+more || j.Sum.SourceBytes != read || j.Sum.SourceTotal != read || j.Plan.Size != size || !j.Sum.Done {
		t.Errorf("%d nodes: read %d bytes of %d, progress %+v, plan %d", nodes, read, size, j.Sum, j.Plan.Size)
	}
	for _, e := range got {
		if e.Mode&source.TypeMask == source.TypeRegular && e.Sum == [16]byte{} {
			t.Errorf("a file without a sum: %+v", e)
		}
	}
	return j
}

func TestZipEqualsTwin(t *testing.T) {
	r := stageintest.Rand(t)
	for i := range 14 {
		archive := stageintest.WriteZip(t, "", stageintest.RandomZip(r, 1+r.IntN(60))...)
		for nodes := 1; nodes <= 7; nodes++ {
			checkZip(t, archive, nodes, 0)
		}
		archive = stageintest.WriteZip(t, strings.Repeat("comment ", 1+r.IntN(1<<uint(i%13))), stageintest.RandomZip(r, 30)...)
		checkZip(t, archive, 3, 1<<16)
	}
}

func TestZipLarge(t *testing.T) {
	r := stageintest.Rand(t)
	stored := stageintest.ZipFile("stored", stageintest.RandBytes(r, 5<<20))
	stored.Method = zip.Store
	archive := stageintest.WriteZip(t, "", stageintest.ZipFile("text", bytes.Repeat([]byte("many bytes; "), 1<<20)), stageintest.ZipFile("random", stageintest.RandBytes(r, 4<<20)), stored, stageintest.ZipFile("z", nil))
	for _, nodes := range []int{1, 4} {
		checkZip(t, archive, nodes, 0, func(j *jobtest.Job) { j.Lim, j.Memory, j.Stripe = jobtest.Bounds{}, 1, 2<<20 })
	}
}

// TestZipBalanced: every node reads about the same amount, at most one member more.
func TestZipBalanced(t *testing.T) {
	r := stageintest.Rand(t)
	var ms []stageintest.ZipMember
	for i := range 1000 {
		ms = append(ms, stageintest.ZipFile(fmt.Sprint("f", i), stageintest.RandBytes(r, 500+r.IntN(1000))))
	}
	j := checkZip(t, stageintest.WriteZip(t, "", ms...), 5, 0)
	if len(j.Plan.Parts) != 5 {
		t.Fatalf("%d parts, want 5", len(j.Plan.Parts))
	}
	for _, p := range j.Plan.Parts {
		if n := p.End - p.Off; n < j.Plan.Size/5*9/10 || n > j.Plan.Size/5*11/10 {
			t.Errorf("part %d has %d bytes of %d", p.Index, n, j.Plan.Size)
		}
	}
	if !j.Plan.Itemized() {
		t.Error("a zip archive is not itemized")
	}
}

// TestZipProgram stages archives written by the zip program: Unix times and modes, links, odd names; from a pipe with
// data descriptors, and with forced zip64.
func TestZipProgram(t *testing.T) {
	prog, err := exec.LookPath("zip")
	if err != nil {
		t.Skip("no zip program")
	}
	r := stageintest.Rand(t)
	dir := t.TempDir()
	write := func(name string, b []byte) {
		p := filepath.Join(dir, "s", name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, time.Time{}, time.Unix(r.Int64N(1<<30)+1<<29, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		write(fmt.Sprintf("d%d/f%d", i%5, i), bytes.Repeat(stageintest.RandBytes(r, 30), r.IntN(100)))
	}
	write("naïve ☃ name", []byte("utf-8"))
	write("empty", nil)
	if err := os.Symlink("d0/f0", filepath.Join(dir, "s/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "s/emptydir"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-qry"}, {"-qry", "-0"}, {"-qry", "-fz"}, {"-qryX"}} {
		archive := filepath.Join(t.TempDir(), "a.zip")
		for _, to := range []string{archive, "-"} {
			if to == "-" { // where the program can only write deflated members
				args = []string{"-qr"} // with -fz it writes no zip64 record, so no reader accepts it
			}
			cmd := exec.Command(prog, append(slices.Clone(args), to, "s")...)
			cmd.Dir = dir
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			b, err := cmd.Output()
			if err == nil && to != "-" {
				b, err = os.ReadFile(archive)
			}
			if err != nil {
				t.Fatalf("%q: %v: %s %s", cmd.Args, err, &stderr, b)
			}
			for _, nodes := range []int{1, 3} {
				j := checkZip(t, b, nodes, 0)
				if j.Plan.Kind != source.Zip {
					t.Errorf("kind %q", j.Plan.Kind)
				}
			}
		}
	}
}

// stageBadZip wants an error that contains all of parts, for any number of nodes.
func stageBadZip(t *testing.T, archive []byte, parts ...string) {
	t.Helper()
	for _, nodes := range []int{1, 3} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, err := jobtest.TarJob(archive, nodes).Run(ctx)
		if !stageintest.ErrorHas(err, append(parts, "/src/a.tar")...) || ctx.Err() != nil {
			t.Errorf("%d nodes: %v, want an error with %q", nodes, err, parts)
		}
		cancel()
	}
}

func TestZipRefuses(t *testing.T) {
	r := stageintest.Rand(t)
	with := func(z stageintest.ZipMember) []byte {
		return stageintest.WriteZip(t, "", stageintest.ZipFile("a", stageintest.RandBytes(r, 3000)), z, stageintest.ZipFile("z", stageintest.RandBytes(r, 3000)))
	}
	named := func(name string) stageintest.ZipMember { return stageintest.ZipFile(name, []byte("x")) }
	mode := func(m fs.FileMode) stageintest.ZipMember {
		z := named("odd")
		z.SetMode(m)
		return z
	}
	stageBadZip(t, with(named("/abs")), "/abs", "absolute", "offset")
	stageBadZip(t, with(named("a/../../b")), "..", "offset")
	stageBadZip(t, with(named("a")), `"a"`, "twice")
	stageBadZip(t, with(named(strings.Repeat("n", 256))), "256 bytes")
	stageBadZip(t, with(mode(fs.ModeNamedPipe|0o600)), `"odd"`, "FIFO")
	stageBadZip(t, with(mode(fs.ModeDevice|0o600)), `"odd"`, "device")
	stageBadZip(t, with(stageintest.ZipMember{FileHeader: func() zip.FileHeader { z := mode(fs.ModeSymlink | 0o777); return z.FileHeader }()}), `"odd"`, "symbolic link")
	stageBadZip(t, stageintest.WriteZip(t, ""), "no members")
	good := with(named("mm"))
	entry := bytes.LastIndex(good, []byte("PK\x01\x02"))
	entry = bytes.LastIndex(good[:entry], []byte("PK\x01\x02")) // of "mm"
	end := len(good) - 22
	patch := func(at int, b ...byte) []byte {
		bad := slices.Clone(good)
		copy(bad[at:], b)
		return bad
	}
	stageBadZip(t, patch(entry+8, 1), `"mm"`, "encrypted")
	stageBadZip(t, patch(entry+10, 93), `"mm"`, "method 93")
	stageBadZip(t, patch(end+4, 1), "multi-disk")
	stageBadZip(t, patch(entry+34, 1), `"mm"`, "multi-disk")
	stageBadZip(t, patch(end+10, 9), "multi-disk")
	stageBadZip(t, patch(end+12, 9), "does not end where")
	stageBadZip(t, patch(entry+42, 0, 0, 0, 0), "overlaps")
	stageBadZip(t, patch(entry+20, 200, 0, 0, 0), "overlaps")
	stageBadZip(t, patch(entry+24, 255, 255, 255, 0), `"mm"`, "sizes")
	stageBadZip(t, patch(entry+24, 2, 0, 0, 0), `"mm"`, "before")
	stageBadZip(t, patch(entry+24, 0, 0, 0, 0), `"mm"`, "more than the 0 bytes")
	stageBadZip(t, patch(entry+16, 1, 2, 3, 4), `"mm"`, "checksum")
	stageBadZip(t, append(slices.Clone(good), "garbage"...), "truncated or damaged")
	stageBadZip(t, good[:len(good)/2], "truncated or damaged")
}

// TestZipLies stages a local header that differs from the directory, and a bomb of members that share their data.
func TestZipLies(t *testing.T) {
	good := stageintest.WriteZip(t, "", stageintest.ZipFile("first", make([]byte, 9000)), stageintest.ZipFile("second", make([]byte, 9000)))
	local := bytes.LastIndex(good, []byte("PK\x03\x04"))
	for at, want := range map[int]string{6: "encrypted", 8: "method", 26: "local header names", 28: "overlaps", 30: "local header names", 2: "no local header"} {
		bad := slices.Clone(good)
		switch at {
		case 8, 30, 2:
			bad[local+at] ^= 7
		case 28:
			bad[local+at+1] = 99
		case 26:
			bad[local+at]--
		default:
			bad[local+at] |= 1
		}
		stageBadZip(t, bad, `"second"`, want)
	}
	// Both entries point to the data of the first.
	bad := slices.Clone(good)
	at := bytes.LastIndex(bad, []byte("PK\x01\x02"))
	binary.LittleEndian.PutUint32(bad[at+42:], 0)
	stageBadZip(t, bad, "overlaps")
}

func TestZipCorrupt(t *testing.T) {
	r := stageintest.Rand(t)
	data := stageintest.RandBytes(r, 5000)
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		z := stageintest.ZipFile("damaged", data)
		z.Method = method
		archive := stageintest.WriteZip(t, "", stageintest.ZipFile("a", nil), z)
		at := bytes.Index(archive, data[1000:1100])
		if at < 0 {
			t.Fatal("where is the data?")
		}
		archive[at] ^= 1
		stageBadZip(t, archive, `"damaged"`, "offset", fmt.Sprintf("%08x", crc32.ChecksumIEEE(data)))
	}
}

// TestZipChangesWhileStaged: an archive that was replaced is never read as the one that was planned.
func TestZipChangesWhileStaged(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.ZipMember
	for i := range 40 {
		members = append(members, stageintest.ZipFile(fmt.Sprint("m", i), stageintest.RandBytes(r, 3000)))
	}
	archive := stageintest.WriteZip(t, "", members...)
	for name, c := range map[string]struct {
		change func(*jobtest.Job)
		want   string
	}{
		"shrinks":    {func(j *jobtest.Job) { n := j.FS.Nodes[j.Path]; n.Data = n.Data[:len(n.Data)/4] }, "shorter"},
		"is touched": {func(j *jobtest.Job) { j.FS.Nodes[j.Path].Info.Mtime++ }, "changed"},
		"grows":      {func(j *jobtest.Job) { j.FS.Nodes[j.Path].Info.Size++ }, "now"},
		"disappears": {func(j *jobtest.Job) { delete(j.FS.Nodes, j.Path) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			j := jobtest.TarJob(archive, 3)
			var once sync.Once
			j.Order = func(int) { // runs once the plan exists
				once.Do(func() {
					j.FS.Mu.Lock()
					defer j.FS.Mu.Unlock()
					c.change(j)
				})
			}
			if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "/src/a.tar", c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestZipRoom(t *testing.T) {
	archive := stageintest.WriteZip(t, "", stageintest.ZipFile("bomb", make([]byte, 1<<20-1)))
	j := jobtest.TarJob(archive, 1)
	j.Free = func(metadata.NodeID) (int64, bool) { return 1 << 19, true }
	if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "n0 needs room for", "512.0 KiB", "(1024.0 KiB in all)") || len(j.Target.Objects) > 0 {
		t.Errorf("%v, want a refusal", err)
	}
}

// FuzzZip stages corrupted archives. A tree staged without an error must be the one that archive/zip finds, for any
// number of nodes.
func FuzzZip(f *testing.F) {
	for i := range 40 {
		f.Add(uint64(i), uint16(i%2*i*97), uint16(i), uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64, cut, flips uint16, nodes uint8) {
		r := rand.New(rand.NewPCG(seed, 4))
		archive := stageintest.Spoil(stageintest.WriteZip(t, "", stageintest.RandomZip(r, 1+r.IntN(12))...), cut, flips, r, false)
		alone, err1 := stageSpoilt(t, archive, 1)
		several, errN := stageSpoilt(t, archive, 2+int(nodes%6))
		if (err1 == nil) != (errN == nil) {
			t.Fatalf("one node: %v; several: %v", err1, errN)
		}
		if err1 != nil {
			return
		}
		stageintest.CheckTree(t, several, alone)
		want, err := stageintest.TwinZip(archive)
		if err != nil {
			t.Fatalf("staged, but archive/zip says: %v", err)
		}
		for p, w := range want { // another test compares the bits for times and modes
			g := alone[p]
			if g.Data != w.Data || g.Target != w.Target || g.Mode&source.TypeMask != w.Mode&source.TypeMask {
				t.Errorf("%q is %+v, archive/zip has %+v", p, g, w)
			}
		}
		if len(alone) != len(want) {
			t.Errorf("%d were staged, archive/zip has %d", len(alone), len(want))
		}
	})
}

// BenchmarkZip does for one range of a zip archive what BenchmarkPacked does for a tar.
func BenchmarkZip(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var ms []stageintest.ZipMember
	size := 0
	for i := range 300 {
		data := stageintest.RandBytes(r, 110_000)
		for j := range data {
			if j/1000%2 == 0 {
				data[j] = "etaoin shrdlu"[int(data[j])%13]
			}
		}
		size += len(data)
		ms = append(ms, stageintest.ZipFile(fmt.Sprint("f", i), data))
	}
	archive := stageintest.WriteZip(b, "", ms...)
	var d srczip.Inflater
	b.Run("bare", func(b *testing.B) {
		perCore(b, size, func() error {
			z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
			for i := 0; err == nil && i < len(z.File); i++ {
				var raw io.Reader
				if raw, err = z.File[i].OpenRaw(); err == nil {
					err = d.Reset(bufio.NewReader(raw))
				}
				if err == nil {
					_, err = io.Copy(io.Discard, &d)
				}
			}
			return err
		})
	})
	for _, nodes := range []int{1, 2} {
		b.Run(fmt.Sprintf("staged by %d", nodes), func(b *testing.B) {
			perCore(b, size, func() error {
				j := jobtest.TarJob(archive, nodes)
				j.Lim, j.Memory, j.Discard = jobtest.Bounds{}, 0, true
				_, err := j.Run(context.Background())
				return err
			})
		})
	}
}
