package home

import "sync/atomic"

// Reserve is how many bytes file data leaves free on a disk that it shares with the metadata, or half of a disk smaller
// than twice that. The last half of the reserve is for removals.
const Reserve = 512 << 20

// spaceEvery is how many records are added between two checks of the disk. A disk that was found full is checked each
// time.
const spaceEvery = 64

// spaceCheck is the result of the last check of the metadata's disk.
type spaceCheck struct {
	asked atomic.Int64
	full  atomic.Bool
}

// hasSpace reports whether the disk has space for another record.
func (s *Server) hasSpace() bool {
	c := &s.space
	if s.cfg.Room != nil && !s.cfg.Room() {
		return false
	}
	if c.asked.Add(1)%spaceEvery != 1 && !c.full.Load() {
		return true
	}
	full := !s.cfg.Data.Room()
	if was := c.full.Swap(full); full && !was {
		s.log.WithField("dir", s.cfg.Dir).Warn("disk is full: creating files on this node fails until some are removed")
	}
	return !full
}
