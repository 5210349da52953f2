package prefetch

import "slices"

// line predicts which large file a rank reads after another one. There are too few large files for the tracker to find
// the epoch by statistics, so line assumes the first epoch until files are read that are not next in it. It is pure,
// and not for concurrent use.
type line struct {
	order func(epoch int) Epoch // nil if the plan has no such epoch
	epoch int
	begun map[int]bool // files whose read began in the current epoch
	told  []int        // the last predicted successors, oldest first
	trust int          // falls with each file that was not predicted
}

const (
	nearby    = 16 // positions between the workers of a rank
	mostTold  = 8
	mostTrust = 4
	noTrust   = -2 // no successor is returned until predictions are right again
)

// begin records that the read of a file has begun.
func (l *line) begin(file int) {
	if i := slices.Index(l.told, file); i >= 0 {
		l.told = slices.Delete(l.told, i, i+1)
		l.trust = min(l.trust+1, mostTrust)
	} else if len(l.told) > 0 {
		l.trust = max(l.trust-1, 2*noTrust)
	}
	if l.begun[file] || !l.near(l.epoch, file) && l.near(l.epoch+1, file) {
		if l.order(l.epoch+1) != nil {
			l.epoch++
		}
		clear(l.begun)
	}
	l.begun[file] = true
}

// near reports whether a file is among the next ones of an epoch.
func (l *line) near(epoch, file int) bool {
	e := l.order(epoch)
	if e == nil {
		return false
	}
	rank, pos, ok := e.Find(file)
	if !ok {
		return false
	}
	for k := range min(nearby, pos) {
		if epoch == l.epoch && l.begun[e.At(rank, pos-1-k)] {
			return true
		}
	}
	return pos < nearby
}

// successor predicts the next unread file of the rank that reads the file after.
func (l *line) successor(after int, known func(file int) bool) (file int, ok bool) {
	if file, ok = l.find(after, known); !ok {
		return 0, false
	}
	if !slices.Contains(l.told, file) {
		l.told = append(l.told, file)
	}
	if len(l.told) > mostTold {
		l.told = l.told[1:]
	}
	return file, l.trust > noTrust
}

func (l *line) find(after int, known func(file int) bool) (file int, ok bool) {
	e := l.order(l.epoch)
	if e == nil {
		return 0, false
	}
	rank, pos, ok := e.Find(after)
	if !ok {
		return 0, false
	}
	for k := 1; k <= nearby && pos+k < e.Len(rank); k++ {
		if f := e.At(rank, pos+k); !l.begun[f] && !known(f) {
			return f, true
		}
	}
	if e = l.order(l.epoch + 1); e == nil || pos+nearby < e.Len(rank) {
		return 0, false
	}
	for k := range min(nearby, e.Len(rank)) {
		if f := e.At(rank, k); !known(f) {
			return f, true
		}
	}
	return 0, false
}
