package fsclient

import (
	"maps"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// A file of another node stays open at its home for a while after its last close here, as long as its attributes are
// leased, also across this node's own changes: to open it again costs no call. A file that was just created is not
// leased, so nodes that pass files on to others do not keep them open. To other nodes and its home, an idle file looks
// as if a process here had it open for reading. A recall of its attributes (an unlink or a write) closes it.

const (
	// idleFor bounds how long a file is idle.
	idleFor = leases.KeyTerm
	// maxIdle bounds the number of idle files. Each is a record at its home.
	maxIdle = 4096
	// maxIdleSize is the size of the largest file that may be idle: on a stopped node it keeps its space after an
	// unlink, until the node is given up.
	maxIdleSize = 1 << 20
)

// mayIdle reports whether f, which is about to be closed here, may become idle: its home knows its complete state, and
// recalls it before that changes. The table's lock is held, so that no recall is missed.
func (f *File) mayIdle() bool {
	if f.ino.Home() == f.c.cfg.Self {
		return false // its opens cost no call
	}
	a, left := f.c.leases.Attr(f.ino)
	f.mu.Lock()
	defer f.mu.Unlock()
	unknown := f.dirty || f.failed || f.app.Invisible()
	// The layout of an empty file may be changed while it is not open.
	if left <= 0 || a.Nlink == 0 || a.Size == 0 || a.Size > maxIdleSize || a.Ctime != f.attr.Ctime || !f.atHome || unknown ||
		f.maps || f.mapsAsked > 0 || f.since == unknownTime {
		return false
	}
	f.since, f.drops, f.existed = 0, false, true // as for a newly opened file
	return true
}

// closeIdle closes the idle files among inos.
func (c *Client) closeIdle(inos []metadata.Ino) {
	for _, ino := range inos {
		c.files.closeIdle(ino)
	}
	if c.files.pending() {
		c.closed.Set()
	}
}

// closeExpired closes the files that were idle for too long, or whose attributes are no longer leased.
func (c *Client) closeExpired(now time.Time) {
	var expired []metadata.Ino
	for ino, since := range c.files.idleSince() {
		if _, left := c.leases.Attr(ino); left <= 0 || now.Sub(since) >= idleFor {
			expired = append(expired, ino)
		}
	}
	c.closeIdle(expired)
}

// idleSince returns when each idle file became idle.
func (t *fileTable) idleSince() map[metadata.Ino]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.idle)
}

// closeIdle closes ino's file if it is idle.
func (t *fileTable) closeIdle(ino metadata.Ino) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.idle[ino]; ok {
		t.drop(t.open[ino])
	}
}
