package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
)

// dir returns the path of a directory in the first store.
func (d *Daemon) dir(elem ...string) string {
	return filepath.Join(append([]string{d.job.Dirs.Store[0]}, elem...)...)
}

func (d *Daemon) openStores() error {
	for _, s := range d.job.Dirs.Store {
		if err := os.MkdirAll(s, 0o700); err != nil {
			return fmt.Errorf("store: %w: choose another directory in the site's configuration", err)
		}
	}
	if err := errors.Join(d.recogniseStores(), d.numberRun()); err != nil {
		return err
	}
	for _, s := range []string{"meta", "stage"} {
		if err := os.MkdirAll(d.dir(s), 0o700); err != nil {
			return fmt.Errorf("store: %w", err)
		}
	}
	d.removePartials()
	var err error
	d.data, err = chunkstore.Open(chunkstore.Config{
		Dirs: d.job.Dirs.Store, Capacity: d.job.Capacity, Reserve: home.Reserve, Sums: sumsIn(d.job, d.cfg.Memory), FS: d.cfg.Disk, Log: d.log.WithField("part", "data"),
	})
	if err != nil {
		return fmt.Errorf("data store: %w", err)
	}
	if err := d.openHome(); err != nil {
		return err
	}
	d.openDatasets()
	d.rebuild = d.newRebuilder()
	return nil
}

// storeID is the name of a file in each store, whose content is unique to the store.
const storeID = "id"

// recogniseStores refuses to start on stores other than those of an earlier run of this daemon: in a store that was
// emptied, lost data would read as holes.
func (d *Daemon) recogniseStores() error {
	var ids []string
	for _, s := range d.job.Dirs.Store {
		id, err := os.ReadFile(filepath.Join(s, storeID))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("store: %w", err)
		}
		ids = append(ids, string(id)) // "" means a new store
	}
	record := filepath.Join(d.job.Dirs.Run, "stores")
	switch was, err := os.ReadFile(record); {
	case err == nil:
		return d.sameStores(ids, strings.Split(string(was), "\n"))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("stores: %w", err)
	}
	for i, s := range d.job.Dirs.Store {
		if ids[i] != "" {
			continue
		}
		ids[i] = rand.Text()
		if err := os.WriteFile(filepath.Join(s, storeID), []byte(ids[i]), 0o600); err != nil {
			return fmt.Errorf("store: %w", err)
		}
	}
	if err := os.MkdirAll(d.job.Dirs.Run, 0o700); err != nil {
		return fmt.Errorf("stores: %w", err)
	}
	if err := node.ReplaceFile(record, []byte(strings.Join(ids, "\n"))); err != nil {
		return fmt.Errorf("stores: %w", err)
	}
	return nil
}

func (d *Daemon) sameStores(ids, was []string) error {
	for i, s := range d.job.Dirs.Store {
		if i >= len(was) || ids[i] != was[i] {
			return fmt.Errorf("store: %s was emptied or replaced while the job ran: its data is lost, and this node can no longer take part in the job", s)
		}
	}
	return nil
}

// removePartials removes the files that an earlier run of this daemon was writing when it was killed. It must run
// before anything is written.
func (d *Daemon) removePartials() {
	paths, _ := filepath.Glob(d.dir("stage", "*", "*.new")) // the pattern is valid
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			d.log.WithError(err).Warn("half-written file of an earlier run not removed")
			continue
		}
		d.partials++
	}
}
