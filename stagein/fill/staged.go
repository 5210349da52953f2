package fill

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// adopt writes the journal of a dataset that was staged before its manifest was published, unless a journal exists. If
// the node was up throughout, every piece that the layouts assign to it is here. The manifest has the checksums.
func adopt(cfg *Config) error {
	path := cfg.Journal
	if !cfg.Origins.Staged {
		return nil
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	err = adopted(cfg, file)
	if err = cmp.Or(err, file.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

func adopted(cfg *Config, file io.Writer) error {
	w := bufio.NewWriterSize(file, 1<<18)
	_, bad := w.Write(journalHeader(cfg.Digest, cfg.Boot))
	m, _ := cfg.Watch()
	if !m.Throughout(cfg.Self, cfg.Origins.Since) {
		return errors.Join(bad, w.Flush())
	}
	err := cfg.Files.Located(func(_ manifest.Origin, a metadata.Attr) bool {
		s := placementOf(m, a)
		for chunk := range s.pieces() {
			if bad == nil && len(s.order) > 0 && s.owner(chunk) == cfg.Self {
				_, bad = w.Write(entryOf(PieceID{a.Ino, chunk}, [16]byte{}))
			}
		}
		return bad == nil
	})
	return errors.Join(bad, err, w.Flush())
}
