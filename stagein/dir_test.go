package stagein

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
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// dirJob has a tree of everything that can be staged, and what it becomes.
func dirJob(t *testing.T, nodes int) (*job, map[string]stageintest.Entry) {
	r := stageintest.Rand(t)
	j := &job{fs: stageintest.NewFS(), nodes: nodes, path: "/src/tree", stripe: 1 << 20}
	j.lim = limits{piece: 2048, carry: 1024}
	want := map[string]stageintest.Entry{}
	add := func(rel string, mode uint32, data []byte) *stageintest.MemNode {
		p := strings.TrimSuffix(j.path+"/"+rel, "/")
		n := j.fs.Add(p, mode, data)
		e := stageintest.Entry{Mode: mode & keptBits, Mtime: n.Info.Mtime}
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
			j.stripe = stripe
			got, err := j.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			stageintest.CheckTree(t, got, want)
			var size int64
			for _, e := range want {
				size += e.Size
			}
			if read := j.fs.Read.Load(); read != size || j.sum.SourceBytes != size || j.sum.Bytes != size || j.sum.SourceTotal != size {
				t.Errorf("%d nodes read %d bytes of %d: %+v", nodes, read, size, j.sum)
			}
		}
	}
}

func TestDirThroughLink(t *testing.T) {
	j, want := dirJob(t, 2)
	j.fs.Add("/src/here", source.TypeSymlink, nil).Target = "tree"
	j.path = "/src/here"
	got, err := j.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
}

func TestDirRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*job)
		want  []string
	}{
		"fifo":    {func(j *job) { j.fs.Add("/src/tree/d3/pipe", source.TypeFIFO, nil) }, []string{"/src/tree/d3/pipe", "FIFO"}},
		"socket":  {func(j *job) { j.fs.Add("/src/tree/d3/sock", source.TypeSocket, nil) }, []string{"/src/tree/d3/sock", "socket"}},
		"device":  {func(j *job) { j.fs.Add("/src/tree/d3/null", source.TypeChar, nil) }, []string{"/src/tree/d3/null", "device"}},
		"dir":     {func(j *job) { j.fs.Nodes["/src/tree/d4"].Err = syscall.EACCES }, []string{"/src/tree/d4", "permission denied"}},
		"file":    {func(j *job) { j.fs.Nodes["/src/tree/d4/f1"].Err = syscall.EACCES }, []string{"/src/tree/d4/f1", "permission denied"}},
		"missing": {func(j *job) { j.path = "/src/none" }, []string{"/src/none", "no such file"}},
		"a fifo":  {func(j *job) { j.fs.Add("/src/p", source.TypeFIFO, nil); j.path = "/src/p" }, []string{"/src/p", "FIFO"}},
		"loop": {func(j *job) {
			j.fs.Add("/src/l", source.TypeSymlink, nil).Target = "l"
			j.path = "/src/l"
		}, []string{"/src/l", "symbolic links"}},
	} {
		t.Run(name, func(t *testing.T) {
			j, _ := dirJob(t, 3)
			c.spoil(j)
			if _, err := j.run(context.Background()); !stageintest.ErrorHas(err, c.want...) {
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
			n := j.fs.Add("/src/tree/victim", source.TypeRegular|0o644, make([]byte, 8000))
			once := false
			j.fs.OnRead = func(path string, off int64) {
				if path != "/src/tree/victim" || off == 0 {
					return
				}
				j.fs.Mu.Lock()
				defer j.fs.Mu.Unlock()
				if !once {
					once = true
					c.change(j.fs, n)
				}
			}
			if _, err := j.run(context.Background()); !stageintest.ErrorHas(err, "/src/tree/victim", c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	t.Run("disappears", func(t *testing.T) {
		j, _ := dirJob(t, 3)
		j.fs.Add("/src/tree/victim", source.TypeRegular|0o644, make([]byte, 8000))
		j.order = func(int) {
			j.fs.Mu.Lock()
			defer j.fs.Mu.Unlock()
			delete(j.fs.Nodes, "/src/tree/victim")
		}
		if _, err := j.run(context.Background()); !stageintest.ErrorHas(err, "/src/tree/victim", "no such file") {
			t.Errorf("%v", err)
		}
	})
}

func TestDirPutFails(t *testing.T) {
	j, _ := dirJob(t, 3)
	j.target = &stageintest.MemTarget{OnPut: func(_ metadata.NodeID, ino metadata.Ino, _ int) error {
		if ino.Seq() > 20 {
			return syscall.EROFS
		}
		return nil
	}}
	if _, err := j.run(context.Background()); !stageintest.ErrorHas(err, "read-only file system") {
		t.Errorf("%v", err)
	}
}

// look scans a source, or plans how to read it.
func look(cfg *PlanConfig) error {
	s, err := Scan(context.Background(), cfg, io.Discard)
	if err == nil && s == nil {
		_, err = MakePlan(context.Background(), cfg)
	}
	return err
}

func TestPlanChecksRoom(t *testing.T) {
	for _, kind := range []string{"tar", "dir"} {
		j, _ := dirJob(t, 3)
		if kind == "tar" {
			j = tarJob(stageintest.WriteTar(t, 0, []stageintest.Member{stageintest.TarFile("f", make([]byte, 100_000))}), 3)
		}
		free := func(id metadata.NodeID) (int64, bool) { return 1 << 30 >> (20 * id / 2), id < 2 }
		cfg := &PlanConfig{FS: j.fs, Request: Request{Source: j.path, Name: "x"}, Map: stageintest.ClusterMap(3), Free: free}
		if err := look(cfg); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		cfg.Free = func(id metadata.NodeID) (int64, bool) { return 1 << 30 >> (20 * id), true }
		if err := look(cfg); err != nil {
			t.Errorf("%s: %v, though some may stay in the source", kind, err)
		}
		cfg.Request.Spill = SpillFail
		if err := look(cfg); !stageintest.ErrorHas(err, "n2", "needs", "1 B", "capacity=") && !stageintest.ErrorHas(err, "n1", "1.0 KiB") && !stageintest.ErrorHas(err, "n2", "0 B") {
			t.Errorf("%s: %v, want ENOSPC that names node, need and have", kind, err)
		}
	}
	if _, err := MakePlan(context.Background(), &PlanConfig{Request: Request{Source: "/x", Name: "x"}}); !stageintest.ErrorHas(err, "no node is up") {
		t.Errorf("%v", err)
	}
}

func TestPlanJSON(t *testing.T) {
	j := tarJob(stageintest.WriteTar(t, 0, []stageintest.Member{stageintest.TarFile("f", make([]byte, 100_000))}), 3)
	if _, err := j.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	j.plan.Source, j.plan.Origins = "/odd \xfe", Origins{} // which stay where the plan is made
	b, err := json.Marshal(j.plan)
	if err != nil {
		t.Fatal(err)
	}
	var p Plan
	if err := json.Unmarshal(b, &p); err != nil || !reflect.DeepEqual(&p, j.plan) {
		t.Errorf("a plan does not survive JSON: %v", err)
	}
}

func TestRegions(t *testing.T) {
	for _, n := range []int{1, 2, 5, 7, 300} {
		nodes := stageintest.ClusterMap(n).Up()
		for _, size := range []int64{512, 513, 1024, 99_999, 1 << 20, 10<<20 + 7, 1 << 40} {
			off := int64(512)
			parts := regions(size, 1<<20, nodes)
			for i, p := range parts {
				if p.Off != off || p.End < p.Off || int(p.Index) != i || p.Off%512 != 0 {
					t.Fatalf("regions(%d, %d nodes)[%d] = %+v, want from %d", size, n, i, p, off)
				}
				off = p.End
			}
			if off != size {
				t.Errorf("regions(%d, %d nodes) end at %d", size, n, off)
			}
		}
	}
}

func TestParseSpec(t *testing.T) {
	for _, c := range []struct{ spec, source, name string }{
		{"/a/b.tar", "/a/b.tar", "b"}, {"/a/b/", "/a/b", "b"}, {"/a/b.tar:x", "/a/b.tar", "x"}, {"/a:b/c", "/a:b/c", "c"},
		{"/a/.tar", "/a/.tar", ".tar"}, {"/a//b/../c", "/a/c", "c"},
		{"/a/x.tar.gz", "/a/x.tar.gz", "x"}, {"/a/x.tgz", "/a/x.tgz", "x"}, {"/a/x.tar.zst", "/a/x.tar.zst", "x"}, {"/a/x.tar.xz", "/a/x.tar.xz", "x"},
		{"/a/x.tar.bz2", "/a/x.tar.bz2", "x"}, {"/a/x.zip", "/a/x.zip", "x"}, {"/a/.zip", "/a/.zip", ".zip"}, {"/a/x.gz", "/a/x.gz", "x.gz"},
		{"/a/x.tar.tar", "/a/x.tar.tar", "x.tar"}, {"/a/x.tar.gz:y.zip", "/a/x.tar.gz", "y.zip"},
	} {
		r, err := ParseSpec(c.spec, "/wd")
		if err != nil || r.Source != c.source || r.Name != c.name {
			t.Errorf("ParseSpec(%q) = %+v, %v", c.spec, r, err)
		}
	}
	for _, url := range []string{"s3://bucket/set", "https://host/set.tar:x", "gs://b/{0..9}.tar,unpack=no"} {
		if r, err := ParseSpec(url, "/wd"); !stageintest.ErrorHas(err, url[:strings.Index(url, ":")]+":// URLs cannot be staged", "copy the data") {
			t.Errorf("ParseSpec(%q) = %+v, %v", url, r, err)
		}
	}
	for _, bad := range []string{"", ":x", "/a/b:", "/a/b:..", "/", "/a/b:" + strings.Repeat("n", 256), "/a\x00b"} {
		if r, err := ParseSpec(bad, "/wd"); err == nil {
			t.Errorf("ParseSpec(%q) = %+v", bad, r)
		}
	}
}
