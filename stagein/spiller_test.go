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

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// quota is nodes that take so many bytes each, in whole pages, and no more.
type quota struct {
	*stageintest.MemTarget
	each int64

	mu      sync.Mutex
	removes int          // guarded by mu
	dies    func() error // asked before something is removed
}

func newQuota(each int64) *quota {
	q := &quota{MemTarget: &stageintest.MemTarget{}, each: each}
	q.OnPut = func(node metadata.NodeID, ino metadata.Ino, _ int) error {
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
	return q.MemTarget.Remove(ctx, node, ino)
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
	r := stageintest.Rand(t)
	for _, c := range stageintest.SeekableCodecs {
		t.Run(c.Name, func(t *testing.T) {
			n, each := 400, int64(1<<20)
			if strings.HasSuffix(c.Name, "bzip2") || c.Name == "xz streams" { // slow
				n, each = 130, 512<<10
			}
			plain := stageintest.ManySmall(t, r, n, 18_000)
			archive := c.Pack(t, plain)
			want, err := stageintest.TwinPacked(c, archive)
			stageintest.NoError(t, err)
			j := spillJob(archive, each)
			j.stripe = 1 << 20
			q := newQuota(each)
			j.quota, j.target = q, q.MemTarget
			got, err := j.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			stageintest.CheckTree(t, got, want)
			places, err := unpack.ParsePlaces(j.plan.Origins.Sources[0].Places)
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
			for _, b := range j.target.Objects {
				stored += pages(int64(len(b)))
			}
			if room := 4 * (each - leastSpare); stored < room*7/10 || j.sum.Bytes > stored {
				t.Errorf("%d bytes are here of %d for which there is room; progress says %d", stored, room, j.sum.Bytes)
			}
			if told := strings.HasPrefix(c.Name, "zstd") || strings.HasPrefix(c.Name, "xz") || strings.HasPrefix(c.Name, "gzip") || c.Name == "pigz"; told && q.removes > n/4 || !told && q.removes == 0 {
				t.Errorf("%d files were taken back", q.removes)
			}
		})
	}
}

// TestPackedSpillsWideFiles: large files stay as a whole, wherever their chunks would lie,
// and one for which there is no room at all keeps no other out.
func TestPackedSpillsWideFiles(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 400 {
		n := 1 + r.IntN(20_000)
		if i == 50 {
			n = 40 << 20
		}
		members = append(members, stageintest.TarFile(fmt.Sprint("f", i), stageintest.RandBytes(r, n)))
	}
	for i := range 5 {
		members = append(members, stageintest.TarFile(fmt.Sprint("wide", i), stageintest.RandBytes(r, 100_000)))
	}
	archive := stageintest.ZstdUnsizedFrames(t, stageintest.WriteTar(t, tar.FormatGNU, members), 1<<20)
	want, err := stageintest.TwinPacked(stageintest.SeekableCodecs[1], archive)
	stageintest.NoError(t, err)
	const each = 9 << 20 // one wide file, of which a chunk is 8 MiB, and some small ones
	j := spillJob(archive, each)
	q := newQuota(each)
	j.quota, j.target = q, q.MemTarget
	got, err := j.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
	if j.spilled == 0 || j.spilled > 390 {
		t.Errorf("%d files stay in the source", j.spilled)
	}
}

// TestPackedSpillsSparse: of files with holes those stay for which there is no room, too, and
// are read from there with their holes; what counts is what they take on a disk.
func TestPackedSpillsSparse(t *testing.T) {
	r := stageintest.Rand(t)
	made := func(dir string) error {
		var errs []error
		for i := range 150 {
			size := int64(5000 + 400*i)
			errs = append(errs, stageintest.HoleyFile(filepath.Join(dir, fmt.Sprint("f", i)), r, size, size/3&^4095, size/2&^4095, size-1500))
		}
		for i := range 60 {
			errs = append(errs, os.WriteFile(filepath.Join(dir, fmt.Sprint("plain", i)), stageintest.RandBytes(r, 20_000), 0o644))
		}
		return errors.Join(append(errs, stageintest.HoleyFile(filepath.Join(dir, "none"), r, 50_000), stageintest.HoleyFile(filepath.Join(dir, "wide"), r, 17<<20, 0, 9<<20))...)
	}
	stageintest.SparseTar(t, made, func(t *testing.T, plain []byte) {
		want, err := stageintest.TwinTar(plain)
		stageintest.NoError(t, err)
		for _, stripe := range []int64{1 << 20, 64 << 20} {
			j := spillJob(stageintest.ZstdUnsizedFrames(t, plain, 50_000), 512<<10)
			j.stripe = stripe
			got, err := j.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			stageintest.CheckTree(t, got, want)
			files, err := stageintest.FilesOf(j.records[0])
			stageintest.NoError(t, err)
			holes := 0
			for _, rec := range files.Records {
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
			c := append(stageintest.SeekableCodecs[:3:3], stageintest.GzipOneMember)[(seed+2)%4]
			archive := c.Pack(t, stageintest.ManySmall(t, r, 300, 12_000))
			want, err := stageintest.TwinPacked(c, archive)
			stageintest.NoError(t, err)
			j := spillJob(archive, each)
			m := newMortal(t, j, 60+int(seed)*10)
			q := newQuota(each)
			die, room := m.target.OnPut, q.OnPut
			q.OnPut = func(node metadata.NodeID, ino metadata.Ino, n int) error {
				if err := die(node, ino, n); err != nil {
					return err
				}
				return room(node, ino, n)
			}
			q.dies = func() error { return die(0, 0, 0) }
			j.quota, j.target = q, q.MemTarget
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
					stageintest.NoError(t, json.Unmarshal(ebb, cfg.Ebb))
				}
				if cfg.Part.Try > 0 {
					cfg.Free = func(id metadata.NodeID) (int64, bool) { return each - q.has(id), true }
				}
			}
			got, err := j.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			stageintest.CheckTree(t, got, want)
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
	q.MemTarget.Mu.Lock()
	defer q.MemTarget.Mu.Unlock()
	for k, b := range q.Objects {
		if k.Node == id {
			sum += pages(int64(len(b)))
		}
	}
	return sum
}

// TestPackedHasNoPlace: a stream that has no place in its middle to begin at is refused when
// the room is used up, or before a byte is copied where its size is told.
func TestPackedHasNoPlace(t *testing.T) {
	r := stageintest.Rand(t)
	plain := stageintest.ManySmall(t, r, 300, 12_000)
	for _, c := range []struct {
		stageintest.Codec
		early bool
	}{{stageintest.Codecs[1], false}, {stageintest.Codecs[2], true}} {
		t.Run(c.Name, func(t *testing.T) {
			j := spillJob(c.Pack(t, plain), 512<<10)
			q := newQuota(512 << 10)
			j.quota, j.target = q, q.MemTarget
			_, err := j.run(context.Background())
			if !stageintest.ErrorHas(err, " needs room for ", "512.0 KiB", "no place in the middle to begin at", "unpack=no", "no space left") {
				t.Errorf("%v, want a refusal", err)
			}
			if c.early && len(j.target.Objects) > 0 {
				t.Errorf("%d objects were written before it was refused", len(j.target.Objects))
			}
		})
	}
}

// TestPackedFarPlace: when what is to stay in the source comes too far behind the last place
// to begin at, that is said then, and not when it is read.
func TestPackedFarPlace(t *testing.T) {
	r := stageintest.Rand(t)
	plain := stageintest.ManySmall(t, r, 1500, 12_000)
	half := len(plain) / 8 / source.BlockSize * source.BlockSize
	archive := append(stageintest.ZstdUnsizedFrames(t, plain[:half], 50_000), stageintest.ZstdUnsizedFrames(t, plain[half:], len(plain))...)
	j := spillJob(archive, 1<<20)
	q := newQuota(1 << 20)
	j.quota, j.target = q, q.MemTarget
	if _, err := j.run(context.Background()); !stageintest.ErrorHas(err, "no place near it to begin to unpack at", "unpack=no") {
		t.Errorf("%v, want a refusal", err)
	}
}

// FuzzEbb: whatever was kept of how far what is stored goes back, a share that goes on with
// it ends.
func FuzzEbb(f *testing.F) {
	archive := stageintest.ZstdUnsizedFrames(f, stageintest.ManySmall(f, rand.New(rand.NewPCG(1, 5)), 20, 3000), 20_000)
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
