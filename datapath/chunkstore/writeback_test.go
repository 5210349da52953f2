package chunkstore

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestWriteBack: written data can be flushed; flushing a missing object does nothing.
func TestWriteBack(t *testing.T) {
	s := open(t, Config{})
	if err := s.WriteAt(ctx, 7, make([]byte, 100_000), 0); err != nil {
		t.Fatal(err)
	}
	for _, ino := range []metadata.Ino{7, 8} {
		for what, do := range map[string]func() error{
			"start": func() error { return s.StartWriteBack(ctx, ino, 0, 100_000) },
			"await": func() error { return s.AwaitWriteBack(ctx, ino, 4096, 1<<20) },
		} {
			if err := do(); err != nil {
				t.Errorf("%s of object %v: %v", what, ino, err)
			}
		}
	}
}
