package testcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

const zstdTar = ".tar.zst"

// led is a pass whose leading node dies.
type led struct {
	*pass
	ext string
}

// beginLed starts a pass that is held up on all nodes once some data has arrived.
func beginLed(t *testing.T, ext string) *led {
	m := files(200, 60_000)
	m[acrossEnds] = bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	return beginLedBy(t, leads, ext, m)
}

func beginLedBy(t *testing.T, leader int, ext string, m map[string][]byte) *led {
	t.Helper()
	return beginLedIn(t, leader, ext, m, Config{})
}

func beginLedIn(t *testing.T, leader int, ext string, m map[string][]byte, c Config) *led {
	t.Helper()
	p := &led{&pass{m: m}, ext}
	for range 4 {
		p.gates = append(p.gates, p.gate())
	}
	c.SourceOf = func(i int) source.FS { return p.gates[i] }
	p.Cluster = Start(t, c)
	t.Cleanup(p.open)
	src := p.archive(t, ext)
	writeTar(t, src, p.m)
	switch ext {
	case packedTar:
		pack(t, src)
	case zstdTar:
		packZstd(t, src)
	}
	info, err := os.Stat(src)
	if err != nil {
		t.Fatal(err)
	}
	p.size = info.Size()
	if _, err := daemon.NewCtl(p.Nodes[leader].Job.CtlSocket()).StageIn(context.Background(), job.Dataset{Source: src, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "files are read", func() bool {
		ds := p.Nodes[leader].View().Datasets
		return len(ds) == 1 && ds[0].Reading && p.bytes.Load() > p.size/16
	})
	return p
}

func (p *led) gate() *gatedFS {
	return &gatedFS{FS: source.OS{}, gate: make(chan struct{}), dead: make(chan struct{}), bytes: &p.bytes}
}

// packZstd compresses a file with zstd in place.
func packZstd(t *testing.T, path string) {
	t.Helper()
	packEach(t, path, math.MaxInt)
}

// packEach compresses a file in place into zstd frames of size bytes each.
func packEach(t *testing.T, path string, size int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for part := range slices.Chunk(b, size) {
		out = w.EncodeAll(part, out)
	}
	if err := os.WriteFile(path, out, 0o644); err != nil {
		t.Fatal(err)
	}
}

// restart kills the daemon of node i during its reads, and restarts it.
func (p *led) restart(t *testing.T, i int) {
	t.Helper()
	p.Cut(i)
	close(p.gates[i].dead) // it cannot end during a read
	p.Kill(t, i)
	p.gates[i] = p.gate()
	p.Revive(t, i)
}

// done waits until the parts of nodes are read.
func (p *led) done(t *testing.T, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		p.gates[i].open()
	}
	for _, i := range nodes {
		Eventually(t, fmt.Sprintf("the part of node %d is done", i), func() bool { return shares(p.Nodes[i]) == 0 })
	}
}

// came opens all gates, and checks that all files are on the nodes, that at most again bytes were read more than
// once, and that the registry agrees.
func (p *led) came(t *testing.T, again int64, on ...int) cluster.Dataset {
	t.Helper()
	p.open()
	ds := p.Dataset(t, on[0], "set")
	if ds.Phase != cluster.Sealed || ds.Files != int64(len(p.m)) {
		t.Fatalf("dataset: %+v", ds)
	}
	for _, i := range on {
		n := p.Nodes[i]
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
		for path, want := range p.m {
			Eventually(t, fmt.Sprintf("node %d reads %s", i, path), func() bool {
				got, err := read(context.Background(), n, ds.ID, path)
				if err == nil && !bytes.Equal(got, want) {
					t.Fatalf("node %d: %s: %d bytes, want %d", i, path, len(got), len(want))
				}
				return err == nil
			})
		}
	}
	Eventually(t, "each file is there once", func() bool {
		sum := int64(0)
		for _, i := range on {
			sum += objects(p.Nodes[i])
		}
		return sum == int64(len(p.m))
	})
	got := p.bytes.Load()
	t.Logf("%d bytes of %d were read (%.2f), %d counted, turn %d", got, p.size, float64(got)/float64(p.size), ds.SourceBytes, ds.Attempt)
	if got < p.size || got > p.size+again {
		t.Errorf("%d bytes read of %d, want at most %d again", got, p.size, again)
	}
	if ds.SourceBytes < p.size || ds.SourceBytes > got+slack {
		t.Errorf("the registry says that %d bytes of %d were read, it was %d", ds.SourceBytes, p.size, got)
	}
	return ds
}

// others returns all nodes but some.
func others(not ...int) (all []int) {
	for i := range 4 {
		keep := true
		for _, n := range not {
			keep = keep && i != n
		}
		if keep {
			all = append(all, i)
		}
	}
	return all
}

// has returns the bytes of files that a node owns.
func (p *led) has(node metadata.NodeID) (sum int64) {
	m := p.Nodes[leads].View().Map
	for path, b := range p.m {
		if m.FileOwner(path) == node {
			sum += int64(len(b))
		}
	}
	return sum
}

// again returns how much is read again for this many parts. If their nodes are lost, this includes the files those
// had, and what they continued to read.
func (p *led) again(part int64, lost bool) int64 {
	switch {
	case p.ext == plainTar && lost:
		return 2*part*p.size/4 + slack
	case p.ext == plainTar:
		return part*p.size/4 + slack
	}
	return 4 * p.size
}

var tars = []string{plainTar, packedTar, zstdTar}

// TestPassLeaderRestarts: the daemon that leads a pass is killed while all nodes read, and restarts: it continues the
// pass, and the others read nothing again.
func TestPassLeaderRestarts(t *testing.T) {
	t.Parallel()
	for _, ext := range tars {
		t.Run(ext, func(t *testing.T) {
			p := beginLed(t, ext)
			p.restart(t, leads)
			p.came(t, p.again(1, false), 0, 1, 2, 3)
		})
	}
}

// TestPassLeaderRestartsLate: the same, when the others are done, and twice.
func TestPassLeaderRestartsLate(t *testing.T) {
	t.Parallel()
	p := beginLed(t, plainTar)
	p.done(t, 0, 1)
	p.restart(t, leads)
	Eventually(t, "it goes on", func() bool { return p.Nodes[0].View().Datasets[0].Attempt == 1 })
	p.done(t, 2)
	p.restart(t, leads)
	p.came(t, p.again(2, false), 0, 1, 2, 3) // in the same attempt, if it starts before it knows of that one
}

// TestPassLeaderRestartsWhenDone: the same, when its own part is done and others are not: nothing is read again.
func TestPassLeaderRestartsWhenDone(t *testing.T) {
	t.Parallel()
	p := beginLedBy(t, 0, plainTar, files(200, 60_000))
	p.done(t, 0)
	Eventually(t, "what it recorded is there", func() bool {
		b, err := os.ReadFile(filepath.Join(p.Nodes[0].Job.Dirs.Store[0], "stage", "1", "state"))
		return err == nil && bytes.Contains(b, []byte(`"fetched":true`))
	})
	p.restart(t, 0)
	p.came(t, 0, 0, 1, 2, 3)
}

// TestPassGoesOn: a daemon that is killed in the middle of its part continues from its last mark: only reads in
// flight are repeated.
func TestPassGoesOn(t *testing.T) {
	t.Parallel()
	p := beginLedBy(t, 0, plainTar, files(200, 500_000))
	const mark = 4 << 20
	if p.size/8 < mark+mark/4 {
		t.Fatalf("a tar of %d bytes is held up before there is a mark", p.size)
	}
	Eventually(t, "there is a mark", func() bool {
		found, err := filepath.Glob(filepath.Join(p.Nodes[0].Job.Dirs.Store[0], "*", "1", "mark-0"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found) == 1
	})
	p.restart(t, 0)
	p.came(t, p.size/8-mark+slack, 0, 1, 2, 3)
}

// TestPassLeaderIsLost: the node that leads a pass is lost for good. Another continues it; what the others have read
// stays.
func TestPassLeaderIsLost(t *testing.T) {
	t.Parallel()
	for _, ext := range tars {
		t.Run(ext, func(t *testing.T) {
			p := beginLed(t, ext)
			had := p.has(leads)
			p.Cut(leads)
			p.came(t, had+p.again(1, true), others(leads)...)
		})
	}
}

// TestPassOutlastsGroupLeader: the node that leads a pass is lost, and the group's leader is lost just before that is
// declared. The next group leader does not know how long nodes were silent; parts with data for the lost node wait
// until it declares the loss.
func TestPassOutlastsGroupLeader(t *testing.T) {
	t.Parallel()
	const down = 4 * time.Second
	p := beginLedIn(t, leads, plainTar, files(200, 60_000), Config{Timing: daemon.Timing{Report: 30 * time.Millisecond, Down: down}})
	first := int(p.Nodes[0].Status(context.Background()).Leader)
	cut := time.Now()
	p.Cut(leads)
	p.open()
	Eventually(t, "it is about to be given up", func() bool { return time.Since(cut) > down-down/20 })
	p.Cut(first)
	p.came(t, 4*p.size, others(leads, first)...)
}

// TestPassLeaderIsLostLate: the same, when all others are done.
func TestPassLeaderIsLostLate(t *testing.T) {
	t.Parallel()
	p := beginLed(t, plainTar)
	p.done(t, others(leads)...)
	had := p.has(leads)
	p.Cut(leads)
	p.came(t, had+p.again(1, true), others(leads)...)
}

// TestPassLeaderComesBack: the leader is declared lost, and returns before the others are done. Its continued work is
// ignored.
func TestPassLeaderComesBack(t *testing.T) {
	t.Parallel()
	p := beginLed(t, plainTar)
	p.Cut(leads)
	Eventually(t, "another leads", func() bool { return p.Nodes[0].View().Datasets[0].Coordinator != leads })
	p.Mend(leads)
	Eventually(t, "the node is back", func() bool { return len(p.Nodes[0].View().Map.Up()) == 4 })
	p.came(t, p.size+slack, 0, 1, 2, 3)
}

// TestPassTwoLeadersAreLost: the node that leads a pass is lost, and so is its successor.
func TestPassTwoLeadersAreLost(t *testing.T) {
	t.Parallel()
	for _, ext := range tars {
		t.Run(ext, func(t *testing.T) {
			p := beginLed(t, ext)
			p.Cut(leads)
			next := -1
			Eventually(t, "another leads", func() bool {
				next = int(p.Nodes[1].View().Datasets[0].Coordinator)
				return next != leads
			})
			p.restart(t, next)
			p.came(t, p.again(2, true)+p.size, others(leads)...)
		})
	}
}

// TestPassLeaderAndReaderRestart: the leader and a reader restart at the same time.
func TestPassLeaderAndReaderRestart(t *testing.T) {
	t.Parallel()
	for _, ext := range tars {
		t.Run(ext, func(t *testing.T) {
			p := beginLed(t, ext)
			i := p.reader(t)
			p.Cut(i)
			p.Cut(leads)
			p.restart(t, i)
			p.restart(t, leads)
			p.came(t, p.again(2, true), 0, 1, 2, 3)
		})
	}
}

// kept returns how many bytes a standby knows to have been read.
func (p *led) kept(t *testing.T, i int) (sum int64) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.Nodes[i].Job.Dirs.Store[0], "stage", "1", "state"))
	if os.IsNotExist(err) {
		return 0
	}
	var pass struct {
		Parts []struct {
			Read int64 `json:"read"`
		} `json:"parts"`
	}
	if err == nil {
		err = json.Unmarshal(b, &pass)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range pass.Parts {
		sum += x.Read
	}
	return sum
}

// TestPassLeaderAndReaderAreLost: both are lost for good at the same time. The leader's standbys know what they had
// read.
func TestPassLeaderAndReaderAreLost(t *testing.T) {
	t.Parallel()
	for _, ext := range tars {
		t.Run(ext, func(t *testing.T) {
			p := beginLed(t, ext)
			i := p.reader(t)
			Eventually(t, "an heir knows what was read", func() bool {
				for _, heir := range others(leads, i) {
					if p.kept(t, heir) == p.bytes.Load() {
						return true
					}
				}
				return false
			})
			for _, lost := range []int{leads, i} {
				close(p.gates[lost].dead) // it reads no more
				p.Cut(lost)
			}
			ds := p.came(t, p.again(2, true)+2*p.size, others(leads, i)...)
			// Their replacements read a compressed tar ahead without using all bytes.
			if got := p.bytes.Load(); ds.SourceBytes < got-2*slack || ds.SourceBytes > got+slack {
				t.Errorf("the registry says that %d bytes were read, it was %d", ds.SourceBytes, got)
			}
		})
	}
}

// TestPassListIsLost: the standby has the lists of archives that are assigned in lists.
func TestPassListIsLost(t *testing.T) {
	t.Parallel()
	p := &led{&pass{m: files(200, 60_000)}, plainTar}
	for range 4 {
		p.gates = append(p.gates, p.gate())
	}
	p.Cluster = Start(t, Config{SourceOf: func(i int) source.FS { return p.gates[i] }})
	t.Cleanup(p.open)
	dir := t.TempDir()
	k, parts := 0, make([]map[string][]byte, 8)
	for path, b := range p.m {
		if parts[k%8] == nil {
			parts[k%8] = make(map[string][]byte)
		}
		parts[k%8][path] = b
		k++
	}
	for i, m := range parts {
		src := filepath.Join(dir, fmt.Sprintf("shard-%d.tar", i))
		writeTar(t, src, m)
		info, err := os.Stat(src)
		if err != nil {
			t.Fatal(err)
		}
		p.size += info.Size()
	}
	spec := job.Dataset{Source: filepath.Join(dir, "shard-*.tar"), Name: "set"}
	if _, err := daemon.NewCtl(p.Nodes[leads].Job.CtlSocket()).StageIn(context.Background(), spec); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "files are read", func() bool {
		ds := p.Nodes[leads].View().Datasets
		return len(ds) == 1 && ds[0].Reading && p.bytes.Load() > p.size/16
	})
	p.Cut(leads)
	p.came(t, p.size, others(leads)...)
}
