package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	daemonout "github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/metadata"
)

// outwardCluster starts a job that stages ckpt out while it runs.
func outwardCluster(t *testing.T, cfg Config) (c *Cluster, ckpt metadata.Ino, to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "out")
	cfg.StageOut = []job.StageOut{{From: "ckpt", To: to}}
	cfg.Timing = daemon.Timing{Report: 30 * time.Millisecond, Down: 2 * time.Second, Out: 50 * time.Millisecond, Settle: 200 * time.Millisecond}
	c = Start(t, cfg)
	d, err := c.Nodes[0].Client.Mkdir(context.Background(), metadata.RootIno, "ckpt", metadata.New{Mode: 0o040755, UID: 1000, GID: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return c, d.Ino, to
}

func has(to, name string, want []byte) bool {
	b, err := os.ReadFile(filepath.Join(to, name))
	return err == nil && bytes.Equal(b, want)
}

// TestOutward: files that were closed and left unchanged are staged out once while the job runs, and again after a
// change.
func TestOutward(t *testing.T) {
	c, ckpt, to := outwardCluster(t, Config{})
	const files = 20
	content := func(i, round int) []byte { return []byte(fmt.Sprint("checkpoint ", i, " of round ", round)) }
	for i := range files {
		put(t, c.Nodes[i%4], ckpt, fmt.Sprint("f", i), content(i, 0), metadata.Layout{})
	}
	Eventually(t, "all is copied", func() bool {
		for i := range files {
			if !has(to, fmt.Sprint("f", i), content(i, 0)) {
				return false
			}
		}
		return true
	})
	e, err := c.Nodes[2].Client.Lookup(context.Background(), ckpt, "f7")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes[2].Client.WriteFile(context.Background(), *e.Attr, content(7, 1), 0); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the changed one is copied again", func() bool { return has(to, "f7", content(7, 1)) })
	Eventually(t, "the nodes say what they have copied", func() bool {
		var n int64
		for _, node := range c.Nodes {
			for _, o := range node.Status(context.Background()).StageOut {
				if n += o.Files; o.Failed != 0 || o.Error != "" {
					t.Errorf("%+v", o)
				}
			}
		}
		return n == files+1
	})
	dir, err := c.Nodes[1].Client.Getattr(context.Background(), ckpt)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range leaveAll(t, c, Patience, 0, 1, 2, 3) {
		if err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
	if info, err := os.Stat(to); err != nil || metadata.TimeOf(info.ModTime()) != dir.Mtime {
		t.Errorf("the directory is of %v, %v, want %v", info.ModTime(), err, dir.Mtime.Time())
	}
	if n := copied(t, to); n != files {
		t.Errorf("%d files are there, want %d", n, files)
	}
}

// TestOutwardPieces: all nodes copy a large file together, each a part.
func TestOutwardPieces(t *testing.T) {
	c, ckpt, to := outwardCluster(t, Config{Piece: 1 << 20})
	want := make([]byte, 9<<20+11)
	for i := range want {
		want[i] = byte(i>>12 + i*7)
	}
	put(t, c.Nodes[3], ckpt, "large", want, metadata.Layout{})
	Eventually(t, "it is copied", func() bool { return has(to, "large", want) })
	for i, err := range leaveAll(t, c, Patience, 0, 1, 2, 3) {
		if err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
	if n := copied(t, to); n != 1 {
		t.Errorf("%d files are there, want 1", n)
	}
}

// TestOutwardAtOnce: several requests for the same running stage-out each copy every file without a failure.
func TestOutwardAtOnce(t *testing.T) {
	c, ckpt, to := outwardCluster(t, Config{})
	ctx := context.Background()
	const files, size = 40, 256 << 10
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, size) }
	for i := range files {
		put(t, c.Nodes[i%4], ckpt, fmt.Sprint("f", i), content(i), metadata.Layout{})
	}
	var g errgroup.Group
	for i := range 6 {
		g.Go(func() error {
			r, err := c.Nodes[i%4].Out().All(ctx, job.StageOut{From: "ckpt", To: to})
			if err == nil && r.Failed > 0 {
				err = fmt.Errorf("%d files failed: %q", r.Failed, r.Errors)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if !has(to, fmt.Sprint("f", i), content(i)) {
			t.Errorf("f%d is not as it was", i)
		}
	}
	if all, err := os.ReadDir(to); err != nil || len(all) != files {
		t.Errorf("the target has %d files, %v, want %d", len(all), err, files)
	}
}

// TestOutTold: a failing target is reported in the job's output: once while the job runs, and at the end in one line
// for all nodes.
func TestOutTold(t *testing.T) {
	output := filepath.Join(t.TempDir(), "slurm-test.out")
	f, err := os.OpenFile(output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o, ok := daemonout.OutputOf(f)
	if !ok {
		t.Fatal("the output is no file")
	}
	work := t.TempDir()
	c, ckpt, to := outwardCluster(t, Config{WorkDir: work})
	if err := os.WriteFile(to, []byte("in the way"), 0o644); err != nil {
		t.Fatal(err)
	}
	const files = 40
	for i := range files {
		put(t, c.Nodes[i%4], ckpt, fmt.Sprint("f", i), make([]byte, 1000), metadata.Layout{})
	}
	if err := daemon.NewCtl(c.Nodes[2].Job.CtlSocket()).SetOutput(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	said := func() []string {
		b, err := os.ReadFile(output)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	}
	Eventually(t, "it is told while the job runs", func() bool {
		return strings.HasPrefix(said()[0], "bivouac: stage-out of ckpt to "+to+" fails so far: not a directory (")
	})
	for i, err := range leaveAll(t, c, Patience, 0, 1, 2, 3) {
		if err == nil {
			t.Errorf("node %d copied to a file", i)
		}
	}
	lines := said()
	if len(lines) != 2 {
		t.Fatalf("the output has %d lines, want 2:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	for _, want := range []string{
		" failed: not copied, and lost with the job, 40 files of 39.1 KiB: not a directory (40, such as ",
		"; 4 nodes have a list, such as " + work + "/bivouac-test-host", "; before the next run, move the file or directory that is in its place",
	} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("the last line lacks %q:\n%s", want, lines[1])
		}
	}
}
