package locks

import (
	"github.com/bivouacfs/bivouac/metadata"
)

// held is a lock with its node.
type held struct {
	node metadata.NodeID
	metadata.Lock
}

// owner holds locks or waits for them.
type owner struct {
	node metadata.NodeID
	kind metadata.LockKind
	id   uint64
}

func (h held) owner() owner { return owner{h.node, h.Kind, h.Owner} }

// overlap reports whether two locks have a byte in common.
func overlap(a, b metadata.Lock) bool { return a.Start <= b.End && b.Start <= a.End }

// conflict reports whether two locks of different owners exclude each other.
func conflict(a, b held) bool {
	return a.Kind == b.Kind && (a.Type == metadata.WriteLock || b.Type == metadata.WriteLock) &&
		overlap(a.Lock, b.Lock) && a.owner() != b.owner()
}

// put returns set with l applied: it replaces the owner's locks on its bytes, and merges with equal neighbours.
func put(set []held, l held) []held {
	out := make([]held, 0, len(set)+2)
	for _, h := range set {
		if h.owner() != l.owner() {
			out = append(out, h)
			continue
		}
		if h.Type == l.Type && touches(h.Lock, l.Lock) {
			l.Start, l.End = min(l.Start, h.Start), max(l.End, h.End)
			continue
		}
		out = append(out, without(h, l.Lock)...)
	}
	if l.Type == metadata.Unlocked {
		return out
	}
	return append(out, l)
}

// touches reports whether two locks overlap or are adjacent.
func touches(a, b metadata.Lock) bool {
	return overlap(a, b) || a.End < b.Start && a.End+1 == b.Start || b.End < a.Start && b.End+1 == a.Start
}

// without returns the parts of h outside l.
func without(h held, l metadata.Lock) []held {
	if !overlap(h.Lock, l) {
		return []held{h}
	}
	var left []held
	if h.Start < l.Start {
		a := h
		a.End = l.Start - 1
		left = append(left, a)
	}
	if h.End > l.End {
		b := h
		b.Start = l.End + 1
		left = append(left, b)
	}
	return left
}

// Set has the locks of one node on a file.
type Set []metadata.Lock

// With returns s with l applied.
func (s Set) With(l metadata.Lock) Set {
	all := make([]held, len(s))
	for i := range s {
		all[i].Lock = s[i]
	}
	var out Set
	for _, h := range put(all, held{Lock: l}) {
		out = append(out, h.Lock)
	}
	return out
}
