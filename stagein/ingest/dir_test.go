package ingest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// dirJob returns a job whose source tree has every kind of item that can be staged, and the entries expected.
func dirJob(t *testing.T, nodes int) (*jobtest.Job, map[string]stageintest.Entry) {
	r := stageintest.Rand(t)
	j := &jobtest.Job{FS: stageintest.NewFS(), Nodes: nodes, Path: "/src/tree", Stripe: 1 << 20}
	j.Lim = jobtest.Bounds{Piece: 2048, Carry: 1024}
	want := map[string]stageintest.Entry{}
	add := func(rel string, mode uint32, data []byte) *stageintest.MemNode {
		p := strings.TrimSuffix(j.Path+"/"+rel, "/")
		n := j.FS.Add(p, mode, data)
		e := stageintest.Entry{Mode: mode & stagein.KeptBits, Mtime: n.Info.Mtime}
		if mode&source.TypeMask == source.TypeRegular {
			e.Size, e.Data = int64(len(data)), string(data)
		}
		want[rel] = e
		return n
	}
	add("", source.TypeDir|0o755, nil)
	for d := range 5 {
		dir := fmt.Sprintf("d%d", d)
		add(dir, source.TypeDir|0o2750, nil)
		for f := range 30 {
			add(fmt.Sprintf("%s/f%d", dir, f), source.TypeRegular|0o4644, stageintest.RandBytes(r, r.IntN(5000)))
		}
	}
	add("d0/empty", source.TypeDir|0o700, nil)
	add("zero", source.TypeRegular|0o600, nil)
	add("not utf8 \xff\n", source.TypeRegular|0o600, []byte("x"))
	link := add("d0/loop", source.TypeSymlink|0o777, nil)
	link.Target = ".\xff/../d0"
	e := want["d0/loop"]
	e.Target = link.Target
	want["d0/loop"] = e
	first := add("d1/hard", source.TypeRegular|0o600, []byte("two names"))
	second := add("d2/hard", source.TypeRegular|0o600, []byte("two names"))
	first.Info.Nlink, second.Info.Nlink, second.Info.Ino, second.Info.Mtime = 2, 2, first.Info.Ino, first.Info.Mtime
	want["d2/hard"] = stageintest.Entry{Mode: source.TypeRegular | 0o600, Mtime: first.Info.Mtime, Link: "d1/hard"}
	return j, want
}

func TestDirEqualsTree(t *testing.T) {
	for _, stripe := range []int64{1 << 20, 1500} {
		for nodes := 1; nodes <= 7; nodes++ {
			j, want := dirJob(t, nodes)
			j.Stripe = stripe
			got, err := j.Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			stageintest.CheckTree(t, got, want)
			var size int64
			for _, e := range want {
				size += e.Size
			}
			if read := j.FS.Read.Load(); read != size || j.Sum.SourceBytes != size || j.Sum.Bytes != size || j.Sum.SourceTotal != size {
				t.Errorf("%d nodes read %d bytes of %d: %+v", nodes, read, size, j.Sum)
			}
		}
	}
}

func TestDirThroughLink(t *testing.T) {
	j, want := dirJob(t, 2)
	j.FS.Add("/src/here", source.TypeSymlink, nil).Target = "tree"
	j.Path = "/src/here"
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
}

func TestDirRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*jobtest.Job)
		want  []string
	}{
		"fifo":    {func(j *jobtest.Job) { j.FS.Add("/src/tree/d3/pipe", source.TypeFIFO, nil) }, []string{"/src/tree/d3/pipe", "FIFO"}},
		"socket":  {func(j *jobtest.Job) { j.FS.Add("/src/tree/d3/sock", source.TypeSocket, nil) }, []string{"/src/tree/d3/sock", "socket"}},
		"device":  {func(j *jobtest.Job) { j.FS.Add("/src/tree/d3/null", source.TypeChar, nil) }, []string{"/src/tree/d3/null", "device"}},
		"dir":     {func(j *jobtest.Job) { j.FS.Nodes["/src/tree/d4"].Err = syscall.EACCES }, []string{"/src/tree/d4", "permission denied"}},
		"file":    {func(j *jobtest.Job) { j.FS.Nodes["/src/tree/d4/f1"].Err = syscall.EACCES }, []string{"/src/tree/d4/f1", "permission denied"}},
		"missing": {func(j *jobtest.Job) { j.Path = "/src/none" }, []string{"/src/none", "no such file"}},
		"a fifo":  {func(j *jobtest.Job) { j.FS.Add("/src/p", source.TypeFIFO, nil); j.Path = "/src/p" }, []string{"/src/p", "FIFO"}},
		"loop": {func(j *jobtest.Job) {
			j.FS.Add("/src/l", source.TypeSymlink, nil).Target = "l"
			j.Path = "/src/l"
		}, []string{"/src/l", "symbolic links"}},
	} {
		t.Run(name, func(t *testing.T) {
			j, _ := dirJob(t, 3)
			c.spoil(j)
			if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, c.want...) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestDirFileChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stageintest.MemFS, *stageintest.MemNode)
		want   string
	}{
		"shrinks":    {func(_ *stageintest.MemFS, n *stageintest.MemNode) { n.Data = n.Data[:10] }, "shorter"},
		"grows":      {func(_ *stageintest.MemFS, n *stageintest.MemNode) { n.Data = append(n.Data, 1); n.Info.Size++ }, "has 8001 now"},
		"is touched": {func(_ *stageintest.MemFS, n *stageintest.MemNode) { n.Info.Mtime++ }, "changed"},
	} {
		t.Run(name, func(t *testing.T) {
			j, _ := dirJob(t, 3)
			n := j.FS.Add("/src/tree/victim", source.TypeRegular|0o644, make([]byte, 8000))
			once := false
			j.FS.OnRead = func(path string, off int64) {
				if path != "/src/tree/victim" || off == 0 {
					return
				}
				j.FS.Mu.Lock()
				defer j.FS.Mu.Unlock()
				if !once {
					once = true
					c.change(j.FS, n)
				}
			}
			if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "/src/tree/victim", c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	t.Run("disappears", func(t *testing.T) {
		j, _ := dirJob(t, 3)
		j.FS.Add("/src/tree/victim", source.TypeRegular|0o644, make([]byte, 8000))
		j.Order = func(int) {
			j.FS.Mu.Lock()
			defer j.FS.Mu.Unlock()
			delete(j.FS.Nodes, "/src/tree/victim")
		}
		if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "/src/tree/victim", "no such file") {
			t.Errorf("%v", err)
		}
	})
}

func TestDirPutFails(t *testing.T) {
	j, _ := dirJob(t, 3)
	j.Target = &stageintest.MemTarget{OnPut: func(_ metadata.NodeID, ino metadata.Ino, _ int) error {
		if ino.Seq() > 20 {
			return syscall.EROFS
		}
		return nil
	}}
	if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, "read-only file system") {
		t.Errorf("%v", err)
	}
}

// look scans a source, or plans how to read it.
func look(cfg *scan.Config) error {
	s, err := scan.Run(context.Background(), cfg, io.Discard)
	if err == nil && s == nil {
		_, err = scan.MakePlan(context.Background(), cfg)
	}
	return err
}

func TestPlanChecksRoom(t *testing.T) {
	for _, kind := range []string{"tar", "dir"} {
		j, _ := dirJob(t, 3)
		if kind == "tar" {
			j = jobtest.TarJob(stageintest.WriteTar(t, 0, []stageintest.Member{stageintest.TarFile("f", make([]byte, 100_000))}), 3)
		}
		free := func(id metadata.NodeID) (int64, bool) { return 1 << 30 >> (20 * id / 2), id < 2 }
		cfg := &scan.Config{FS: j.FS, Request: stagein.Request{Source: j.Path, Name: "x"}, Map: stageintest.ClusterMap(3), Free: free}
		if err := look(cfg); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		cfg.Free = func(id metadata.NodeID) (int64, bool) { return 1 << 30 >> (20 * id), true }
		if err := look(cfg); err != nil {
			t.Errorf("%s: %v, though some may stay in the source", kind, err)
		}
		cfg.Request.Overflow = stagein.OverflowFail
		if err := look(cfg); !stageintest.ErrorHas(err, "n2", "needs", "1 B", "capacity=") && !stageintest.ErrorHas(err, "n1", "1.0 KiB") && !stageintest.ErrorHas(err, "n2", "0 B") {
			t.Errorf("%s: %v, want ENOSPC that names node, need and have", kind, err)
		}
	}
	if _, err := scan.MakePlan(context.Background(), &scan.Config{Request: stagein.Request{Source: "/x", Name: "x"}}); !stageintest.ErrorHas(err, "no node is up") {
		t.Errorf("%v", err)
	}
}

func TestPlanJSON(t *testing.T) {
	j := jobtest.TarJob(stageintest.WriteTar(t, 0, []stageintest.Member{stageintest.TarFile("f", make([]byte, 100_000))}), 3)
	if _, err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	j.Plan.Source, j.Plan.Origins = "/odd \xfe", stagein.Origins{} // which are not sent to the nodes
	b, err := json.Marshal(j.Plan)
	if err != nil {
		t.Fatal(err)
	}
	var p stagein.Plan
	if err := json.Unmarshal(b, &p); err != nil || !reflect.DeepEqual(&p, j.Plan) {
		t.Errorf("a plan does not survive JSON: %v", err)
	}
}
