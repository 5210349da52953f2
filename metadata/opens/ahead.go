package opens

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
)

// OpenAhead is metadata.AheadOpener.
func (f *Files) OpenAhead(ctx context.Context, by metadata.Holder, files []metadata.OpenAhead) (opened []metadata.Attr, run metadata.Run, err error) {
	f.layouts.RLock()
	defer f.layouts.RUnlock()
	soon, cancel := context.WithCancel(ctx)
	cancel() // a file that a transaction has locked is not waited for
	for _, o := range files {
		if !f.OpenAlone(by, o.Ino, o.Ticket) {
			continue
		}
		a, err := f.cfg.Store.Getattr(soon, o.Ino)
		if err != nil {
			f.Close(by, metadata.Opened{Ino: o.Ino, Ticket: o.Ticket})
			continue
		}
		opened = append(opened, a)
	}
	return opened, f.runAfter(f.cfg.Run), nil
}

// OpenAlone is Open of a file that has a name and that no node has open, nor may have. It reports whether that is so. What by
// has open itself, an open of a process may be about to use.
func (r *Registry) OpenAlone(by metadata.Holder, ino metadata.Ino, t metadata.Ticket) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited > 0 || !r.noteRun(by) {
		return false
	}
	f := r.files[ino]
	if f != nil && (f.orphan || f.dead || len(f.holders) > 0) {
		return false
	}
	r.file(ino).addHolder(by.Node, t)
	return true
}
