package mounts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A watch adds nearly a microsecond to an open, and an open of a cached file takes only a few. So events and watches
// have a budget. When it is used up, all watches are removed until it has been refilled.
const (
	openRate  = 10_000 // events per second
	openBurst = openRate
	watchCost = 4            // events that a watch counts as
	leastOn   = openRate / 2 // budget at which watches are set again, besides their own cost
	openQueue = 256 << 10    // bytes read from the queue at once
	mostDirs  = 1 << 15      // each takes about 2 KiB of the kernel's memory
)

// Opens observes the opens of files in directories of a view, with inotify. The directories are resolved from a
// descriptor of the view's root, in the overlay and its image alone: no FUSE server is asked, so the caller may be one.
type Opens struct {
	root *os.File
	dirs []string
	fd   int           // of inotify; -1: no watches are set
	of   map[int32]int // index in dirs, by watch
	buf  []byte

	budget float64       // events
	last   time.Time     // of Read
	since  time.Time     // when the watches were last set or removed
	unseen time.Duration // how long no watches were set before
}

// WatchOpens watches dirs, paths below root, and owns root. It fails if inotify's limits are too low.
func WatchOpens(root *os.File, dirs []string, now time.Time) (*Opens, error) {
	o := &Opens{root: root, dirs: dirs, fd: -1, buf: make([]byte, openQueue), last: now, since: now}
	err := o.watch(now)
	if err != nil {
		o.Close()
		return nil, err
	}
	o.budget = o.most()
	return o, nil
}

// most returns the largest budget.
func (o *Opens) most() float64 { return max(openBurst, float64(2*watchCost*len(o.dirs))) }

// watch sets the watches.
func (o *Opens) watch(now time.Time) (err error) {
	if len(o.dirs) > mostDirs {
		return fmt.Errorf("%d directories are more than %d: %w", len(o.dirs), mostDirs, unix.ENOSPC)
	}
	if o.fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return fmt.Errorf("inotify: raise fs.inotify.max_user_instances: %w", err)
	}
	o.of = make(map[int32]int, len(o.dirs))
	for i, d := range o.dirs {
		w, err := unix.InotifyAddWatch(o.fd, Reopen(o.root)+"/"+d, unix.IN_OPEN|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
		if errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("%d directories: raise fs.inotify.max_user_watches: %w", len(o.dirs), err)
		}
		if err != nil {
			return fmt.Errorf("inotify: directory %q: %w", d, err)
		}
		o.of[int32(w)] = i
	}
	o.unseen, o.since = now.Sub(o.since), now
	o.budget -= float64(watchCost * len(o.dirs))
	return nil
}

// Read calls fn with each open since the last call: the index of its directory, and the name. over means that it has
// removed the watches; then missed estimates, for each open seen while watches were set, how many opens before were not
// seen.
func (o *Opens) Read(now time.Time, fn func(dir int, name string)) (over bool, missed float64, err error) {
	o.budget = min(o.budget+openRate*now.Sub(o.last).Seconds(), o.most())
	o.last = now
	if o.fd < 0 {
		if o.budget >= float64(leastOn+watchCost*len(o.dirs)) {
			err = o.watch(now)
		}
		return false, 0, err
	}
	n, lost, err := o.events(fn)
	if o.budget -= float64(n); err != nil || o.budget > 0 && !lost {
		return false, 0, err
	}
	if on := now.Sub(o.since); on > 0 {
		missed = float64(o.unseen) / float64(on)
	}
	o.unwatch()
	o.since = now
	return true, missed, nil
}

// events reads the queue. lost means that the queue overflowed, and events were lost.
func (o *Opens) events(fn func(dir int, name string)) (seen int, lost bool, err error) {
	for {
		n, err := unix.Read(o.fd, o.buf)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			return seen, lost, nil
		}
		if err != nil {
			return seen, lost, fmt.Errorf("inotify: %w", err)
		}
		for b := o.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			ne := binary.NativeEndian
			watch, mask, size := int32(ne.Uint32(b)), ne.Uint32(b[4:]), int(ne.Uint32(b[12:]))
			name := bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00")
			b = b[unix.SizeofInotifyEvent+size:]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				lost = true
			}
			if dir, ok := o.of[watch]; ok && mask&unix.IN_OPEN != 0 && mask&unix.IN_ISDIR == 0 && len(name) > 0 {
				seen++
				fn(dir, string(name))
			}
		}
	}
}

func (o *Opens) unwatch() {
	if o.fd >= 0 {
		_ = unix.Close(o.fd) // only read from
	}
	o.fd = -1
}

// Close removes the watches.
func (o *Opens) Close() {
	o.unwatch()
	_ = o.root.Close() // it was only a handle
}
