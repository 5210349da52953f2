package fill_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// flipFS is a source that returns one wrong byte for a given number of reads.
type flipFS struct {
	*stageintest.MemFS
	at    int64
	flips atomic.Int64
	read  atomic.Int64 // how often that byte was read
}

func (m *flipFS) Open(path string) (source.File, error) {
	f, err := m.MemFS.Open(path)
	return flipFile{f, m}, err
}

type flipFile struct {
	source.File
	m *flipFS
}

func (f flipFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if i := f.m.at - off; i >= 0 && i < int64(n) {
		f.m.read.Add(1)
		if f.m.flips.Add(-1) >= 0 {
			p[i] ^= 8
		}
	}
	return n, err
}

// overflowing returns the fill of a compressed tar on the only node, which was lost, has returned and is full; and
// all files of the tar.
func overflowing(t *testing.T, archive []byte, fsys *flipFS, log *logrus.Entry) (f *fill.Fill, all []manifest.Record) {
	t.Helper()
	j := jobtest.PackedJob(archive, 1<<30)
	j.Nodes, j.Stripe = 1, 1<<20
	_, err := j.Run(context.Background())
	stageintest.NoError(t, err)
	files, err := stageintest.FilesOf(j.Records[0])
	stageintest.NoError(t, err)
	for _, rec := range files.Records {
		if jobtest.HasData(&rec) {
			all = append(all, rec)
		}
	}
	b, err := json.Marshal(j.Plan.Origins)
	stageintest.NoError(t, err)
	fsys.MemFS = j.FS
	m := stageintest.ClusterMap(1)
	m = m.WithState(0, cluster.Down, "").WithState(0, cluster.Up, "n0:1")
	cfg := fill.Config{
		Files: files, FS: fsys, Log: log, Journal: filepath.Join(t.TempDir(), "journal"),
		Watch: func() (cluster.Map, <-chan struct{}) { return m, nil },
		Room:  func(metadata.Ino, int64) bool { return false },
	}
	stageintest.NoError(t, json.Unmarshal(b, &cfg.Origins))
	f, err = fill.New(cfg)
	stageintest.NoError(t, err)
	t.Cleanup(func() { stageintest.NoError(t, f.Close()) })
	return f, all
}

// readWindow reads a range of an overflow file through the cache.
func readWindow(f *fill.Fill, ino metadata.Ino, off, size int64) (string, error) {
	p := make([]byte, size)
	if err := f.Need(context.Background(), ino, off, size); !errors.Is(err, fill.ErrOverflow) {
		return "", fmt.Errorf("need: %w", err)
	}
	n, err := f.ReadOverflow(context.Background(), ino, p, off, nil)
	return string(p[:n]), err
}

// TestReadThroughIsCompared: bytes from the source that differ from the staged ones are read once more and then
// refused; the log names the file, its place and the remedy once, until the file is read correctly.
func TestReadThroughIsCompared(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 300 {
		members = append(members, stageintest.TarFile(fmt.Sprint("f", i), stageintest.RandBytes(r, 2000+r.IntN(20_000))))
	}
	plain := stageintest.WriteTar(t, tar.FormatGNU, members)
	want, err := stageintest.TwinTar(plain)
	stageintest.NoError(t, err)
	var lines bytes.Buffer
	log := logrus.New()
	log.SetOutput(&lines)
	fsys := new(flipFS)
	f, stays := overflowing(t, plain, fsys, logrus.NewEntry(log))
	var x manifest.Record
	for _, x = range stays {
		if fsys.at = int64(bytes.Index(plain, []byte(want[x.Path].Data[500:600]))); fsys.at >= 0 {
			break
		}
	}
	if len(stays) < 2 || fsys.at < 0 {
		t.Fatalf("%d files stay; none can be spoilt", len(stays))
	}
	for range 2 {
		fsys.flips.Store(1 << 30)
		fsys.read.Store(0)
		if _, err := readWindow(f, x.Attr.Ino, 0, x.Attr.Size); !errors.Is(err, syscall.EIO) || fsys.read.Load() != 2 {
			t.Errorf("what is wrong in the source was read %d times, and is %v; want 2 times, and EIO", fsys.read.Load(), err)
		}
	}
	all, more := f.Unreadable()
	if len(all) != 1 || more != 0 || string(all[0].Path) != x.Path || all[0].Source != "/src/a.tar" || all[0].Off != x.From.Off ||
		!stageintest.ErrorHas(errors.New(all[0].String()), fmt.Sprintf("%q", x.Path), "/src/a.tar at offset", "has checksum", "stage it in again") {
		t.Errorf("unreadable are %+v and %d more, want %q of %+v", all, more, x.Path, x.From)
	}
	if n := strings.Count(lines.String(), "level=error"); n != 1 || !strings.Contains(lines.String(), "file="+x.Path) {
		t.Errorf("%d lines in the log, want 1 with %q:\n%s", n, x.Path, &lines)
	}
	check := func(what string) {
		t.Helper()
		if got, err := readWindow(f, x.Attr.Ino, 0, x.Attr.Size); err != nil || got != want[x.Path].Data {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
		if all, more := f.Unreadable(); len(all)+int(more) > 0 {
			t.Errorf("%s: unreadable are %+v and %d more", what, all, more)
		}
	}
	fsys.flips.Store(1)
	check("a bit flipped on the way, once")

	y := stays[0]
	if y.Path == x.Path {
		y = stays[1]
	}
	fsys.Nodes["/src/a.tar"].Info.Mtime++
	_, err = readWindow(f, y.Attr.Ino, 0, y.Attr.Size)
	all, _ = f.Unreadable()
	if !errors.Is(err, syscall.EIO) || len(all) != 1 || !stageintest.ErrorHas(errors.New(all[0].String()), "was changed since the stage-in began", "restore the source as it was") {
		t.Errorf("a source that has changed: %v, unreadable are %+v", err, all)
	}
}

// TestChunkReadThroughIsCompared: each chunk of a large overflow file is verified by itself.
func TestChunkReadThroughIsCompared(t *testing.T) {
	r := stageintest.Rand(t)
	large := stageintest.RandBytes(r, stagein.DefaultStripe+stagein.StripeChunk/2)
	var members []stageintest.Member
	for i := range 1500 { // enough small files that the tar is read in a single pass
		members = append(members, stageintest.TarFile(fmt.Sprint("small", i), []byte("x")))
	}
	plain := stageintest.WriteTar(t, tar.FormatGNU, append(members, stageintest.TarFile("large", large)))
	fsys := new(flipFS)
	f, stays := overflowing(t, plain, fsys, stageintest.QuietLog())
	const chunk = 3 * stagein.StripeChunk
	fsys.at = int64(bytes.Index(plain, large[chunk+500:chunk+600]))
	i := slices.IndexFunc(stays, func(r manifest.Record) bool { return r.Path == "large" })
	if i < 0 || fsys.at < 0 {
		t.Fatalf("none of %d files can be spoilt", len(stays))
	}
	read := func(off int64) error {
		p := make([]byte, 70_000)
		got, err := readWindow(f, stays[i].Attr.Ino, off, min(int64(len(p)), int64(len(large))-off))
		if want := large[off:min(off+int64(len(p)), int64(len(large)))]; err == nil && got != string(want) {
			err = fmt.Errorf("%d bytes at %d are not those of %d", len(got), off, len(want))
		}
		return err
	}
	fsys.flips.Store(1 << 30)
	if err := read(chunk + 100); !errors.Is(err, syscall.EIO) || fsys.read.Load() != 2 {
		t.Errorf("a chunk that is wrong was read %d times, and is %v; want 2 times, and EIO", fsys.read.Load(), err)
	}
	stageintest.NoError(t, read(chunk-80_000))
	stageintest.NoError(t, read(int64(len(large))-50_000))
	fsys.flips.Store(0)
	stageintest.NoError(t, read(chunk+100))
}

// TestReadSource: overflow files are read only from the source, all files of an archive in one pass.
func TestReadSource(t *testing.T) {
	r := stageintest.Rand(t)
	plain := stageintest.ManySmall(t, r, 300, 12_000)
	want, err := stageintest.TwinTar(plain)
	stageintest.NoError(t, err)
	fsys := new(flipFS)
	archive := stageintest.ZstdUncheckedFrames(t, plain, 50_000)
	f, stays := overflowing(t, archive, fsys, stageintest.QuietLog())
	paths := map[metadata.Ino]string{}
	var inos []metadata.Ino
	for _, x := range stays {
		paths[x.Attr.Ino] = x.Path
		inos = append(inos, x.Attr.Ino)
	}
	fsys.MemFS.Read.Store(0)
	got := map[metadata.Ino]*bytes.Buffer{}
	err = f.ReadSource(context.Background(), inos, func(ino metadata.Ino) io.Writer {
		got[ino] = new(bytes.Buffer)
		return got[ino]
	}, func(ino metadata.Ino, err error) {
		if err != nil || got[ino].String() != want[paths[ino]].Data {
			t.Errorf("%q: %d bytes, %v", paths[ino], got[ino].Len(), err)
		}
	})
	if err != nil || len(got) != len(stays) || len(got) < 30 {
		t.Errorf("%d files were read of %d, %v", len(got), len(stays), err)
	}
	if n := fsys.MemFS.Read.Load(); n > int64(len(archive))*3/2 {
		t.Errorf("%d bytes were read of %d", n, len(archive))
	}
	if out := f.Config().Buffers.In.Out() + f.Config().Buffers.Out.Out(); out != 0 {
		t.Errorf("%d buffers were not released", out)
	}
}
