package testcluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// old is the content of the files that are read ahead, long enough for a dataset's to be sent from its descriptor.
var old = strings.Repeat("old ", 5<<10)

// aheadChanges lists changes by another node to a read-ahead file, and its text afterwards; "" if it was removed.
var aheadChanges = []struct {
	name string
	do   func(f string) error
	want string
}{
	{"write in place", func(f string) error { return writeAt(f, os.O_WRONLY, "new") }, "new" + old[3:]},
	{"truncate and write", func(f string) error { return os.WriteFile(f, []byte("other"), 0o644) }, "other"},
	{"append", func(f string) error { return writeAt(f, os.O_WRONLY|os.O_APPEND, "more") }, old + "more"},
	{"truncate", func(f string) error { return os.Truncate(f, 1) }, "o"},
	{"unlink", os.Remove, ""},
	{"rename over it", func(f string) error {
		if err := os.WriteFile(f+".tmp", []byte("renamed"), 0o644); err != nil {
			return err
		}
		return os.Rename(f+".tmp", f)
	}, "renamed"},
}

// TestFilesReadAheadAreTrue: small remote files read in order cost less than half a call each. A change made after
// the read-ahead is seen here at the next open, and at once if both sides use O_DIRECT.
func TestFilesReadAheadAreTrue(t *testing.T) {
	t.Parallel()
	const n, first = 96, 24 // files, and how many are read before the others change
	c := Start(t, Config{})
	ms := c.Mount(t, 1, 2)
	here := c.Nodes[2]
	var there, seen string
	for i := 0; there == ""; i++ { // until its home is another node
		d := filepath.Join(ms[0].Scratch, fmt.Sprintf("d%d", i))
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		fi, err := stat(d)
		if err != nil {
			t.Fatal(err)
		}
		if metadata.Ino(fi.Sys().(*syscall.Stat_t).Ino).Home() != here.Client.Self() {
			there, seen = d, filepath.Join(ms[1].Scratch, fmt.Sprintf("d%d", i))
		}
	}
	name := func(i int) string { return fmt.Sprintf("f%d", i) }
	read := func(i int, want string, flags int) {
		t.Helper()
		var got []byte
		f, err := os.OpenFile(filepath.Join(seen, name(i)), flags, 0)
		if err == nil {
			got, err = io.ReadAll(f)
			err = errors.Join(err, f.Close())
		}
		if err != nil && !os.IsNotExist(err) || string(got) != want {
			t.Fatalf("file %d: %.20q of %d bytes, %v, want %.20q of %d", i, got, len(got), err, want, len(want))
		}
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(there, name(i)), []byte(old), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "files in order cost less than half a call each", func() bool { // new files are not leased yet
		if _, err := os.ReadDir(seen); err != nil {
			t.Fatal(err)
		}
		before := c.calls(2)
		for i := range first {
			read(i, old, 0)
		}
		return c.calls(2)-before < first/2
	})
	const direct = 4 // files read ahead
	for i := first; i < first+direct; i++ {
		f, err := os.OpenFile(filepath.Join(there, name(i)), os.O_WRONLY|syscall.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("new"); err != nil {
			t.Fatal(err)
		}
		read(i, "new"+old[3:], syscall.O_DIRECT)
	}
	for i := first + direct; i < n; i++ {
		ch := aheadChanges[i%len(aheadChanges)]
		if err := ch.do(filepath.Join(there, name(i))); err != nil {
			t.Fatalf("%s: %v", ch.name, err)
		}
		read(i, ch.want, 0)
	}
}
