package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// packOne compresses a file in place into one member of gzip, as tar czf does.
func packOne(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, deflated(t, b), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wantVerified has all files of a dataset compared with their checksums, also those that are in the
// source alone.
func wantVerified(t *testing.T, c *Cluster, m map[string][]byte) {
	t.Helper()
	r := c.verify(t, daemon.VerifySpec{Name: "set", Source: true})
	if r.Bad != 0 || r.Spilled != 0 || r.Files != int64(len(m)) || r.Bytes != bytesOf(m) || r.Unsummed != 0 {
		t.Errorf("verify with the source: %+v, want %d files", r, len(m))
	}
}

// TestPackedSpillOneMember: of a compressed tar that is one member of gzip what has no room stays in the
// source, also when the daemon that reads it is killed while that goes back; daemons that start again afterwards,
// the one that read it too, know where to begin in its middle.
func TestPackedSpillOneMember(t *testing.T) {
	t.Parallel()
	const capacity = 3 << 20
	p, i := spilling(t, capacity, packOne)
	Eventually(t, "all is read that is to be", func() bool { return p.bytes.Load() >= p.size*3/4 })
	p.Cut(i)
	p.restart(t, i)
	t.Cleanup(p.open) // before the daemon is closed
	p.spilt(t, capacity, 0, 1, 2, 3)
	wantHalf(t, p.Cluster, "set", p.m)
	ds := p.Dataset(t, leads, "set")
	was := p.bytes.Load()
	for _, k := range []int{i, others(i)[0]} {
		p.Kill(t, k)
		p.gates[k].open()
		p.Revive(t, k)
		Eventually(t, "the dataset is visible", func() bool { return len(p.Nodes[k].Datasets()) == 1 })
		wantAll(t, p.Nodes[k], ds.ID, p.m)
	}
	if n := p.bytes.Load() - was; n == 0 || n > 10*p.size {
		t.Errorf("%d bytes of %d were read again", n, p.size)
	}
	wantVerified(t, p.Cluster, p.m)
}

// TestPackedSpillOneMemberOfSeveral: of several compressed tars, one such larger than what may be unpacked
// to come to a file refuses none of them.
func TestPackedSpillOneMemberOfSeveral(t *testing.T) {
	t.Parallel()
	m := halfPacks(600, 60_000)
	dir := t.TempDir()
	packs := []func(*testing.T, string){packMembers, packOne, packFrames, packOne}
	var parts []map[string][]byte
	for i := range packs {
		parts = append(parts, fourth(m, i))
	}
	for i, pack := range packs {
		part := parts[i]
		if i == 1 {
			for k := range 30 { // which pack so well that they are found in few bytes
				path := fmt.Sprint("large/", k)
				part[path] = bytes.Repeat([]byte{byte(k)}, 1<<20)
				m[path] = part[path]
			}
		}
		src := filepath.Join(dir, fmt.Sprint("shard-", i, ".tar"))
		writeTar(t, src, part)
		pack(t, src)
	}
	c := Start(t, Config{Capacity: 8 << 20, Window: 1 << 20})
	if err := c.Nodes[0].StageIn(context.Background(), job.Dataset{Source: filepath.Join(dir, "shard-*.tar"), Name: "set"}); err != nil {
		t.Fatal(err)
	}
	ds := c.Dataset(t, 0, "set")
	if ds.Phase != cluster.Sealed || ds.Files != int64(len(m)) || ds.Bytes != bytesOf(m) {
		t.Fatalf("dataset: %+v", ds)
	}
	wantHalf(t, c, "set", m)
	for _, n := range c.Nodes {
		Eventually(t, "the dataset is visible", func() bool { return len(n.Datasets()) == 1 })
	}
	wantVerified(t, c, m)
}
