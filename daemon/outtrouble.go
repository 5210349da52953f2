package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// outTrouble is what of a stage-out did not make it, on one node or on all.
type outTrouble struct {
	job.StageOut
	Kinds []outKind `json:"kinds"`
	List  string    `json:"list,omitempty"`  // a file that names all of it
	Lists int       `json:"lists,omitempty"` // how many nodes have such a list
	Final bool      `json:"final,omitempty"` // it is not tried again
}

// outKind is the files, links and other things that did not make it for one reason.
type outKind struct {
	Errno syscall.Errno `json:"errno,omitempty"`
	Why   string        `json:"why"`
	Files int64         `json:"files,omitempty"`
	Bytes int64         `json:"bytes,omitempty"`
	First string        `json:"first,omitempty"` // one of them
}

const (
	// maxKinds bounds the reasons of one trouble; what is beyond counts with the last.
	maxKinds = 5
	maxWhy   = 160 // bytes of a reason or a name
)

// kindOf is the reason err as a kind without things.
func kindOf(err error) outKind {
	k := outKind{Why: err.Error()}
	switch {
	case errors.As(err, &k.Errno):
	case errors.Is(err, context.DeadlineExceeded):
		k.Errno, k.Why = syscall.ETIME, "the time for it was over"
	}
	k.Why = short(k.Why)
	return k
}

// short makes s fit in a line.
func short(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > maxWhy {
		s = strings.ToValidUTF8(s[:maxWhy], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// add counts k with what is there for the same reason.
func (t *outTrouble) add(k outKind) {
	i := slices.IndexFunc(t.Kinds, func(o outKind) bool { return o.Errno == k.Errno && (k.Errno != 0 || o.Why == k.Why) })
	if i < 0 && len(t.Kinds) < maxKinds {
		t.Kinds = append(t.Kinds, k)
		return
	}
	if i < 0 {
		i = len(t.Kinds) - 1
	}
	o := &t.Kinds[i]
	o.Files, o.Bytes = o.Files+k.Files, o.Bytes+k.Bytes
	if o.First == "" {
		o.First = k.First
	}
}

func (t *outTrouble) addFailure(f stageout.Failure) {
	k := kindOf(f.Err)
	k.Files, k.Bytes, k.First = 1, f.Bytes, short(f.Name)
	t.add(k)
}

// mergeTroubles is what several nodes say, each target once. Of one target that
// some nodes try no more, what others still try does not count.
func mergeTroubles(all []outTrouble) []outTrouble {
	var sum []outTrouble
	for _, t := range all {
		i := slices.IndexFunc(sum, func(o outTrouble) bool { return o.StageOut == t.StageOut })
		switch {
		case i < 0:
			t.Kinds = slices.Clone(t.Kinds)
			sum = append(sum, t)
		case t.Final && !sum[i].Final:
			t.Kinds = slices.Clone(t.Kinds)
			sum[i] = t
		case t.Final == sum[i].Final:
			sum[i].merge(t)
		}
	}
	return sum
}

func (t *outTrouble) merge(o outTrouble) {
	for _, k := range o.Kinds {
		t.add(k)
	}
	t.Lists += o.Lists
	if t.List == "" {
		t.List = o.List
	}
}

// line is t as the job's output has it: what failed, why, how much, where the
// list is, and what to do.
func (t *outTrouble) line() string {
	kinds := slices.Clone(t.Kinds)
	slices.SortStableFunc(kinds, func(a, b outKind) int { return cmp.Compare(b.Files, a.Files) })
	var files, bytes int64
	var why []string
	for _, k := range kinds {
		files, bytes = files+k.Files, bytes+k.Bytes
		why = append(why, k.text())
	}
	s := fmt.Sprintf("bivouac: stage-out of %s to %s ", short(t.From), short(t.To))
	switch {
	case !t.Final:
		s += "fails so far: " + strings.Join(why, ", ")
	case files == 0:
		s += "failed: " + strings.Join(why, ", ")
	default:
		s += fmt.Sprintf("failed: not copied, and lost with the job, %s of %s: %s", count(files, "file", "files"), size(bytes), strings.Join(why, ", "))
	}
	switch {
	case t.Lists == 1:
		s += "; the list is " + t.List
	case t.Lists > 1:
		s += fmt.Sprintf("; %d nodes have a list, such as %s", t.Lists, t.List)
	}
	if !t.Final {
		return s + "; it is tried again until the job ends: " + kinds[0].advice() + "\n"
	}
	return s + "; before the next run, " + kinds[0].advice() + "\n"
}

func (k outKind) text() string {
	if k.Files == 0 {
		return k.Why
	}
	return fmt.Sprintf("%s (%d, such as %q)", k.Why, k.Files, k.First)
}

// advice is what the user can do about it.
func (k outKind) advice() string {
	switch k.Errno {
	case syscall.ENOSPC, syscall.EDQUOT:
		return "make room there, or have your quota raised"
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return "name a directory that you may write to"
	case syscall.ENOENT:
		return "see whether the job writes to that directory of its scratch"
	case syscall.ENOTDIR, syscall.EISDIR, syscall.EEXIST, syscall.ENOTEMPTY, syscall.ELOOP:
		return "move away what is in its place"
	case syscall.ETIME:
		return "leave less for the end, or ask the administrator for a longer epilog_timeout"
	case syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENOTCONN, syscall.ECONNRESET:
		return "ask those who run that filesystem, or the nodes, what happened"
	}
	return "see what is listed"
}

func count(n int64, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// size is n bytes as a person reads it.
func size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n)/(1<<10), 0
	for ; x >= 1<<10 && unit < 4; unit++ {
		x /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", x, "KMGTP"[unit])
}
