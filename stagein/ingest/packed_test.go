package ingest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// checkPacked stages archive, compares the tree with the twin, and checks that every byte is read once.
func checkPacked(t *testing.T, c stageintest.Codec, archive []byte, nodes int, set ...func(*jobtest.Job)) *jobtest.Job {
	t.Helper()
	want, err := stageintest.TwinPacked(c, archive)
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
	if read != size || j.Sum.SourceBytes != read || j.Sum.SourceTotal != size || j.Plan.Size != size || !j.Sum.Done {
		t.Errorf("%d nodes: read %d bytes of %d, progress %+v, plan %d", nodes, read, size, j.Sum, j.Plan.Size)
	}
	return j
}

func TestPackedEqualsTwin(t *testing.T) {
	r := stageintest.Rand(t)
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		for i := range 3 {
			format := []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX}[i%3]
			archive := c.Pack(t, stageintest.WriteTar(t, format, stageintest.RandomMembers(r, format, 1+r.IntN(60))))
			for _, nodes := range []int{1, 2, 5} {
				checkPacked(t, c, archive, nodes)
			}
		}
	})
}

// TestPackedLarge uses pieces of the default size, and a striped file.
func TestPackedLarge(t *testing.T) {
	r := stageintest.Rand(t)
	text := bytes.Repeat([]byte("what is unpacked is larger than a piece; "), 40_000)
	archive := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{
		stageintest.TarFile("a", stageintest.RandBytes(r, 5000)), stageintest.TarFile("text", text), stageintest.TarFile("big", stageintest.RandBytes(r, 5<<18)), stageintest.TarFile("z", nil),
	})
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		if strings.Contains(c.Name, "blocks") {
			t.Skip("small blocks take long")
		}
		checkPacked(t, c, c.Pack(t, archive), 3, func(j *jobtest.Job) { j.Lim, j.Memory, j.Stripe = jobtest.Bounds{}, 1, 1<<19 })
	})
}

// TestPackedJoined stages a concatenation of compressed pieces of one tar.
func TestPackedJoined(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatGNU, stageintest.RandomMembers(r, tar.FormatGNU, 40))
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		var joined []byte
		for _, part := range [][]byte{archive[:700], archive[700:1000], nil, archive[1000:9000], archive[9000:]} {
			joined = append(joined, c.Pack(t, part)...)
		}
		checkPacked(t, c, joined, 3)
	})
}

// TestPackedSpreads checks that several archives are read by several nodes.
func TestPackedSpreads(t *testing.T) {
	archive := stageintest.Codecs[0].Pack(t, stageintest.WriteTar(t, tar.FormatGNU, []stageintest.Member{stageintest.TarFile("a", nil)}))
	nodes := map[metadata.NodeID]int{}
	for i := range 40 {
		j := checkPacked(t, stageintest.Codecs[0], archive, 4, func(j *jobtest.Job) {
			j.Path = fmt.Sprintf("/src/shard-%03d.tgz", i)
			j.FS.Add(j.Path, 0o100644, archive)
		})
		if len(j.Plan.Parts) != 1 {
			t.Fatalf("%d parts, want 1", len(j.Plan.Parts))
		}
		nodes[j.Plan.Parts[0].Node]++
	}
	if len(nodes) != 4 {
		t.Errorf("40 archives are read by %v", nodes)
	}
}

// stageBadPacked wants an error that contains all of parts, soon.
func stageBadPacked(t *testing.T, archive []byte, parts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := jobtest.TarJob(archive, 3).Run(ctx)
	if !stageintest.ErrorHas(err, append(parts, "/src/a.tar")...) || ctx.Err() != nil {
		t.Errorf("%v, want an error with %q", err, parts)
	}
}

func TestPackedTruncated(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("first", stageintest.RandBytes(r, 20_000)), stageintest.TarFile("second", stageintest.RandBytes(r, 20_000)), stageintest.TarFile("third", nil)})
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		whole := c.Pack(t, archive)
		for range 8 {
			cut := 6 + r.IntN(len(whole)-6)
			stageBadPacked(t, whole[:cut], "compressed offset")
		}
		want := []string{"truncated", fmt.Sprintf("offset %d", len(whole)-1), "member"}
		if !strings.Contains(c.Name, "zstd") { // holds a block back until its checksum is verified
			want = append(want, "third")
		}
		stageBadPacked(t, whole[:len(whole)-1], want...)
		stageBadPacked(t, c.Pack(t, archive[:30_000]), "tar inside", "second", "truncated")
	})
}

func TestPackedTrailingGarbage(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("first", stageintest.RandBytes(r, 9_000)), stageintest.TarFile("last", nil)})
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		whole := c.Pack(t, archive)
		for _, garbage := range []string{"x", "xy", "xyz", "garbage that is longer than a header", string(whole[:9])} {
			t.Logf("%q", garbage)
			stageBadPacked(t, append(slices.Clone(whole), garbage...), "compressed offset", `"last"`)
		}
		twice := append(slices.Clone(whole), whole...)
		stageBadPacked(t, twice, "another begins", "compressed offset")
	})
}

func TestPackedIsNoTar(t *testing.T) {
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		stageBadPacked(t, c.Pack(t, bytes.Repeat([]byte("just text "), 500)), "not a tar")
		stageBadPacked(t, c.Pack(t, []byte("short")), "not a tar")
		stageBadPacked(t, c.Pack(t, make([]byte, 10240)), "no members")
		stageBadPacked(t, c.Pack(t, nil), "no members")
	})
}

// TestPackedBomb stages a small file that unpacks to more than there is room for.
func TestPackedBomb(t *testing.T) {
	archive := stageintest.WriteTar(t, tar.FormatGNU, []stageintest.Member{stageintest.TarFile("fits", make([]byte, 1000)), stageintest.TarFile("bomb", make([]byte, 5<<20))})
	stageintest.EveryCodec(t, func(t *testing.T, c stageintest.Codec) {
		if strings.Contains(c.Name, "blocks") {
			t.Skip("is not small")
		}
		j := jobtest.TarJob(c.Pack(t, archive), 4)
		j.Free = func(metadata.NodeID) (int64, bool) { return 1 << 20, true }
		_, err := j.Run(context.Background())
		if !stageintest.ErrorHas(err, "/src/a.tar", `"bomb"`, "1.0 MiB", "no space left", "more nodes") {
			t.Errorf("%v, want a refusal", err)
		}
		stored := 0
		for _, b := range j.Target.Objects {
			stored += len(b)
		}
		if stored > 1000 {
			t.Errorf("%d bytes were stored of a bomb", stored)
		}
		j.Free = func(metadata.NodeID) (int64, bool) { return 6 << 20, true }
		if _, err := j.Run(context.Background()); err != nil {
			t.Errorf("with room: %v", err)
		}
	})
}

func TestPackedXzDictionary(t *testing.T) {
	pack := stageintest.PackProgram("xz", "--lzma2=dict=256MiB", "-c")
	stageBadPacked(t, pack(t, stageintest.WriteTar(t, tar.FormatGNU, []stageintest.Member{stageintest.TarFile("a", nil)})), "dictionary", "compressed offset")
}

func TestPackedChangesWhileStaged(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.Codecs[0].Pack(t, stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("a", stageintest.RandBytes(r, 100_000))}))
	for name, change := range map[string]func(*stageintest.MemNode){
		"shorter": func(n *stageintest.MemNode) { n.Data = n.Data[:len(n.Data)/2] },
		"changed": func(n *stageintest.MemNode) { n.Info.Mtime++ },
	} {
		j := jobtest.TarJob(archive, 3)
		n := j.FS.Nodes[j.Path]
		once := false
		j.FS.OnRead = func(_ string, off int64) {
			j.FS.Mu.Lock()
			defer j.FS.Mu.Unlock()
			if off >= 512 && !once {
				once = true
				change(n)
			}
		}
		if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "/src/a.tar", name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPacked stages corrupted compressed tars. A tree staged without an error must be the one that a naive reader
// finds.
func FuzzPacked(f *testing.F) {
	for i := range 40 {
		f.Add(uint64(i), uint16(i%2*i*37), uint16(i%2*8+i%3), uint8(i), uint8(i%3))
	}
	f.Fuzz(func(t *testing.T, seed uint64, cut, flips uint16, kind, tail uint8) {
		c := stageintest.Codecs[int(kind)%len(stageintest.Codecs)]
		r := rand.New(rand.NewPCG(seed, 3))
		archive := c.Pack(t, stageintest.WriteTar(t, tar.FormatPAX, stageintest.RandomMembers(r, tar.FormatPAX, 1+r.IntN(8))))
		archive = append(stageintest.Spoil(archive, cut, flips, r, false), stageintest.RandBytes(r, int(tail%5))...)
		got, err := stageSpoilt(t, archive, 3)
		if err != nil {
			return
		}
		want, err := stageintest.TwinPacked(c, archive)
		if err != nil {
			t.Fatalf("staged, but the twin says: %v", err)
		}
		stageintest.CheckTree(t, got, want)
	})
}

// BenchmarkPacked compares unpacking and staging on one core with the bare decoder; both in MB of tar per second of CPU
// time.
func BenchmarkPacked(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var members []stageintest.Member
	for i := range 300 {
		data := stageintest.RandBytes(r, 110_000)
		for j := range data { // half of it resembles text
			if j/1000%2 == 0 {
				data[j] = "etaoin shrdlu"[int(data[j])%13]
			}
		}
		members = append(members, stageintest.TarFile(fmt.Sprint("f", i), data))
	}
	plain := stageintest.WriteTar(b, tar.FormatGNU, members)
	for _, c := range stageintest.Codecs {
		if strings.Contains(c.Name, "blocks") || strings.Contains(c.Name, "program") && !strings.Contains(c.Name, "bzip2") {
			continue
		}
		archive := c.Pack(b, plain)
		bare := func() error {
			d, err := c.Unpack(bytes.NewReader(archive))
			if c.Name == "gzip" { // the decoder that staging uses
				d, err = gzip.NewReader(bytes.NewReader(archive))
			}
			if err == nil {
				_, err = io.Copy(io.Discard, d)
			}
			return err
		}
		b.Run(c.Name+"/bare", func(b *testing.B) { perCore(b, len(plain), bare) })
		b.Run(c.Name+"/staged", func(b *testing.B) {
			perCore(b, len(plain), func() error {
				j := jobtest.TarJob(archive, 2)
				j.Lim, j.Memory, j.Discard = jobtest.Bounds{}, 0, true
				_, err := j.Run(context.Background())
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

// cpu returns the CPU time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
