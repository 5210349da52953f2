package stagein

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// quota is nodes that take so many bytes each, in whole pages, and no more.
type quota struct {
	*memTarget
	each int64

	mu      sync.Mutex
	removes int          // guarded by mu
	dies    func() error // asked before something is removed
}

func newQuota(each int64) *quota {
	q := &quota{memTarget: &memTarget{}, each: each}
	q.put = func(node metadata.NodeID, ino metadata.Ino, _ int) error {
		if q.has(node) > q.each {
			return syscall.ENOSPC
		}
		return nil
	}
	return q
}

// Remove counts.
func (q *quota) Remove(ctx context.Context, node metadata.NodeID, ino metadata.Ino) error {
	if q.dies != nil {
		if err := q.dies(); err != nil {
			return err
		}
	}
	q.mu.Lock()
	q.removes++
	q.mu.Unlock()
	return q.memTarget.Remove(ctx, node, ino)
}

// frameEach packs b as frames of zstd of n bytes; they do not say how large they are.
func frameEach(t testing.TB, b []byte, n int) (packed []byte) {
	t.Helper()
	for ; len(b) > 0; b = b[min(len(b), n):] {
		var out bytes.Buffer
		z, err := zstd.NewWriter(&out)
		checked(t, err)
		_, err = z.Write(b[:min(len(b), n)])
		checked(t, err, z.Close())
		packed = append(packed, out.Bytes()...)
	}
	return packed
}

// spillCodecs make streams that have places to begin at.
var spillCodecs = []codec{
	{"bgzip", func(t testing.TB, b []byte) []byte { p, _ := bgzip(t, b); return p }, gunzip},
	{"zstd frames of unknown size", func(t testing.TB, b []byte) []byte { return frameEach(t, b, 50_000) }, unzstd},
	{"zstd frames", func(t testing.TB, b []byte) []byte { return frames(t, b) }, unzstd},
	{"xz blocks", program("xz", "-1", "-T2", "--block-size=50000", "-c"), unxz},
	{"xz streams", func(t testing.TB, b []byte) (packed []byte) {
		for ; len(b) > 0; b = b[min(len(b), 50_000):] {
			packed = append(packed, codecs[2].pack(t, b[:min(len(b), 50_000)])...)
		}
		return packed
	}, unxz},
	oneMember,
	{"gzip -1", program("gzip", "-1", "-c"), gunzip},
	{"gzip", program("gzip", "-c"), gunzip},
	{"pigz", program("pigz", "-c", "-p2"), gunzip},
}

// oneMember makes one member of gzip, as tar czf does.
var oneMember = codec{"gzip of Go", codecs[0].pack, gunzip}

// manySmall is a tar of n members of about size bytes, half of which are random.
func manySmall(t testing.TB, r *rand.Rand, n, size int) []byte {
	t.Helper()
	return shard(t, r, "", n, size)
}

// shard is manySmall with paths that begin with prefix.
func shard(t testing.TB, r *rand.Rand, prefix string, n, size int) []byte {
	t.Helper()
	var members []member
	for i := range n {
		k := 1 + r.IntN(2*size)
		members = append(members, file(fmt.Sprintf("%sd%d/f%04d", prefix, i%7, i), append(randBytes(r, k-k/2), make([]byte, k/2)...)))
	}
	return writeTar(t, tar.FormatGNU, members)
}

func spillJob(archive []byte, each int64) *job {
	j := tarJob(archive, 4)
	j.memory, j.stripe = 32<<20, 40_000
	j.lim = limits{piece: 64 << 10, carry: 1024, mark: 64 << 10, farthest: 8 << 20, apart: 60_000}
	j.free = func(metadata.NodeID) (int64, bool) { return each, true }
	return j
}

// TestPackedSpills: of a compressed tar for which the nodes have no room, some of what has
// been read goes back: no node ever has more than it can, all files are read right, those
// that are here and those that are not mix, and every byte is read once.
func TestPackedSpills(t *testing.T) {
	r := seed(t)
	for _, c := range spillCodecs {
		t.Run(c.name, func(t *testing.T) {
			n, each := 400, int64(1<<20)
			if c.name == "xz streams" { // slow
				n, each = 130, 512<<10
			}
			plain := manySmall(t, r, n, 18_000)
			archive := c.pack(t, plain)
			want, err := twinPacked(c, archive)
			checked(t, err)
			j := spillJob(archive, each)
			j.stripe = 1 << 20
			q := newQuota(each)
			j.quota, j.target = q, q.memTarget
			got, err := j.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, got, want)
			places, err := source.ParsePlaces(j.plan.Origins.Sources[0].Places)
			if n := len(places); err != nil || n < 3 || places[n-1].Off != int64(len(plain)) {
				t.Errorf("places %v, %v, want the last at %d", places, err, len(plain))
			}
			if j.sum.SourceBytes > int64(len(archive))+64<<10 {
				t.Errorf("%d bytes were read of %d", j.sum.SourceBytes, len(archive))
			}
			if j.spilled < n/8 || j.spilled > n*7/8 {
				t.Errorf("%d files of %d stay in the source", j.spilled, len(want))
			}
			var stored int64
			for _, b := range j.target.objects {
				stored += pages(int64(len(b)))
			}
			if room := 4 * (each - leastSpare); stored < room*7/10 || j.sum.Bytes > stored {
				t.Errorf("%d bytes are here of %d for which there is room; progress says %d", stored, room, j.sum.Bytes)
			}
			if told := strings.HasPrefix(c.name, "zstd") || strings.HasPrefix(c.name, "xz") || strings.HasPrefix(c.name, "gzip") || c.name == "pigz"; told && q.removes > n/4 || !told && q.removes == 0 {
				t.Errorf("%d files were taken back", q.removes)
			}
		})
	}
}

// TestPackedSpillsWideFiles: large files stay as a whole, wherever their chunks would lie,
// and one for which there is no room at all keeps no other out.
func TestPackedSpillsWideFiles(t *testing.T) {
	r := seed(t)
	var members []member
	for i := range 400 {
		n := 1 + r.IntN(20_000)
		if i == 50 {
			n = 40 << 20
		}
		members = append(members, file(fmt.Sprint("f", i), randBytes(r, n)))
	}
	for i := range 5 {
		members = append(members, file(fmt.Sprint("wide", i), randBytes(r, 100_000)))
	}
	archive := frameEach(t, writeTar(t, tar.FormatGNU, members), 1<<20)
	want, err := twinPacked(spillCodecs[1], archive)
	checked(t, err)
	const each = 9 << 20 // one wide file, of which a chunk is 8 MiB, and some small ones
	j := spillJob(archive, each)
	q := newQuota(each)
	j.quota, j.target = q, q.memTarget
	got, err := j.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	checkTree(t, got, want)
	if j.spilled == 0 || j.spilled > 390 {
		t.Errorf("%d files stay in the source", j.spilled)
	}
}

// TestPackedSpillsSparse: of files with holes those stay for which there is no room, too, and
// are read from there with their holes; what counts is what they take on a disk.
func TestPackedSpillsSparse(t *testing.T) {
	r := seed(t)
	made := func(dir string) error {
		var errs []error
		for i := range 150 {
			size := int64(5000 + 400*i)
			errs = append(errs, holey(filepath.Join(dir, fmt.Sprint("f", i)), r, size, size/3&^4095, size/2&^4095, size-1500))
		}
		for i := range 60 {
			errs = append(errs, os.WriteFile(filepath.Join(dir, fmt.Sprint("plain", i)), randBytes(r, 20_000), 0o644))
		}
		return errors.Join(append(errs, holey(filepath.Join(dir, "none"), r, 50_000), holey(filepath.Join(dir, "wide"), r, 17<<20, 0, 9<<20))...)
	}
	sparseTar(t, made, func(t *testing.T, plain []byte) {
		want, err := twin(plain)
		checked(t, err)
		for _, stripe := range []int64{1 << 20, 64 << 20} {
			j := spillJob(frameEach(t, plain, 50_000), 512<<10)
			j.stripe = stripe
			got, err := j.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, got, want)
			files, err := filesOf(j.records[0])
			checked(t, err)
			holes := 0
			for _, rec := range files.records {
				if Spilled(&rec.Attr) && rec.From.Sparse {
					holes++
				}
			}
			if holes < 20 || holes > 140 || holes == j.spilled {
				t.Errorf("%d files stay in the source, of which %d have holes", j.spilled, holes)
			}
		}
	})
}

// TestPackedSpillDies: shares that die again and again, also while they take back what they
// have stored, go on from their marks, and what comes of it is right.
func TestPackedSpillDies(t *testing.T) {
	const each = 512 << 10
	went := 0
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			c := append(spillCodecs[:3:3], oneMember)[(seed+2)%4]
			archive := c.pack(t, manySmall(t, r, 300, 12_000))
			want, err := twinPacked(c, archive)
			checked(t, err)
			j := spillJob(archive, each)
			m := newMortal(t, j, 60+int(seed)*10)
			q := newQuota(each)
			die, room := m.target.put, q.put
			q.put = func(node metadata.NodeID, ino metadata.Ino, n int) error {
				if err := die(node, ino, n); err != nil {
					return err
				}
				return room(node, ino, n)
			}
			q.dies = func() error { return die(0, 0, 0) }
			j.quota, j.target = q, q.memTarget
			var ebb []byte // as JSON
			begin := j.config
			j.config = func(i int, cfg *ShareConfig) {
				begin(i, cfg)
				cfg.Ebbed = func(e Ebb) (err error) { ebb, err = json.Marshal(e); return err }
				if cfg.Resume == nil {
					ebb = nil
				}
				if ebb != nil {
					cfg.Ebb = new(Ebb)
					checked(t, json.Unmarshal(ebb, cfg.Ebb))
				}
				if cfg.Part.Try > 0 {
					cfg.Free = func(id metadata.NodeID) (int64, bool) { return each - q.has(id), true }
				}
			}
			got, err := j.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, got, want)
			if j.spilled == 0 {
				t.Error("all files are here")
			}
			went += m.went
		})
	}
	if went == 0 {
		t.Error("no share went on from a mark")
	}
}

// has is what a node has.
func (q *quota) has(id metadata.NodeID) (sum int64) {
	q.memTarget.mu.Lock()
	defer q.memTarget.mu.Unlock()
	for k, b := range q.objects {
		if k.node == id {
			sum += pages(int64(len(b)))
		}
	}
	return sum
}

// TestPackedHasNoPlace: a stream that has no place in its middle to begin at is refused when
// the room is used up, or before a byte is copied where its size is told.
func TestPackedHasNoPlace(t *testing.T) {
	r := seed(t)
	plain := manySmall(t, r, 300, 12_000)
	for _, c := range []struct {
		codec
		early bool
	}{{codecs[1], false}, {codecs[2], true}} {
		t.Run(c.name, func(t *testing.T) {
			j := spillJob(c.pack(t, plain), 512<<10)
			q := newQuota(512 << 10)
			j.quota, j.target = q, q.memTarget
			_, err := j.run(context.Background())
			if !errorHas(err, " needs room for ", "512.0 KiB", "no place in the middle to begin at", "unpack=no", "no space left") {
				t.Errorf("%v, want a refusal", err)
			}
			if c.early && len(j.target.objects) > 0 {
				t.Errorf("%d objects were written before it was refused", len(j.target.objects))
			}
		})
	}
}

// TestPackedFarPlace: when what is to stay in the source comes too far behind the last place
// to begin at, that is said then, and not when it is read.
func TestPackedFarPlace(t *testing.T) {
	r := seed(t)
	plain := manySmall(t, r, 1500, 12_000)
	half := len(plain) / 8 / source.BlockSize * source.BlockSize
	archive := append(frameEach(t, plain[:half], 50_000), frameEach(t, plain[half:], len(plain))...)
	j := spillJob(archive, 1<<20)
	q := newQuota(1 << 20)
	j.quota, j.target = q, q.memTarget
	if _, err := j.run(context.Background()); !errorHas(err, "no place near it to begin to unpack at", "unpack=no") {
		t.Errorf("%v, want a refusal", err)
	}
}

// FuzzEbb: whatever was kept of how far what is stored goes back, a share that goes on with
// it ends.
func FuzzEbb(f *testing.F) {
	archive := frameEach(f, manySmall(f, rand.New(rand.NewPCG(1, 5)), 20, 3000), 20_000)
	f.Add([]byte(`{"now":{"0":5,"1":18446744073709551615},"was":{"7":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := new(Ebb)
		if json.Unmarshal(b, e) != nil {
			return
		}
		j := spillJob(archive, 1<<20)
		j.config = func(_ int, cfg *ShareConfig) {
			cfg.Resume, cfg.Before, cfg.Ebb = &Mark{Kept: []Try{{}}}, bytes.NewReader(nil), e
		}
		_, _ = j.run(context.Background()) // which may be anything
	})
}
