package scan

import (
	"fmt"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// planZip reads the central directory and cuts the archive between members.
func (cfg *Config) planZip(p *stagein.Plan, info source.Info, nodes []metadata.NodeID) error {
	f, err := cfg.FS.Open(string(p.Source))
	if err != nil {
		return fmt.Errorf("%s: %w", p.Source, err)
	}
	x, err := zip.Read(f, string(p.Source), info.Size, p.Head, nil)
	if e := f.Close(); err == nil && e != nil {
		err = fmt.Errorf("%s: %w", p.Source, e)
	}
	if err != nil {
		return err
	}
	p.Size, p.Read = info.Size, x.Read+max(int64(len(p.Head)), cfg.read)
	n := min(int64(len(nodes)), max(x.Start/cfg.Region, 1))
	p.Parts = stagein.ZipParts(x, n, int64(len(p.Head)))
	for i := range p.Parts {
		p.Parts[i].Node = nodes[i]
	}
	p.Parts[0].Off = min(int64(len(p.Head)), p.Parts[0].End)
	p.Parts[0].Bytes += p.Read - p.Parts[0].Off
	need := make(map[metadata.NodeID]int64, len(nodes))
	for i := range x.Items {
		it := &x.Items[i]
		p.Least += it.Size
		if it.Size > cfg.Stripe {
			for _, id := range nodes {
				need[id] += it.Size / int64(len(nodes))
			}
			continue
		}
		need[cfg.Map.FileOwner(it.Path)] += it.Size
	}
	return cfg.room(p, need)
}
