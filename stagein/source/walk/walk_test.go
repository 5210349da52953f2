package walk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/source"
)

func TestOSWalk(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o755),
		os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("hello"), 0o640),
		os.Link(filepath.Join(dir, "a/b/f"), filepath.Join(dir, "a/hard")),
		os.Symlink("../..", filepath.Join(dir, "a/b/up")),
		os.Symlink(dir, filepath.Join(dir, "self")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 600 {
		if err := os.WriteFile(filepath.Join(dir, "a", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var first []source.Item
	for _, workers := range []int{1, 2, 16} {
		items, err := tree(context.Background(), source.OS{}, dir, workers)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = items
		}
		if !reflect.DeepEqual(items, first) {
			t.Errorf("%d workers find another tree", workers)
		}
	}
	byPath := map[string]source.Item{}
	for _, it := range first {
		byPath[it.Path] = it
	}
	if len(byPath) != 607 || len(first) != 607 || byPath[""].Mode&source.TypeMask != source.TypeDir || byPath["a/b/f"].Size != 5 || byPath["a/b/f"].Mode != source.TypeRegular|0o640 ||
		byPath["a/hard"].Hardlink != "a/b/f" || byPath["a/b/up"].Target != "../.." || byPath["self"].Target != dir {
		t.Errorf("%d items: %+v", len(first), byPath)
	}
	if _, err := (source.OS{}).Open(filepath.Join(dir, "self")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("open of a link: %v", err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (source.OS{}).Open(filepath.Join(dir, "a/pipe")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("open of a FIFO: %v", err)
	}
	if _, err := tree(context.Background(), source.OS{}, dir, 4); err == nil || !strings.Contains(err.Error(), "a/pipe: is a FIFO") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tree(ctx, source.OS{}, dir, 4); err == nil {
		t.Error("a walk that was cancelled succeeded")
	}
}

// tree lists the tree under root with a number of workers.
func tree(ctx context.Context, fs source.FS, root string, workers int) ([]source.Item, error) {
	return Config{FS: fs, Root: root, Workers: workers}.Run(ctx)
}
