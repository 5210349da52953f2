package model

import (
	"slices"
	"syscall"
	"time"
)

// lag bounds how long the kernel may cache the attributes of a directory; it counts in clock ticks.
const lag = 50 * time.Millisecond

// known lists the deviations of scratch from the model, with reasons.
var known = []Deviation{
	{
		Name: "removed directory", Reason: "one that was removed cannot be changed by who has it open, and is as it was seen there last",
		Refused: func(o Op, got Result) bool {
			a := got.Attr
			return got.Err == syscall.ESTALE && slices.Contains([]string{"fchmod", "futimens", "fsync"}, o.Kind) ||
				o.Kind == "fstat" && got.Err == 0 && a != nil && a.Nlink == 0 && a.Mode&syscall.S_IFMT == syscall.S_IFDIR
		},
	},
	{
		Name: "moved there", Reason: "a directory that was moved there and is not yet looked up here: rename here is ESTALE",
		Refused: func(o Op, got Result) bool { return o.Kind == "rename" && got.Err == syscall.ESTALE },
	},
}

// knownTogether adds the deviations under concurrent use of the same mounts.
var knownTogether = append(slices.Clone(known), Deviation{
	Name: "moved there, and a rename here", Reason: "a directory that was moved there is ESTALE here if another rename runs just when it is looked up",
	Refused: func(_ Op, got Result) bool { return got.Err == syscall.ESTALE },
})
