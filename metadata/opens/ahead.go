package opens

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
)

// OpenAhead implements metadata.AheadOpener.
func (f *Files) OpenAhead(ctx context.Context, by metadata.Holder, files []metadata.OpenAhead) (opened []metadata.Attr, run metadata.Run, err error) {
	f.layouts.RLock()
	defer f.layouts.RUnlock()
	soon, cancel := context.WithCancel(ctx)
	cancel() // do not wait for a file that a transaction has locked
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

// OpenAlone opens a file only if it has a name and no node, by included, has or may have it open; it reports whether it
// did. A process may be about to use an open that by already has.
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
