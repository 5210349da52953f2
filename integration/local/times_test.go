package local

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// times lists very old and very late times, by the names of their entries.
var times = map[string]time.Time{
	"1811":   time.Unix(-5_000_000_000, 250_000_000),
	"1905":   time.Unix(-2_050_000_000, 1),
	"before": time.Unix(-1, 999_999_999),
	"half":   time.Unix(-2, 500_000_000),
	"2116":   time.Unix(4_611_686_019, 5),
	"2128":   time.Unix(5_000_000_000, 123_456_789),
	"2255":   time.Unix(9_000_000_000, 0),
}

// latest is the result for times later than 64 bits of nanoseconds can hold.
var latest = time.Unix(1<<63/1_000_000_000-1, 0)

// timesTar returns a tar with a file, a link and a directory of each time, and one time too late to represent.
func timesTar(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, typ byte, link string, at time.Time) {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: typ, Linkname: link, Mode: 0o755, ModTime: at, Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
	}
	for name, at := range times {
		add("f/"+name, tar.TypeReg, "", at)
		add("l/"+name, tar.TypeSymlink, "nowhere", at)
		add("d/"+name+"/", tar.TypeDir, "", at)
	}
	add("later", tar.TypeReg, "", time.Date(2500, 1, 2, 3, 4, 5, 6, time.UTC))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// wantTimes checks the entries of these kinds whose times are between first and last.
func wantTimes(t *testing.T, where, dir string, kinds []string, first time.Time) {
	t.Helper()
	for _, kind := range kinds {
		for name, want := range times {
			info, err := os.Lstat(filepath.Join(dir, kind, name))
			if want.Before(first) && err == nil {
				continue
			}
			if err != nil || !info.ModTime().Equal(want) {
				t.Errorf("%s: %s/%s: %v, want %v", where, kind, name, modTime(info), want)
			}
		}
	}
}

func modTime(info fs.FileInfo) string {
	if info == nil {
		return "is not there"
	}
	return fmt.Sprint(info.ModTime())
}

// TestTimes: very old and very late times equal the source's on all nodes, through every mount, in scratch, and in
// staged-out files.
func TestTimes(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	write(t, c.path("times.tar"), timesTar(t))
	c.stageIn(c.path("times.tar"))
	all := []string{"f", "l", "d"}
	seen := func(how string) {
		t.Helper()
		for _, node := range []string{"0", "1"} {
			dir := c.node(node, "data", "times")
			wantTimes(t, how+", node "+node, dir, all, time.Time{})
			if info, err := os.Stat(filepath.Join(dir, "later")); err != nil || !info.ModTime().Equal(latest) {
				t.Errorf("%s: a time later than all is %v, %v, want %v", how, modTime(info), err, latest)
			}
		}
	}
	seen("dataset")
	if out, err := exec.Command("cp", "-a", c.node("0", "data", "times"), c.node("0", "scratch", "copy")).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	wantTimes(t, "scratch", c.node("1", "scratch", "copy"), all, time.Time{})
	c.ok("stage-out", "copy:"+c.path("out"), "--dir", c.dir)
	wantTimes(t, "stage-out", c.path("out"), []string{"f", "l"}, time.Unix(-1<<31, 0)) // ext4 has no earlier times
	t.Run("view", func(t *testing.T) {
		needRoot(t)
		needViews(t)
		c.awaitViews("times", "2")
		seen("view")
	})
}
