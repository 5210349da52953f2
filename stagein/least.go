package stagein

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

const (
	// likely is how many times its size a compressed tar is thought to unpack to at
	// the most: where there is room for that, nobody looks.
	likely = 64
	// headers is what part of a tar is not taken for data: what stands before members, and
	// those that have none. A file's last page is more than its padding and its header.
	headers = 16
)

// roomFor refuses archives for which the nodes have no room, whatever is in them, by
// a few small reads at the ends of those that are compressed, unless what has no room can
// stay there. Where only some members
// are wanted, or what is damaged is left out, the size of an archive says nothing, but whether
// something of it can stay there.
func (cfg *PlanConfig) roomFor(ctx context.Context, p *Plan, archives []Archive) error {
	part := cfg.Request.selects() || cfg.Request.OnError != OnErrorFail
	if part && (cfg.Request.Spill == SpillFail || p.Room == 0) || !cfg.tight(p.Size*likely) {
		return nil
	}
	all, err := cfg.detectAll(ctx, archives)
	if err != nil {
		return err
	}
	var read atomic.Int64
	err = each(ctx, all, func(_ context.Context, a *archiveScan) (err error) {
		a.least, err = cfg.least(a, &read)
		return err
	})
	if err != nil {
		return err
	}
	for i := range all {
		if cfg.found == nil {
			p.Read += all[i].read // who stages it reads its head again
		}
		p.Least += all[i].least.Bytes
	}
	p.LeastBy = whoSays(all)
	p.Read += read.Load()
	if p.Kind == source.Many {
		cfg.mayStay(p, all, part)
	}
	if part {
		p.Least, p.LeastBy = 0, ""
		return nil
	}
	if p.Spills && !lacksPlaces(all[0].least) {
		return nil
	}
	return cfg.room(p, evenly(p.Least-p.Least/headers, cfg.Map.Up()))
}

// lacksPlaces reports whether what an archive says of itself is that there is no place near each of its files.
func lacksPlaces(n unpack.Fewest) bool { return n.Alone || n.Piece > farthest }

// mayStay sees whether what there is no room for of several archives, or of one of which only a
// part is wanted, may stay there: if each of them may have places to begin at. Then it is
// known what each of them is, and if all is wanted about what each part needs. If one does not tell, all are weighed by what they have packed.
func (cfg *PlanConfig) mayStay(p *Plan, all []archiveScan, part bool) {
	if cfg.Request.Spill == SpillFail || p.Room == 0 {
		return
	}
	least, told := make(map[uint32]int64, len(all)), !part
	for i := range all {
		a := &all[i]
		alone := len(all) > 1 && lacksPlaces(a.least) && a.least.Bytes > placeless
		if k := a.found.Kind; k != source.Tar && !unpack.HasPlaces(k) || alone {
			return
		}
		p.Origins.Sources[a.Number].Kind = a.found.Kind
		least[a.Number] = a.least.Bytes
		told = told && !a.least.Modulo
	}
	p.Spills = true
	for i := range p.Parts {
		for _, a := range p.Parts[i].Archives {
			if !part {
				p.Parts[i].Least += least[a.Number]
			}
			if told {
				p.Parts[i].Weight += least[a.Number]
			} else {
				p.Parts[i].Weight += a.Size
			}
		}
	}
}

// whoSays is who says how large archives are at the least: for a message, as that may be
// wrong. Of several it is the one that says most.
func whoSays(all []archiveScan) string {
	most := slices.MaxFunc(all, func(a, b archiveScan) int { return cmp.Compare(a.least.Bytes, b.least.Bytes) })
	if len(all) == 1 {
		return "at the least, by " + most.least.By
	}
	return fmt.Sprintf("at the least; %s has %s of it, by %s", most.Path, size(most.least.Bytes), most.least.By)
}

// least is what an archive unpacks to at the least.
func (cfg *PlanConfig) least(a *archiveScan, read *atomic.Int64) (unpack.Fewest, error) {
	if !a.found.Kind.Packed() {
		return unpack.Fewest{Bytes: a.Size, By: "its size"}, nil
	}
	f, err := cfg.FS.Open(a.found.Path)
	if err != nil {
		return unpack.Fewest{}, fmt.Errorf("%s: %w", a.Path, err)
	}
	defer f.Close() // read only
	n, err := unpack.Least(counted{f, read}, a.found.Kind, a.Size, a.found.Head)
	if err != nil {
		return n, fmt.Errorf("%s: %w", a.Path, err)
	}
	if a.found.Kind == source.TarGzip && unpack.IsBGZF(a.found.Head) {
		n = cfg.leastBGZF(a, f, n, read)
	}
	return n, nil
}

// leastBGZF is what the index beside f says, if there is one and that is more than n. One
// that cannot be used is named in the log.
func (cfg *PlanConfig) leastBGZF(a *archiveScan, f source.File, n unpack.Fewest, read *atomic.Int64) unpack.Fewest {
	path := a.found.Path + unpack.GziSuffix
	bytes, err := cfg.readGzi(path, counted{f, read}, a.Size, read)
	switch {
	case errors.Is(err, syscall.ENOENT):
	case err != nil:
		cfg.log().WithError(err).WithField("index", path).Warn("an index of blocks cannot be used: how large the archive is shows when it is unpacked; bgzip -r makes a new one")
	case bytes > n.Bytes:
		return unpack.Fewest{Bytes: bytes, By: path + " (remove that if it is not of this archive)"}
	}
	return n
}

func (cfg *PlanConfig) readGzi(path string, f io.ReaderAt, n int64, read *atomic.Int64) (int64, error) {
	path, info, err := source.Resolve(cfg.FS, path)
	if err != nil {
		return 0, err
	}
	gzi, err := cfg.FS.Open(path)
	if err != nil {
		return 0, err
	}
	defer gzi.Close() // read only
	return unpack.LeastBGZF(f, n, counted{gzi, read}, info.Size)
}
