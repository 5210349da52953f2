package stagein

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
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
	"github.com/bivouacfs/bivouac/stagein/source"
)

// zipped is a member of a generated zip archive.
type zipped struct {
	zip.FileHeader
	data []byte
}

func writeZip(t testing.TB, comment string, members ...zipped) []byte {
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

func zipFile(name string, data []byte) zipped {
	z := zipped{zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Unix(1e9+1, 0)}, data}
	z.SetMode(0o640)
	return z
}

func randomZip(r *rand.Rand, n int) (ms []zipped) {
	dirs := []string{""}
	for i := range n {
		z := zipFile(dirs[r.IntN(len(dirs))]+fmt.Sprintf("m%d", i), nil)
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
			z.data = randBytes(r, r.IntN(9000))
		default:
			z.data = bytes.Repeat(randBytes(r, 10+r.IntN(200)), r.IntN(10))
		}
		ms = append(ms, z)
	}
	return ms
}

// twinZip is the dumb way: archive/zip.
func twinZip(archive []byte) (map[string]entry, error) {
	tree := map[string]entry{}
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
		e := entry{Mode: uint32(mode.Perm()), Mtime: clamp(f.Modified)}
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

// checkZip stages with n nodes and compares with the twin; more is how many
// bytes may be read twice.
func checkZip(t *testing.T, archive []byte, nodes int, more int64, set ...func(*job)) *job {
	t.Helper()
	want, err := twinZip(archive)
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
	read, size := j.fs.read.Load(), int64(len(archive))
	if read < size || read > size+more || j.sum.SourceBytes != read || j.sum.SourceTotal != read || j.plan.Size != size || !j.sum.Done {
		t.Errorf("%d nodes: read %d bytes of %d, progress %+v, plan %d", nodes, read, size, j.sum, j.plan.Size)
	}
	for _, e := range got {
		if e.Mode&source.TypeMask == source.TypeRegular && e.sum == [16]byte{} {
			t.Errorf("a file without a sum: %+v", e)
		}
	}
	return j
}

func TestZipEqualsTwin(t *testing.T) {
	r := seed(t)
	for i := range 40 {
		archive := writeZip(t, "", randomZip(r, 1+r.IntN(60))...)
		for nodes := 1; nodes <= 7; nodes++ {
			checkZip(t, archive, nodes, 0)
		}
		archive = writeZip(t, strings.Repeat("comment ", 1+r.IntN(1<<uint(i%13))), randomZip(r, 30)...)
		checkZip(t, archive, 3, 1<<16)
	}
}

func TestZipLarge(t *testing.T) {
	r := seed(t)
	stored := zipFile("stored", randBytes(r, 5<<20))
	stored.Method = zip.Store
	archive := writeZip(t, "", zipFile("text", bytes.Repeat([]byte("many bytes; "), 1<<20)), zipFile("random", randBytes(r, 4<<20)), stored, zipFile("z", nil))
	for _, nodes := range []int{1, 4} {
		checkZip(t, archive, nodes, 0, func(j *job) { j.lim, j.memory, j.stripe = limits{}, 1, 2<<20 })
	}
}

// TestZipBalanced has every node read about as much, at most one member more.
func TestZipBalanced(t *testing.T) {
	r := seed(t)
	var ms []zipped
	for i := range 1000 {
		ms = append(ms, zipFile(fmt.Sprint("f", i), randBytes(r, 500+r.IntN(1000))))
	}
	j := checkZip(t, writeZip(t, "", ms...), 5, 0)
	if len(j.plan.Parts) != 5 {
		t.Fatalf("%d parts, want 5", len(j.plan.Parts))
	}
	for _, p := range j.plan.Parts {
		if n := p.End - p.Off; n < j.plan.Size/5*9/10 || n > j.plan.Size/5*11/10 {
			t.Errorf("part %d has %d bytes of %d", p.Index, n, j.plan.Size)
		}
	}
	if !j.plan.Itemized() {
		t.Error("a zip archive is not itemized")
	}
}

// TestZipProgram stages what the zip program writes: unix times and modes,
// links, odd names; from a pipe with descriptors, and zip64 by force.
func TestZipProgram(t *testing.T) {
	prog, err := exec.LookPath("zip")
	if err != nil {
		t.Skip("no zip program")
	}
	r := seed(t)
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
		write(fmt.Sprintf("d%d/f%d", i%5, i), bytes.Repeat(randBytes(r, 30), r.IntN(100)))
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
			if to == "-" { // where the program can only write what is deflated
				args = []string{"-qr"} // with -fz it writes no zip64 record, which no one reads
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
				if j.plan.Kind != source.Zip {
					t.Errorf("kind %q", j.plan.Kind)
				}
			}
		}
	}
}

// stageBadZip wants an error with all of parts, whatever the number of nodes.
func stageBadZip(t *testing.T, archive []byte, parts ...string) {
	t.Helper()
	for _, nodes := range []int{1, 3} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, err := tarJob(archive, nodes).run(ctx)
		if !errorHas(err, append(parts, "/src/a.tar")...) || ctx.Err() != nil {
			t.Errorf("%d nodes: %v, want an error with %q", nodes, err, parts)
		}
		cancel()
	}
}

func TestZipRefuses(t *testing.T) {
	r := seed(t)
	with := func(z zipped) []byte {
		return writeZip(t, "", zipFile("a", randBytes(r, 3000)), z, zipFile("z", randBytes(r, 3000)))
	}
	named := func(name string) zipped { return zipFile(name, []byte("x")) }
	mode := func(m fs.FileMode) zipped {
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
	stageBadZip(t, with(zipped{FileHeader: func() zip.FileHeader { z := mode(fs.ModeSymlink | 0o777); return z.FileHeader }()}), `"odd"`, "symbolic link")
	stageBadZip(t, writeZip(t, ""), "no members")
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

// TestZipLies has a local header that is not what the directory says, and a
// bomb of members that share their data.
func TestZipLies(t *testing.T) {
	good := writeZip(t, "", zipFile("first", make([]byte, 9000)), zipFile("second", make([]byte, 9000)))
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
	// Both entries with the data of the first.
	bad := slices.Clone(good)
	at := bytes.LastIndex(bad, []byte("PK\x01\x02"))
	binary.LittleEndian.PutUint32(bad[at+42:], 0)
	stageBadZip(t, bad, "overlaps")
}

func TestZipCorrupt(t *testing.T) {
	r := seed(t)
	data := randBytes(r, 5000)
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		z := zipFile("damaged", data)
		z.Method = method
		archive := writeZip(t, "", zipFile("a", nil), z)
		at := bytes.Index(archive, data[1000:1100])
		if at < 0 {
			t.Fatal("where is the data?")
		}
		archive[at] ^= 1
		stageBadZip(t, archive, `"damaged"`, "offset", fmt.Sprintf("%08x", crc32.ChecksumIEEE(data)))
	}
}

// TestZipChangesWhileStaged: an archive that another has taken the place of is never
// read as the one that was planned.
func TestZipChangesWhileStaged(t *testing.T) {
	r := seed(t)
	var members []zipped
	for i := range 40 {
		members = append(members, zipFile(fmt.Sprint("m", i), randBytes(r, 3000)))
	}
	archive := writeZip(t, "", members...)
	for name, c := range map[string]struct {
		change func(*job)
		want   string
	}{
		"shrinks":    {func(j *job) { n := j.fs.nodes[j.path]; n.data = n.data[:len(n.data)/4] }, "shorter"},
		"is touched": {func(j *job) { j.fs.nodes[j.path].info.Mtime++ }, "changed"},
		"grows":      {func(j *job) { j.fs.nodes[j.path].info.Size++ }, "now"},
		"disappears": {func(j *job) { delete(j.fs.nodes, j.path) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			j := tarJob(archive, 3)
			var once sync.Once
			j.order = func(int) { // when the plan is made
				once.Do(func() {
					j.fs.mu.Lock()
					defer j.fs.mu.Unlock()
					c.change(j)
				})
			}
			if _, err := j.run(context.Background()); !errorHas(err, "/src/a.tar", c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestZipRoom(t *testing.T) {
	archive := writeZip(t, "", zipFile("bomb", make([]byte, 1<<20-1)))
	j := tarJob(archive, 1)
	j.free = func(metadata.NodeID) (int64, bool) { return 1 << 19, true }
	if _, err := j.run(context.Background()); !errorHas(err, "n0 needs room for", "512.0 KiB", "(1024.0 KiB in all)") || len(j.target.objects) > 0 {
		t.Errorf("%v, want a refusal", err)
	}
}

// FuzzZip stages spoilt archives. What is staged without an error must be what
// archive/zip finds, whatever the number of nodes.
func FuzzZip(f *testing.F) {
	for i := range 40 {
		f.Add(uint64(i), uint16(i%2*i*97), uint16(i), uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64, cut, flips uint16, nodes uint8) {
		r := rand.New(rand.NewPCG(seed, 4))
		archive := spoil(writeZip(t, "", randomZip(r, 1+r.IntN(12))...), cut, flips, r, false)
		alone, err1 := stageSpoilt(t, archive, 1)
		several, errN := stageSpoilt(t, archive, 2+int(nodes%6))
		if (err1 == nil) != (errN == nil) {
			t.Fatalf("one node: %v; several: %v", err1, errN)
		}
		if err1 != nil {
			return
		}
		checkTree(t, several, alone)
		want, err := twinZip(archive)
		if err != nil {
			t.Fatalf("staged, but archive/zip says: %v", err)
		}
		for p, w := range want { // of bits that only mean a time or a mode, another test
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

// BenchmarkZip is what BenchmarkPacked is, for one range of a zip archive.
func BenchmarkZip(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var ms []zipped
	size := 0
	for i := range 300 {
		data := randBytes(r, 110_000)
		for j := range data {
			if j/1000%2 == 0 {
				data[j] = "etaoin shrdlu"[int(data[j])%13]
			}
		}
		size += len(data)
		ms = append(ms, zipFile(fmt.Sprint("f", i), data))
	}
	archive := writeZip(b, "", ms...)
	var d source.Inflater
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
				j := tarJob(archive, nodes)
				j.lim, j.memory, j.discard = limits{}, 0, true
				_, err := j.run(context.Background())
				return err
			})
		})
	}
}
