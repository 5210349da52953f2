package model

import (
	"slices"
	"syscall"
	"time"
)

// lag is how long the kernel may keep the attributes of a directory; it counts
// in clock ticks.
const lag = 50 * time.Millisecond

// known is how the live realm deviates from the model, and why.
var known = []Deviation{
	{
		Name: "removed directory", Reason: "one that is open when it is removed is ESTALE",
		Avoid: func(f *FS, o Op) bool { return f.removesOpen(o) },
	},
	{
		Name: "moved there", Reason: "a directory that was moved there and is not yet looked up here: rename here is ESTALE",
		Refused: func(o Op, got Result) bool { return o.Kind == "rename" && got.Err == syscall.ESTALE },
	},
}

// knownTogether is what deviates where others work on the same mounts.
var knownTogether = append(slices.Clone(known), Deviation{
	Name: "moved there, and a rename here", Reason: "a directory that was moved there is ESTALE here if another rename runs just when it is looked up",
	Refused: func(_ Op, got Result) bool { return got.Err == syscall.ESTALE },
})

// removesOpen reports whether a step removes a directory that is open.
func (f *FS) removesOpen(o Op) bool {
	path := map[string]string{"rmdir": o.Path, "rename": o.To}[o.Kind]
	p, no := f.walk(path, false)
	if path == "" || no != 0 || p.inode == nil || !p.dir() {
		return false
	}
	for _, h := range f.handles {
		if h.inode == p.inode {
			return true
		}
	}
	return false
}
