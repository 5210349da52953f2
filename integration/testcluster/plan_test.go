package testcluster

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// TestPlan: a plan that is set over one node's control socket is shown by another's, its map names the owners of the
// files, and it can be cleared.
func TestPlan(t *testing.T) {
	t.Parallel()
	m := map[string][]byte{".DS_Store": {1}, "val/a/v.jpg": {2}}
	for i := range 40 {
		m[fmt.Sprintf("train/c%d/%02d.jpg", i%4, i)] = []byte{byte(i)}
	}
	dir := t.TempDir()
	writeTree(t, dir, m)
	c := Start(t, Config{Datasets: []job.Dataset{{Source: dir, Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	one, other := daemon.NewCtl(c.Nodes[1].Job.CtlSocket()), daemon.NewCtl(c.Nodes[2].Job.CtlSocket())
	ctx := t.Context()

	if _, err := one.Plan(ctx, "set"); err == nil || !strings.Contains(err.Error(), "has no access plan") {
		t.Errorf("plan of a dataset that has none: %v", err)
	}
	plan := accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Seed: 3, Shuffle: true, Ranks: 4}
	digest, err := one.SetPlan(ctx, plan)
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the other node has the plan", func() bool {
		r, err := other.Plan(ctx, "set")
		return err == nil && r.State.Digest == digest && r.Plan.Seed == 3
	})

	o, err := other.Owners(ctx, plan)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := base64.StdEncoding.DecodeString(o.Owner)
	if err != nil || o.Root != "train" || o.Files != 40 || len(owner) != 80 || o.Self != 2 || len(o.Nodes) != len(c.Nodes) {
		t.Fatalf("map is %+v, %v", o, err)
	}
	// Number i of class c is the file 4i+c: by class, then by name.
	table, _ := c.Nodes[0].Table(ds.ID)
	var want, got []metadata.NodeID
	for number := range 40 {
		file := fmt.Sprintf("train/c%d/%02d.jpg", number/10, number%10*4+number/10)
		ino := metadata.SealedIno(ds.ID, metadata.DirPart, 0)
		var a metadata.Attr
		for name := range strings.SplitSeq(file, "/") {
			e, err := table.Lookup(ctx, ino, name)
			if err != nil {
				t.Fatal(err)
			}
			ino, a = e.Ino, *e.Attr
		}
		want = append(want, a.Layout.Node)
		got = append(got, metadata.NodeID(binary.LittleEndian.Uint16(owner[2*number:])))
	}
	if !slices.Equal(got, want) {
		t.Errorf("owners are %v, want %v", got, want)
	}

	bad := plan
	bad.Kind = "x"
	if _, err := one.SetPlan(ctx, bad); err == nil || !strings.Contains(err.Error(), "torch, random") {
		t.Errorf("a plan of an unknown kind: %v", err)
	}
	if err := one.ClearPlan(ctx, "set"); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the plan is gone", func() bool {
		_, err := other.Plan(ctx, "set")
		return err != nil
	})
}
