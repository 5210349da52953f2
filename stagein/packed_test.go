package stagein

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	stdgzip "compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/bivouacfs/bivouac/metadata"
)

// codec is a way to compress a tar, and the dumb way back.
type codec struct {
	name   string
	pack   func(t testing.TB, b []byte) []byte
	unpack func(r io.Reader) (io.Reader, error)
}

func through(open func(w io.Writer) (io.WriteCloser, error)) func(testing.TB, []byte) []byte {
	return func(t testing.TB, b []byte) []byte {
		t.Helper()
		var out bytes.Buffer
		w, err := open(&out)
		if err == nil {
			_, err = w.Write(b)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
}

// program compresses by a program; it skips where there is none.
func program(args ...string) func(testing.TB, []byte) []byte {
	return func(t testing.TB, b []byte) []byte {
		t.Helper()
		path, err := exec.LookPath(args[0])
		if err != nil {
			t.Skipf("no %s program", args[0])
		}
		cmd := exec.Command(path, args[1:]...)
		cmd.Stdin = bytes.NewReader(b)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out
	}
}

func gunzip(r io.Reader) (io.Reader, error)  { return stdgzip.NewReader(r) }
func bunzip2(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }
func unxz(r io.Reader) (io.Reader, error)    { return xz.NewReader(r) }

func unzstd(r io.Reader) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
}

// codecs has one that needs no program for every kind that Go can write, first.
var codecs = []codec{
	{"gzip", through(func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }), gunzip},
	{"zstd", through(func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }), unzstd},
	{"xz", through(func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }), unxz},
	{"program gzip", program("gzip", "-c"), gunzip},
	{"program pigz", program("pigz", "-c", "-p2"), gunzip},
	{"program bgzip", program("bgzip", "-c", "-@2"), gunzip},
	{"program zstd", program("zstd", "-c"), unzstd},
	{"program pzstd", program("pzstd", "-c"), unzstd},
	{"program xz", program("xz", "-c"), unxz},
	{"program xz blocks", program("xz", "-T2", "--block-size=5000", "-c"), unxz},
	{"program bzip2", program("bzip2", "-c"), bunzip2},
	{"program lbzip2", program("lbzip2", "-c", "-n2"), bunzip2},
	{"program pbzip2", program("pbzip2", "-c", "-p2", "-b1"), bunzip2},
}

func everyCodec(t *testing.T, f func(t *testing.T, c codec)) {
	for _, c := range codecs {
		t.Run(c.name, func(t *testing.T) { f(t, c) })
	}
}

// twinPacked is the dumb way: all of it in memory, and the tar's twin.
func twinPacked(c codec, archive []byte) (map[string]entry, error) {
	r, err := c.unpack(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return twin(b)
}

// checkPacked stages and wants what the twin has, and every byte read once.
func checkPacked(t *testing.T, c codec, archive []byte, nodes int, set ...func(*job)) *job {
	t.Helper()
	want, err := twinPacked(c, archive)
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
	if read != size || j.sum.SourceBytes != read || j.sum.SourceTotal != size || j.plan.Size != size || !j.sum.Done {
		t.Errorf("%d nodes: read %d bytes of %d, progress %+v, plan %d", nodes, read, size, j.sum, j.plan.Size)
	}
	return j
}

func TestPackedEqualsTwin(t *testing.T) {
	r := seed(t)
	everyCodec(t, func(t *testing.T, c codec) {
		for i := range 6 {
			format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[i%3]
			archive := c.pack(t, writeTar(t, format, randomMembers(r, format, 1+r.IntN(60))))
			for _, nodes := range []int{1, 2, 5} {
				checkPacked(t, c, archive, nodes)
			}
		}
	})
}

// TestPackedLarge has pieces of the usual size, and a striped file.
func TestPackedLarge(t *testing.T) {
	r := seed(t)
	text := bytes.Repeat([]byte("what is unpacked is larger than a piece; "), 60_000)
	archive := writeTar(t, tar.FormatPAX, []member{
		file("a", randBytes(r, 5000)), file("text", text), file("big", randBytes(r, 3<<20)), file("z", nil),
	})
	everyCodec(t, func(t *testing.T, c codec) {
		if strings.Contains(c.name, "blocks") {
			t.Skip("small blocks take long")
		}
		checkPacked(t, c, c.pack(t, archive), 3, func(j *job) { j.lim, j.memory, j.stripe = limits{}, 1, 1<<20 })
	})
}

// TestPackedJoined has what cat makes of compressed pieces of one tar.
func TestPackedJoined(t *testing.T) {
	r := seed(t)
	archive := writeTar(t, tar.FormatGNU, randomMembers(r, tar.FormatGNU, 40))
	everyCodec(t, func(t *testing.T, c codec) {
		var joined []byte
		for _, part := range [][]byte{archive[:700], archive[700:1000], nil, archive[1000:9000], archive[9000:]} {
			joined = append(joined, c.pack(t, part)...)
		}
		checkPacked(t, c, joined, 3)
	})
}

// TestPackedSpreads has several archives go to several nodes.
func TestPackedSpreads(t *testing.T) {
	archive := codecs[0].pack(t, writeTar(t, tar.FormatGNU, []member{file("a", nil)}))
	nodes := map[metadata.NodeID]int{}
	for i := range 40 {
		j := checkPacked(t, codecs[0], archive, 4, func(j *job) {
			j.path = fmt.Sprintf("/src/shard-%03d.tgz", i)
			j.fs.add(j.path, 0o100644, archive)
		})
		if len(j.plan.Parts) != 1 {
			t.Fatalf("%d parts, want 1", len(j.plan.Parts))
		}
		nodes[j.plan.Parts[0].Node]++
	}
	if len(nodes) != 4 {
		t.Errorf("40 archives are read by %v", nodes)
	}
}

// stageBadPacked wants an error with all of parts, soon.
func stageBadPacked(t *testing.T, archive []byte, parts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := tarJob(archive, 3).run(ctx)
	if !errorHas(err, append(parts, "/src/a.tar")...) || ctx.Err() != nil {
		t.Errorf("%v, want an error with %q", err, parts)
	}
}

func TestPackedTruncated(t *testing.T) {
	r := seed(t)
	archive := writeTar(t, tar.FormatPAX, []member{file("first", randBytes(r, 20_000)), file("second", randBytes(r, 20_000)), file("third", nil)})
	everyCodec(t, func(t *testing.T, c codec) {
		whole := c.pack(t, archive)
		for range 20 {
			cut := 6 + r.IntN(len(whole)-6)
			stageBadPacked(t, whole[:cut], "compressed offset")
		}
		want := []string{"truncated", fmt.Sprintf("offset %d", len(whole)-1), "member"}
		if !strings.Contains(c.name, "zstd") { // which keeps a block back until it knows that it is right
			want = append(want, "third")
		}
		stageBadPacked(t, whole[:len(whole)-1], want...)
		stageBadPacked(t, c.pack(t, archive[:30_000]), "tar inside", "second", "truncated")
	})
}

func TestPackedTrailingGarbage(t *testing.T) {
	r := seed(t)
	archive := writeTar(t, tar.FormatPAX, []member{file("first", randBytes(r, 9_000)), file("last", nil)})
	everyCodec(t, func(t *testing.T, c codec) {
		whole := c.pack(t, archive)
		for _, garbage := range []string{"x", "xy", "xyz", "garbage that is longer than a header", string(whole[:9])} {
			t.Logf("%q", garbage)
			stageBadPacked(t, append(slices.Clone(whole), garbage...), "compressed offset", `"last"`)
		}
		twice := append(slices.Clone(whole), whole...)
		stageBadPacked(t, twice, "another begins", "compressed offset")
	})
}

func TestPackedIsNoTar(t *testing.T) {
	everyCodec(t, func(t *testing.T, c codec) {
		stageBadPacked(t, c.pack(t, bytes.Repeat([]byte("just text "), 500)), "no tar")
		stageBadPacked(t, c.pack(t, []byte("short")), "no tar")
		stageBadPacked(t, c.pack(t, make([]byte, 10240)), "no members")
		stageBadPacked(t, c.pack(t, nil), "no members")
	})
}

// TestPackedBomb has a small file that unpacks to more than there is room for.
func TestPackedBomb(t *testing.T) {
	archive := writeTar(t, tar.FormatGNU, []member{file("fits", make([]byte, 1000)), file("bomb", make([]byte, 8<<20))})
	everyCodec(t, func(t *testing.T, c codec) {
		if strings.Contains(c.name, "blocks") {
			t.Skip("is not small")
		}
		j := tarJob(c.pack(t, archive), 4)
		j.free = func(metadata.NodeID) (int64, bool) { return 1 << 20, true }
		_, err := j.run(context.Background())
		if stays := err == nil && j.spilled == 1; !stays && !errorHas(err, "/src/a.tar", `"bomb"`, "1.0 MiB", "no space left", "more nodes") {
			t.Errorf("%v, want a refusal", err)
		}
		stored := 0
		for _, b := range j.target.objects {
			stored += len(b)
		}
		if stored > 1000 {
			t.Errorf("%d bytes were stored of a bomb", stored)
		}
		j.free = func(metadata.NodeID) (int64, bool) { return 9 << 20, true }
		if _, err := j.run(context.Background()); err != nil {
			t.Errorf("with room: %v", err)
		}
	})
}

func TestPackedXzDictionary(t *testing.T) {
	pack := program("xz", "--lzma2=dict=256MiB", "-c")
	stageBadPacked(t, pack(t, writeTar(t, tar.FormatGNU, []member{file("a", nil)})), "dictionary", "compressed offset")
}

func TestPackedChangesWhileStaged(t *testing.T) {
	r := seed(t)
	archive := codecs[0].pack(t, writeTar(t, tar.FormatPAX, []member{file("a", randBytes(r, 100_000))}))
	for name, change := range map[string]func(*memNode){
		"shorter": func(n *memNode) { n.data = n.data[:len(n.data)/2] },
		"changed": func(n *memNode) { n.info.Mtime++ },
	} {
		j := tarJob(archive, 3)
		n := j.fs.nodes[j.path]
		once := false
		j.fs.onRead = func(_ string, off int64) {
			j.fs.mu.Lock()
			defer j.fs.mu.Unlock()
			if off >= 512 && !once {
				once = true
				change(n)
			}
		}
		if _, err := j.run(context.Background()); !errorHas(err, "/src/a.tar", name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPacked stages spoilt compressed tars. What is staged without an error
// must be what the dumb way finds.
func FuzzPacked(f *testing.F) {
	for i := range 40 {
		f.Add(uint64(i), uint16(i%2*i*37), uint16(i%2*8+i%3), uint8(i), uint8(i%3))
	}
	f.Fuzz(func(t *testing.T, seed uint64, cut, flips uint16, kind, tail uint8) {
		c := codecs[int(kind)%len(codecs)]
		r := rand.New(rand.NewPCG(seed, 3))
		archive := c.pack(t, writeTar(t, tar.FormatPAX, randomMembers(r, tar.FormatPAX, 1+r.IntN(8))))
		archive = append(spoil(archive, cut, flips, r, false), randBytes(r, int(tail%5))...)
		got, err := stageSpoilt(t, archive, 3)
		if err != nil {
			return
		}
		want, err := twinPacked(c, archive)
		if err != nil {
			t.Fatalf("staged, but the twin says: %v", err)
		}
		checkTree(t, got, want)
	})
}

// BenchmarkPacked compares what a core unpacks and stages with what the bare
// decoder alone does; both in MB of the tar for each second of processor.
func BenchmarkPacked(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var members []member
	for i := range 300 {
		data := randBytes(r, 110_000)
		for j := range data { // half of it is text-like
			if j/1000%2 == 0 {
				data[j] = "etaoin shrdlu"[int(data[j])%13]
			}
		}
		members = append(members, file(fmt.Sprint("f", i), data))
	}
	plain := writeTar(b, tar.FormatGNU, members)
	for _, c := range codecs {
		if strings.Contains(c.name, "blocks") || strings.Contains(c.name, "program") && !strings.Contains(c.name, "bzip2") {
			continue
		}
		archive := c.pack(b, plain)
		bare := func() error {
			d, err := c.unpack(bytes.NewReader(archive))
			if c.name == "gzip" { // the same decoder as staging uses
				d, err = gzip.NewReader(bytes.NewReader(archive))
			}
			if err == nil {
				_, err = io.Copy(io.Discard, d)
			}
			return err
		}
		b.Run(c.name+"/bare", func(b *testing.B) { perCore(b, len(plain), bare) })
		b.Run(c.name+"/staged", func(b *testing.B) {
			perCore(b, len(plain), func() error {
				j := tarJob(archive, 2)
				j.lim, j.memory, j.discard = limits{}, 0, true
				_, err := j.run(context.Background())
				return err
			})
		})
	}
}

func perCore(b *testing.B, n int, f func() error) {
	b.SetBytes(int64(n))
	before := cpu()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/1e6/(cpu()-before).Seconds(), "MB/cpu-s")
}

// cpu is the time of the processors that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
