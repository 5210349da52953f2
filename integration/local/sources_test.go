package local

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shard returns a tar of files whose content is their own name.
func shard(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f, Mode: 0o644, Size: int64(len(f)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// below returns the regular files below a directory.
func below(t *testing.T, dir string) (all []string) {
	t.Helper()
	for l := range strings.Lines(describe(t, dir, false)) {
		if name, rest, ok := strings.Cut(l, `" `); ok && rest[0] == '-' {
			all = append(all, name[1:])
		}
	}
	slices.Sort(all)
	return all
}

// TestSources: shards selected by a pattern become one dataset, unpacked, kept as tars or in separate directories;
// lists and patterns select files; every option is used as a user types it.
func TestSources(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	wds := mkdir(t, c.path("wds,x"))
	write(t, filepath.Join(wds, "train-08.tar"), shard(t, "a/1.jpg", "a/1.cls"))
	write(t, filepath.Join(wds, "train-09.tar"), shard(t, "b/2.jpg"))
	write(t, filepath.Join(wds, "train-10.tar"), shard(t, "b/3.jpg", "B/3.jpg"))
	write(t, c.path("list"), []byte("a\nb/2.jpg\n"))
	write(t, c.path("table.h5"), []byte("rows"))
	write(t, c.path("split"), []byte("train-08.tar\nmissing.tar\n"))
	loop := mkdir(t, c.path("loop"))
	if err := os.Symlink("../loop", filepath.Join(loop, "self")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(loop, "real"), []byte("real"))
	for _, x := range []struct {
		name, spec string
		want       []string
	}{
		{"all", wds + "/*.tar:all", []string{"B/3.jpg", "a/1.cls", "a/1.jpg", "b/2.jpg", "b/3.jpg"}},
		{"wds,x", wds + "/train-{08..09}.tar", []string{"a/1.cls", "a/1.jpg", "b/2.jpg"}},
		{"kept", "wds,x/train-*:kept,unpack=no", []string{"train-08.tar", "train-09.tar", "train-10.tar"}},
		{"apart", wds + "/*:apart,unpack=apart,include=*.jpg", []string{"train-08/a/1.jpg", "train-09/b/2.jpg", "train-10/B/3.jpg", "train-10/b/3.jpg"}},
		{"some", wds + "/*:some,list=list,exclude=*.cls", []string{"a/1.jpg", "b/2.jpg"}},
		{"loop", "loop", []string{"real"}},
		{"table", "table.h5,unpack=no", []string{"table.h5"}}, {"table.h5", "table.h5:table.h5,unpack=no", []string{"table.h5"}},
	} {
		c.stageIn(x.spec)
		for _, node := range []string{"0", "2"} {
			if got := below(t, c.node(node, "data", x.name)); !slices.Equal(got, x.want) {
				t.Errorf("%s has %q, want %q", x.spec, got, x.want)
			}
		}
	}
	wantFile(t, c.node("1", "data", "all", "B", "3.jpg"), "B/3.jpg")
	wantFile(t, c.node("1", "data", "all", "b", "3.jpg"), "b/3.jpg")
	for spec, want := range map[string][]string{
		wds + "/none-*:n":                    {"none-*", "matches nothing"},
		wds + "/train-{07..09}.tar:n":        {"train-07.tar", "matches nothing"},
		wds + ":n,list=" + c.path("split"):   {"1 of the paths in", `"missing.tar"`, "on-error=skip"},
		wds + ":n,nosuch=1":                  {"nosuch", "unpack"},
		wds + ":n,include=nothing-like-this": {"no file is selected"},
		wds + ":n,unpack=sometimes":          {"apart"},
		wds + ":n,list=" + c.path("no-list"): {"no-list", "no such file"},
	} {
		c.fails(want, "stage-in", spec, "--dir", c.dir)
	}
}

// TestSkipStatus: skipped files are named, and the exit status reports them.
func TestSkipStatus(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	write(t, c.path("bad.tar"), archive(t, member("dev/null", tar.TypeChar), member("fine", tar.TypeReg)))
	r := c.run("stage-in", c.path("bad.tar")+",on-error=skip", "--dir", c.dir)
	if r.status != 3 || !strings.Contains(r.err, `"dev/null"`) || !strings.Contains(r.err, "device node") {
		t.Errorf("status %d:\n%s", r.status, r.err)
	}
	if got := below(t, c.node("1", "data", "bad")); !slices.Equal(got, []string{"fine", "good/file"}) {
		t.Errorf("the dataset has %q", got)
	}
	for _, node := range []string{"0", "1"} {
		if out := c.ok("skipped", "bad", "--dir", c.dir, "--node", node); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"dev/null"`) {
			t.Errorf("skipped says %q", out)
		}
	}
	if ds := c.dataset("bad"); ds.Skipped != 1 {
		t.Errorf("%d left out, want 1", ds.Skipped)
	}
}

// TestSparseTar: sparse files keep their holes on the nodes, and read the same.
func TestSparseTar(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	const size = 200 << 20
	dir := mkdir(t, c.path("holes"))
	for i, name := range []string{"a", "b"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte("in the middle"), int64(50<<20*(i+1)))
		if err = errors.Join(err, f.Truncate(size), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []string{"gnu", "posix"} {
		tarball := c.path(format + ".tar")
		if out, err := exec.Command("tar", "-C", dir, "-S", "--format="+format, "-cf", tarball, "a", "b").CombinedOutput(); err != nil {
			t.Fatalf("tar: %v: %s", err, out)
		}
		c.stageIn(tarball)
		for _, name := range []string{"a", "b"} {
			staged := c.node("2", "data", format, name)
			if out, err := exec.Command("cmp", filepath.Join(dir, name), staged).CombinedOutput(); err != nil {
				t.Errorf("%s: %s: %v: %s", format, name, err, out)
			}
		}
	}
	var used int64
	for _, node := range []string{"0", "1", "2"} {
		used += c.status(node).Space.Used
	}
	if used > 8<<20 {
		t.Errorf("the nodes use %d bytes for a few in files of %d", used, size)
	}
	c.ok("verify", "--dir", c.dir)
}
