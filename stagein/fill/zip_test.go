package fill_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	srczip "github.com/bivouacfs/bivouac/stagein/source/zip"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// zipFillJob returns a job that scans a zip archive and then fills it.
func zipFillJob(archive []byte, nodes int, together bool) *jobtest.Job {
	j := jobtest.TarJob(archive, nodes)
	j.Opts.Fill = stagein.Order{Kind: stagein.OrderShuffled}
	if together {
		j.Swarm, j.RunSize = jobtest.NewSwarm(j), 16<<10
	}
	return j
}

// TestZipScanned: scan and fill give the same tree as a single pass, and no byte of the files is read twice.
func TestZipScanned(t *testing.T) {
	r := stageintest.Rand(t)
	for range 15 {
		archive := stageintest.WriteZip(t, "", stageintest.RandomZip(r, 1+r.IntN(80))...)
		want, err := stageintest.TwinZip(archive)
		if err != nil {
			t.Fatal(err)
		}
		for _, nodes := range []int{1, 2, 5} {
			for _, together := range []bool{false, true} {
				j := zipFillJob(archive, nodes, together)
				got, err := j.Run(context.Background())
				if err != nil {
					t.Fatalf("%d nodes, together %v: %v", nodes, together, err)
				}
				if j.Scanned == nil {
					t.Fatal("was not scanned")
				}
				stageintest.CheckTree(t, got, want)
				if read := j.FS.Read.Load(); read != j.Sum.SourceBytes || read-j.Scanned.Read > int64(len(archive)) {
					t.Errorf("%d nodes, together %v: %d bytes of %d read after the scan, counted %d",
						nodes, together, read-j.Scanned.Read, len(archive), j.Sum.SourceBytes-j.Scanned.Read)
				}
			}
		}
	}
}

// TestZipStripedIsRead: a member large enough for striping cannot be unpacked in pieces, so its archive is read in a
// single pass.
func TestZipStripedIsRead(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteZip(t, "", stageintest.ZipFile("large", stageintest.RandBytes(r, 50_000)), stageintest.ZipFile("small", stageintest.RandBytes(r, 500)))
	want, err := stageintest.TwinZip(archive)
	if err != nil {
		t.Fatal(err)
	}
	j := zipFillJob(archive, 3, true)
	j.Stripe = 20_000
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if stageintest.CheckTree(t, got, want); j.Scanned != nil || j.Plan == nil {
		t.Error("was scanned")
	}
	if read := j.FS.Read.Load(); read != j.Sum.SourceBytes {
		t.Errorf("%d bytes were read, %d counted", read, j.Sum.SourceBytes)
	}
}

// TestZipManyScanned: several tars and zip archives together.
func TestZipManyScanned(t *testing.T) {
	for _, o := range []stagein.Options{{}, {Unpack: stagein.UnpackApart}, {Include: []source.Name{"*1"}}} {
		o.Fill = stagein.Order{Kind: stagein.OrderSource}
		s := jobtest.NewRack(t, 3, "/src/*", o)
		for i, name := range []string{"a.zip", "b.tar", "c.zip"} {
			under := ""
			if o.Unpack == stagein.UnpackApart {
				under = name[:1]
			}
			s.Archive(name, "m-"+name[:1], 5+i, under)
		}
		if len(o.Include) > 0 {
			s.Want = map[string]string{"m-a1": s.Want["m-a1"], "m-b1": s.Want["m-b1"], "m-c1": s.Want["m-c1"]}
		}
		s.Swarm = jobtest.NewSwarm(s.Job)
		if s.Check(); s.Scanned == nil {
			t.Error("was not scanned")
		}
	}
}

// TestZipDamaged: the error for a member with damaged data has its name and offset, whichever node reads it.
func TestZipDamaged(t *testing.T) {
	r := stageintest.Rand(t)
	data := stageintest.RandBytes(r, 5000)
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		z := stageintest.ZipFile("damaged", data)
		z.Method = method
		archive := stageintest.WriteZip(t, "", stageintest.ZipFile("a", stageintest.RandBytes(r, 3000)), z, stageintest.ZipFile("b", stageintest.RandBytes(r, 3000)))
		archive[bytes.Index(archive, data[1000:1100])] ^= 1
		for _, together := range []bool{false, true} {
			if _, err := zipFillJob(archive, 3, together).Run(context.Background()); !stageintest.ErrorHas(err, "/src/a.tar", "at offset 3", "damaged") {
				t.Errorf("method %d, together %v: %v", method, together, err)
			}
		}
	}
}

// TestZipPart: reading a range of a member returns that range of its content.
func TestZipPart(t *testing.T) {
	r := stageintest.Rand(t)
	data := stageintest.RandBytes(r, 40_000)
	fs := stageintest.NewFS()
	fs.Add("/z.zip", source.TypeRegular|0o644, stageintest.WriteZip(t, "", stageintest.ZipFile("x", data)))
	f, err := fs.Open("/z.zip")
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	x, err := srczip.Read(f, "/z.zip", info.Size, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	from := archive.ZipOrigin(&x.Items[0], 0)
	q := &archive.Fetcher{Fsys: fs, Sources: []archive.Origin{{Path: "/z.zip", Kind: source.Zip, Size: info.Size, Mtime: info.Mtime}}}
	for range 50 {
		pos := r.IntN(len(data))
		n := 1 + r.IntN(len(data)-pos)
		s, err := q.Open(from, &metadata.Attr{Size: int64(len(data))})
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		err = s.Close(s.Read(context.Background(), archive.NewBuffers(archive.MinPieces, 1000), int64(pos), int64(n), func(b []byte, at int64) error {
			if at != int64(pos+len(got)) {
				return fmt.Errorf("bytes at %d after %d", at, pos+len(got))
			}
			got = append(got, b...)
			return nil
		}))
		if err != nil || !bytes.Equal(got, data[pos:pos+n]) {
			t.Fatalf("[%d, %d): %d bytes, %v", pos, pos+n, len(got), err)
		}
	}
}

// FuzzZipFill scans and fills corrupted archives: a tree staged without an error is the one that archive/zip finds.
func FuzzZipFill(f *testing.F) {
	for i := range 40 {
		f.Add(uint64(i), uint16(i%2*i*97), uint16(i), uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64, cut, flips uint16, nodes uint8) {
		r := rand.New(rand.NewPCG(seed, 4))
		archive := stageintest.Spoil(stageintest.WriteZip(t, "", stageintest.RandomZip(r, 1+r.IntN(12))...), cut, flips, r, false)
		got, err := zipFillJob(archive, 1+int(nodes%5), nodes%2 == 0).Run(context.Background())
		if err != nil {
			return
		}
		want, err := stageintest.TwinZip(archive)
		if err != nil && stageintest.EmptyDamaged(archive) {
			return // no data is read of members without content
		}
		if err != nil {
			t.Fatalf("staged, but archive/zip says: %v", err)
		}
		for p, w := range want { // another test compares the bits for times and modes
			g := got[p]
			if g.Data != w.Data || g.Target != w.Target || g.Mode&source.TypeMask != w.Mode&source.TypeMask {
				t.Errorf("%q is %+v, archive/zip has %+v", p, g, w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d were staged, archive/zip has %d", len(got), len(want))
		}
	})
}
