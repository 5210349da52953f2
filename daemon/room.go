package daemon

import (
	"sync/atomic"
)

// metaReserve is what file data leaves free for the metadata on the disk that
// both are on, unless the disk is so small that it is half of it. The last half
// of it is for removing.
const metaReserve = 512 << 20

// roomEvery is how many records are added between two looks at the disk. While
// it was found full it is looked at each time.
const roomEvery = 64

// roomCache is the last look at the metadata's disk.
type roomCache struct {
	asked atomic.Int64
	full  atomic.Bool
}

// room reports whether there is room for more metadata.
func (d *Daemon) room() bool {
	r := &d.metaRoom
	if r.asked.Add(1)%roomEvery != 1 && !r.full.Load() {
		return true
	}
	full := !d.data.Room()
	if was := r.full.Swap(full); full && !was {
		d.log.WithField("store", d.job.Dirs.Store[0]).Warn("the disk is full: nothing can be made there until something is removed")
	}
	return !full
}
