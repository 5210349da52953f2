package local

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// odd lists unusual names that a source may have.
var odd = []string{"a b", "line\nfeed", "tab\t", "\xff\xfe not UTF-8", "é", `back\slash`, "*?[", "-rf", ".hidden", ":colon", strings.Repeat("x", 255)}

// makeTree makes a source with one entry of every kind, and returns its bytes.
func makeTree(t *testing.T, dir string) (size int64) {
	t.Helper()
	mkdir(t, filepath.Join(dir, "empty"))
	mkdir(t, filepath.Join(dir, "deep/er/and/deeper"))
	add := func(name string, b []byte) {
		write(t, filepath.Join(dir, name), b)
		size += int64(len(b))
	}
	for i, name := range odd {
		add(name, []byte(name))
		add(filepath.Join("deep/er/and/deeper", name), bytes.Repeat([]byte{byte(i)}, i*777))
	}
	add("nothing", nil)
	add("big", bytes.Repeat([]byte("0123456789abcde\n"), 300_000))
	for name, mode := range map[string]os.FileMode{"run": 0o755, "secret": 0o400, "open": 0o666, "set": 0o2750} {
		add(name, []byte(name))
		if err := os.Chmod(filepath.Join(dir, name), mode&0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.Symlink("deep/er", filepath.Join(dir, "link")), os.Symlink("/nowhere/at all", filepath.Join(dir, "dangling")),
		os.Link(filepath.Join(dir, "big"), filepath.Join(dir, "deep", "again")), os.Chmod(filepath.Join(dir, "empty"), 0o711),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	setTimes(t, dir)
	return size
}

// setTimes sets past times with nanoseconds on everything below dir, except dir.
func setTimes(t *testing.T, dir string) {
	t.Helper()
	when := time.Unix(1_234_567_890, 123_456_789)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink || p == dir {
			return err
		}
		when = when.Add(time.Hour)
		return os.Chtimes(p, when, when)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// describe returns a line for each entry below dir, with its content.
func describe(t *testing.T, dir string, times bool) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p) // p is below dir
		fmt.Fprintf(&b, "%q %v", rel, info.Mode())
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			fmt.Fprintf(&b, " -> %q %v\n", target, err)
			return nil
		case info.Mode().IsRegular():
			content, err := os.ReadFile(p)
			fmt.Fprintf(&b, " %d links %d bytes %x %v", info.Sys().(*syscall.Stat_t).Nlink, info.Size(), sum(content), err)
		}
		if times {
			fmt.Fprintf(&b, " %d", info.ModTime().UnixNano())
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return b.String()
}

// wantSame compares two trees by their describe text.
func wantSame(t *testing.T, where, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Errorf("%s: got %s\nwant %s", where, g[i], w[i])
			return
		}
	}
	if len(g) != len(w) {
		t.Errorf("%s: %d things, want %d", where, len(g)-1, len(w)-1)
	}
}

// TestStageIn: a directory and its tars are staged unchanged on all nodes, and each of their bytes is read once.
func TestStageIn(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	src := c.path("src")
	size := makeTree(t, src)
	want := describe(t, src, true)
	c.stageIn("src:dir") // a relative path also works
	sizes := map[string]int64{"dir": size}
	for _, format := range []string{"pax", "gnu"} {
		file := c.path(format + ".tar")
		if out, err := exec.Command("tar", "--format="+format, "-C", src, "-cf", file, ".").CombinedOutput(); err != nil {
			t.Fatalf("tar: %v: %s", err, out)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		sizes[format] = info.Size()
		c.stageIn(file)
	}
	for _, node := range []string{"0", "1", "2"} {
		wantSame(t, "dir on node"+node, describe(t, c.node(node, "data", "dir"), true), want)
		wantSame(t, "pax on node"+node, describe(t, c.node(node, "data", "pax"), true), want)
		wantSame(t, "gnu on node"+node, describe(t, c.node(node, "data", "gnu"), false), describe(t, src, false))
	}
	for name, size := range sizes {
		ds := c.dataset(name)
		if ds.Phase != cluster.Sealed || !ds.Ready || ds.SourceBytes != size || ds.SourceSize != size {
			t.Errorf("%s: %v, read %d of %d source bytes, want sealed and %d of them", name, ds.Phase, ds.SourceBytes, ds.SourceSize, size)
		}
	}
	if out := c.ok("report", "--dir", c.dir); strings.Count(out, "source bytes read / source bytes = 1.00") != 3 {
		t.Errorf("report:\n%s", out)
	}
	c.fails([]string{`a dataset named "dir" is there already`, "SRC:NAME"}, "stage-in", "src:dir", "--dir", c.dir)
	c.readOnly()
}

// readOnly tries every kind of change on the dataset "dir".
func (c *camp) readOnly() {
	c.t.Helper()
	data := c.node("1", "data")
	file := filepath.Join(data, "dir", "run")
	for what, err := range map[string]error{
		"create":        os.WriteFile(filepath.Join(data, "dir", "new"), nil, 0o644),
		"create beside": os.WriteFile(filepath.Join(data, "new"), nil, 0o644),
		"write":         os.WriteFile(file, []byte("x"), 0o644),
		"mkdir":         os.Mkdir(filepath.Join(data, "dir", "new"), 0o755),
		"remove":        os.Remove(file),
		"rmdir":         os.Remove(filepath.Join(data, "dir", "empty")),
		"rename":        os.Rename(file, file+"2"),
		"symlink":       os.Symlink("x", filepath.Join(data, "dir", "new")),
		"link":          os.Link(file, file+"2"),
		"chmod":         os.Chmod(file, 0o600),
		"truncate":      os.Truncate(file, 0),
		"times":         os.Chtimes(file, time.Now(), time.Now()),
		"chown":         os.Lchown(file, 1, 1),
	} {
		if !errors.Is(err, syscall.EROFS) {
			c.t.Errorf("%s in data: %v, want EROFS", what, err)
		}
	}
	// The kernel returns EBUSY if the dataset has a cover.
	if err := os.Remove(filepath.Join(data, "dir")); !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.EBUSY) {
		c.t.Errorf("the dataset itself: %v, want EROFS or EBUSY", err)
	}
	wantFile(c.t, file, "run")
}

// member returns the header of a tar member without data.
func member(name string, typ byte) *tar.Header {
	return &tar.Header{Name: name, Typeflag: typ, Mode: 0o644, Linkname: map[bool]string{true: "x"}[typ == tar.TypeLink || typ == tar.TypeSymlink]}
}

// archive returns a tar of these members, each file with some data, and a valid one.
func archive(t *testing.T, members ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range append([]*tar.Header{member("good/file", tar.TypeReg)}, members...) {
		if h.Typeflag == tar.TypeReg {
			h.Size = 100_000
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("data"), int(h.Size)/4)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestStageInRefuses: nothing of a bad source appears or is kept, and one line names the cause.
func TestStageInRefuses(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	plain := archive(t)
	corrupt := archive(t, member("second", tar.TypeReg))
	copy(corrupt[512+100_352+148:], "garbage!") // the second header's checksum
	dup := archive(t, member("twice", tar.TypeReg), member("twice", tar.TypeReg))
	for name, x := range map[string]struct {
		bytes []byte
		want  []string
	}{
		"empty-file":  {nil, []string{"is empty"}},
		"empty":       {make([]byte, 10240), []string{"no members"}},
		"not-a-tar":   {bytes.Repeat([]byte("text\n"), 1000), []string{"not a tar or zip archive", "nor a directory", "unpack=no"}},
		"gzip":        {append([]byte{0x1f, 0x8b, 8}, make([]byte, 600)...), []string{"gzip"}},
		"half-header": {plain[:300], []string{"inside its first header"}},
		"truncated":   {plain[:60_000], []string{`"good/file"`, "truncated"}},
		"no-end":      {corrupt[:512+100_352+100], []string{"truncated"}},
		"corrupt":     {corrupt, []string{"offset 100864"}},
		"absolute":    {archive(t, member("/etc/passwd", tar.TypeReg)), []string{`"/etc/passwd"`, "absolute path", "leave it out by exclude="}},
		"dotdot":      {archive(t, member("a/../../b", tar.TypeReg)), []string{`"a/../../b"`, "path with .."}},
		"duplicate":   {dup, []string{`"twice"`, "unpack=apart"}},
		"through":     {archive(t, member("good/file/x", tar.TypeReg)), []string{`"good/file`, "leave it out by exclude="}},
		"char":        {archive(t, member("dev/null", tar.TypeChar)), []string{`"dev/null"`, "device node", "on-error=skip"}},
		"block":       {archive(t, member("dev/sda", tar.TypeBlock)), []string{`"dev/sda"`, "device node"}},
		"fifo":        {archive(t, member("pipe", tar.TypeFifo)), []string{`"pipe"`, "is a FIFO: leave it out by exclude= or on-error=skip"}},
		"hardlink":    {archive(t, member("hard", tar.TypeLink)), []string{`"hard"`, "leave it out by exclude="}},
	} {
		file := c.path(name + ".tar")
		write(t, file, x.bytes)
		c.fails(append(x.want, file), "stage-in", file, "--dir", c.dir)
		if ds := c.dataset(name); ds.Phase != cluster.Removed || ds.Error == "" { // the user has read the reason
			t.Errorf("%s is %v: %q", name, ds.Phase, ds.Error)
		}
	}
	c.badSources()
	for _, node := range []string{"0", "1"} {
		if got := names(t, c.node(node, "data")); len(got) != 0 {
			t.Errorf("data on node%s has %q", node, got)
		}
		if s := c.status(node).Space; s.Used != 0 || s.Objects != 0 {
			t.Errorf("node%s keeps %+v of what failed", node, s)
		}
	}
	write(t, c.path("corrupt.tar"), plain) // repaired: the name is free
	c.stageIn(c.path("corrupt.tar"))
	if got := names(t, c.node("1", "data", "corrupt", "good")); !slices.Equal(got, []string{"file"}) {
		t.Errorf("the mended dataset has %q", got)
	}
}

// badSources tests sources that are rejected before they are read.
func (c *camp) badSources() {
	c.t.Helper()
	pipes := mkdir(c.t, c.path("pipes"))
	if err := syscall.Mkfifo(filepath.Join(pipes, "a pipe"), 0o644); err != nil {
		c.t.Fatal(err)
	}
	for spec, want := range map[string][]string{
		c.path("missing.tar"):                  {c.path("missing.tar"), "no such file"},
		"missing.tar":                          {c.path("missing.tar"), "no such file"},
		pipes:                                  {pipes + "/a pipe", "FIFO"},
		pipes + "/a pipe":                      {"FIFO"},
		"/dev/null:dev":                        {"/dev/null", "device"},
		pipes + ":a/b":                         {pipes + ":a/b", "no such file"},
		pipes + ":":                            {"no name after the colon"},
		pipes + ":..":                          {`".."`, "SRC:NAME"},
		"/":                                    {`"/"`, "SRC:NAME"},
		"":                                     {"no source"},
		":name":                                {"no source"},
		pipes + ":" + strings.Repeat("x", 256): {"longer than 255 bytes"},
	} {
		c.fails(want, "stage-in", spec, "--dir", c.dir)
	}
}

// TestBackground: a stage-in in the background, and the command wait.
func TestBackground(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	c.ok("wait", "--dir", c.dir) // with nothing to wait for
	write(t, c.path("good.tar"), archive(t))
	c.ok("stage-in", c.path("good.tar"), "--background", "--dir", c.dir)
	c.ok("wait", "--dir", c.dir, "--node", "1", "--for", "all")
	c.settled()
	for _, node := range []string{"0", "1"} {
		if got := names(t, c.node(node, "data")); !slices.Equal(got, []string{"good"}) {
			t.Errorf("data on node%s has %q after wait", node, got)
		}
	}
	c.ok("stage-in", c.path("missing.tar"), "--background", "--dir", c.dir)
	for _, node := range []string{"0", "1"} {
		c.failed(c.run("wait", "--dir", c.dir, "--node", node), "missing: ", c.path("missing.tar"), "no such file")
	}
	c.ok("wait", "--for", "none", "--dir", c.dir)
	c.stageIn(c.path("good.tar") + ":more") // it ignores the earlier failure
}
