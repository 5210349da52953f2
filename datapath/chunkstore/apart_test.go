package chunkstore

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMkdirApart: the directory exists with its content, whether or not it existed before; on ext4 its parent is
// marked.
func TestMkdirApart(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a", "store")
	dir := filepath.Join(home, "objects")
	for range 2 {
		if err := Machine.MkdirApart(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string]string{home: "objects", dir: "file"} {
		names, err := os.ReadDir(at)
		if err != nil || len(names) != 1 || names[0].Name() != want {
			t.Errorf("%s has %v, %v, want %s", at, names, err, want)
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("the directory is %v, %v", info.Mode(), err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(home, &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(home)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if marked := err == nil && flags&topDir != 0; marked != (st.Type == unix.EXT4_SUPER_MAGIC) {
		t.Errorf("marked: %v (%v), on a file system %#x", marked, err, st.Type)
	}
	if err := Machine.MkdirApart(filepath.Join(dir, "file", "x")); err == nil {
		t.Error("a directory in a file is made")
	}
}

// BenchmarkMakeAfterRemoval creates files after the removal of a previous job's files: in a plain directory and in one
// placed apart.
func BenchmarkMakeAfterRemoval(b *testing.B) {
	for name, mkdir := range map[string]func(string) error{"Plain": Machine.Mkdir, "Apart": Machine.MkdirApart} {
		b.Run(name, func(b *testing.B) {
			home := b.TempDir()
			job := func(n, files int) string {
				store := filepath.Join(home, fmt.Sprint(n))
				dir := filepath.Join(store, "objects")
				if err := mkdir(dir); err != nil {
					b.Fatal(err)
				}
				for i := range files {
					f, _, err := makeFile(Machine, filepath.Join(dir, fmt.Sprintf("%02x", i%256), fmt.Sprint(i)))
					if err != nil {
						b.Fatal(err)
					}
					if err := f.Close(); err != nil {
						b.Fatal(err)
					}
				}
				return store
			}
			if err := os.RemoveAll(job(0, 8000)); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			job(1, b.N)
		})
	}
}
