package pagecache

import "github.com/bivouacfs/bivouac/metadata"

// Shown is the st_mtime that the kernel is told when it checks the pages of an open file before a read: it drops them when that
// differs from what it was told last. Each version has its own, but a change by this node alone that is in the pages, too, leaves
// it as it was: as in NFSv3's weak cache consistency, the home answers a change with the version before. If that is
// the one that was known here, nobody else has changed the file in between. Its zero value knows no version.
type Shown struct {
	version metadata.Time // st_ctime
	mtime   metadata.Time
	missed  bool
}

// Opened begins with the attributes of a file whose pages, if there are any, are of this version or newer.
func (s *Shown) Opened(a metadata.Attr) { *s = Shown{version: a.Ctime, mtime: a.Mtime} }

// Mtime is what the kernel is told with the attributes a. That is st_ctime after a change by another node, which can set st_mtime back.
func (s *Shown) Mtime(a metadata.Attr) metadata.Time {
	if a.Ctime > s.version {
		s.version, s.mtime = a.Ctime, a.Ctime
	}
	if a.Ctime < s.version {
		return a.Ctime // an answer that was overtaken
	}
	return s.mtime
}

// Changed notes a change by this node from one version to another, of which the kernel has the bytes, unless it missed some.
func (s *Shown) Changed(before, after metadata.Time) {
	if before == s.version && !s.missed {
		s.version = after
	}
}

// Missed notes that bytes may change here that the kernel's pages do not show, from now on until the file is opened anew.
func (s *Shown) Missed() { s.missed = true }
