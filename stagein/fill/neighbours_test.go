package fill_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

const (
	besideFiles = 40
	besideSize  = 70_000
)

// besideContents is the content of the files; it is incompressible.
var besideContents = sync.OnceValue(func() []byte {
	b, r := make([]byte, 0, besideFiles*besideSize), rand.New(rand.NewPCG(1, 2))
	for len(b) < cap(b) {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
})

func besideContent(i int) []byte { return besideContents()[i*besideSize:][:besideSize] }

// beside returns a fill on a node with room for about half of an archive, and the records of the overflow files in
// archive order.
func beside(t *testing.T, name string) (*jobtest.Job, *fill.Fill, []manifest.Record) {
	t.Helper()
	var members []stageintest.Member
	var zipped []stageintest.ZipMember
	for i := range besideFiles {
		path := fmt.Sprintf("%03d.jpg", i)
		members = append(members, stageintest.TarFile(path, besideContent(i)))
		zipped = append(zipped, stageintest.ZipFile(path, besideContent(i)))
	}
	b := stageintest.WriteTar(t, tar.FormatPAX, members)
	if name == "a.zip" {
		b = stageintest.WriteZip(t, "", zipped...)
	}
	j := &jobtest.Job{FS: stageintest.NewFS(), Nodes: 1, Path: "/src/" + name, Target: &stageintest.MemTarget{Objects: map[stageintest.ObjectKey][]byte{}}}
	j.FS.Add(j.Path, source.TypeRegular|0o644, b)
	m := stageintest.ClusterMap(1)
	var records bytes.Buffer
	s, err := scan.Run(t.Context(), &scan.Config{
		FS: j.FS, Request: stagein.Request{Source: j.Path, Name: "ds"}, Dataset: 3, Map: m, Log: stageintest.QuietLog(),
		Free: func(metadata.NodeID) (int64, bool) { return besideFiles * besideSize / 2, true },
	}, &records)
	if err != nil || s == nil {
		t.Fatalf("scan: %v, %v", s, err)
	}
	files, err := stageintest.FilesOf(records.Bytes())
	stageintest.NoError(t, err)
	f, err := j.Filler(m, 0, s, files, t.TempDir())
	stageintest.NoError(t, err)
	t.Cleanup(func() { stageintest.NoError(t, f.Close()) })
	var over []manifest.Record
	for _, r := range files.Records {
		if fill.IsOverflow(&r.Attr) {
			over = append(over, r)
		}
	}
	if len(over) < besideFiles/4 || len(over) > besideFiles*3/4 {
		t.Fatalf("%d files overflow", len(over))
	}
	return j, f, over
}

// runsOf returns the groups of files that Neighbours reads in one request; each group begins with the file asked for.
func runsOf(f *fill.Fill, over []manifest.Record) (runs [][]datapath.RangeRead) {
	left := make(map[metadata.Ino]bool)
	for _, r := range over {
		left[r.Attr.Ino] = true
	}
	for i := range over {
		ino := over[(i*7)%len(over)].Attr.Ino
		if !left[ino] {
			continue
		}
		all := append(f.Neighbours(ino, func(ino metadata.Ino) bool { return left[ino] }), ino)
		var rs []datapath.RangeRead
		for _, ino := range all {
			delete(left, ino)
			rs = append(rs, datapath.RangeRead{Ino: ino, Len: besideSize})
		}
		runs = append(runs, rs)
	}
	return runs
}

func wantBeside(t *testing.T, over []manifest.Record, r *datapath.RangeRead) {
	t.Helper()
	for _, x := range over {
		var i int
		if _, err := fmt.Sscanf(x.Path, "%d.jpg", &i); err != nil {
			t.Fatal(err)
		}
		if x.Attr.Ino == r.Ino && (r.Err != nil || !bytes.Equal(r.Data, besideContent(i))) {
			t.Errorf("%s: %d bytes, %v", x.Path, len(r.Data), r.Err)
		}
	}
}

// TestNeighbours: overflow files that are adjacent in an archive are read in one request to the source. They do not
// stay in the cache.
func TestNeighbours(t *testing.T) {
	for _, name := range []string{"a.tar", "a.zip"} {
		t.Run(name, func(t *testing.T) {
			j, f, over := beside(t, name)
			var reads atomic.Int64
			j.FS.OnRead = func(string, int64) { reads.Add(1) }
			for range 2 {
				reads.Store(0)
				runs := runsOf(f, over)
				files := 0
				for _, rs := range runs {
					f.ReadMany(t.Context(), rs, make([]byte, len(rs)*besideSize))
					for i := range rs {
						wantBeside(t, over, &rs[i])
					}
					files += len(rs)
				}
				if files != len(over) || reads.Load() != int64(len(runs)) || len(runs)*4 > len(over) {
					t.Errorf("%d of %d files took %d requests in %d runs", files, len(over), reads.Load(), len(runs))
				}
			}
		})
	}
}

// TestNeighboursMeetReaders: readers that arrive while neighbours are being read wait for the same request.
func TestNeighboursMeetReaders(t *testing.T) {
	j, f, over := beside(t, "a.tar")
	rs := runsOf(f, over)[0]
	var reads atomic.Int64
	began, goOn := make(chan struct{}), make(chan struct{})
	j.FS.OnRead = func(string, int64) {
		if reads.Add(1) == 1 {
			close(began)
		}
		<-goOn
	}
	var wg sync.WaitGroup
	wg.Go(func() { f.ReadMany(t.Context(), rs, make([]byte, len(rs)*besideSize)) })
	<-began
	meet := slices.Clone(rs)
	for i := range meet {
		wg.Go(func() {
			r, b := &meet[i], make([]byte, besideSize)
			n, through, err := f.ReadThrough(t.Context(), r.Ino, b, 0)
			if !through {
				err = errors.New("is not read through")
			}
			r.Data, r.Err = b[:n], err
			wantBeside(t, over, r)
		})
	}
	close(goOn)
	wg.Wait()
	for i := range rs {
		wantBeside(t, over, &rs[i])
	}
	// A reader that arrived after the request ended reads by itself.
	if n := reads.Load(); n > int64(1+len(meet)) {
		t.Errorf("%d requests", n)
	}
}

// TestNeighboursOfFaults: a file that cannot be read with its neighbours is read again alone, and only its own reader
// gets an error. The same holds when no request succeeds.
func TestNeighboursOfFaults(t *testing.T) {
	j, f, over := beside(t, "a.tar")
	rs := runsOf(f, over)[0]
	all := append(slices.Clone(rs), datapath.RangeRead{Ino: rs[0].Ino + 1000, Len: 10})
	f.ReadMany(t.Context(), all, make([]byte, len(rs)*besideSize+10))
	for i := range rs {
		wantBeside(t, over, &all[i])
	}
	if err := all[len(rs)].Err; !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a file that does not exist: %v", err)
	}
	var fails atomic.Int64
	fail := func() error {
		if fails.Add(1) == 1 {
			return syscall.EIO
		}
		return nil
	}
	j.FS.FailRead.Store(&fail)
	f.ReadMany(t.Context(), rs, make([]byte, len(rs)*besideSize))
	for i := range rs {
		wantBeside(t, over, &rs[i])
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	f.ReadMany(gone, rs, make([]byte, len(rs)*besideSize))
	for i := range rs {
		if rs[i].Err == nil && len(rs[i].Data) != besideSize {
			t.Errorf("read without a reader: %d bytes, %v", len(rs[i].Data), rs[i].Err)
		}
	}
}
