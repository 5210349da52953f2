package pagecache

import "github.com/bivouacfs/bivouac/metadata"

// Shown is the st_mtime in the replies with which the kernel validates the cached pages of an open file before a read.
// The kernel drops the pages when st_mtime differs from that of the previous reply. A change by another node gives it a
// new value. A change by this node alone, whose bytes are in the pages, keeps it: the home's reply has the st_ctime
// before the change (NFSv3's weak cache consistency), and if that is the version known here, no other node has changed
// the file in between. The zero value knows no version.
type Shown struct {
	version metadata.Time // st_ctime
	mtime   metadata.Time
	missed  bool
}

// Opened starts with the attributes at an open: cached pages are of this version or newer.
func (s *Shown) Opened(a metadata.Attr) { *s = Shown{version: a.Ctime, mtime: a.Mtime} }

// Mtime returns the st_mtime for a reply with the attributes a: st_ctime after a change by another node, because
// st_mtime can be set back.
func (s *Shown) Mtime(a metadata.Attr) metadata.Time {
	if a.Ctime > s.version {
		s.version, s.mtime = a.Ctime, a.Ctime
	}
	if a.Ctime < s.version {
		return a.Ctime // a reply that arrived out of order
	}
	return s.mtime
}

// Changed records a change by this node between two versions. Its bytes are in the pages, unless Missed was called.
func (s *Shown) Changed(before, after metadata.Time) {
	if before == s.version && !s.missed {
		s.version = after
	}
}

// Missed records, before a write that bypasses the pages, that they may be stale until the next open.
func (s *Shown) Missed() { s.missed = true }
