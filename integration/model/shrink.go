package model

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Shrink minimizes the script of a failure: it leaves out steps, in ever smaller groups, and then simplifies the
// remaining ones. try runs a script from the beginning and returns its failure, or nil; a tried script is never
// longer than the shortest known to fail.
func Shrink(first *Failure, try func(script []Op) *Failure) *Failure {
	best := first
	for {
		before := best
		best = fewer(best, try)
		best = simpler(best, try)
		best = flatter(best, try)
		if Format(best.Script) == Format(before.Script) {
			return best
		}
	}
}

// fewer leaves out pieces of the script of ever smaller length.
func fewer(best *Failure, try func([]Op) *Failure) *Failure {
	for n := (len(best.Script) + 1) / 2; n > 0; n /= 2 {
		for at := 0; at < len(best.Script); {
			rest := slices.Delete(slices.Clone(best.Script), at, min(at+n, len(best.Script)))
			if f := try(rest); f != nil {
				best = f
				continue
			}
			at += n
		}
	}
	return best
}

// flatter replaces a path by a plainer one, or a handle by another slot, in all steps at once.
func flatter(best *Failure, try func([]Op) *Failure) *Failure {
	for again := true; again; {
		again = false
		for _, script := range flattened(best.Script) {
			if f := try(script); f != nil {
				best, again = f, true
				break
			}
		}
	}
	return best
}

func flattened(script []Op) (all [][]Op) {
	add := func(change func(o *Op)) {
		c := slices.Clone(script)
		for i := range c {
			change(&c[i])
		}
		if !slices.Equal(c, script) {
			all = append(all, c)
		}
	}
	for _, o := range script {
		for _, path := range []string{o.Path, o.To} {
			for _, name := range names[:3] {
				if path != "" && plainer(name, path) && o.Kind != "copyrange" {
					add(func(o *Op) { o.Path, o.To = moved(o.Path, path, name), moved(o.To, path, name) })
				}
			}
		}
		for h := range o.H {
			was := o.H
			add(func(o *Op) {
				if o.H == was {
					o.H = h
				}
			})
		}
	}
	return all
}

// moved returns the path after a move of from to to.
func moved(path, from, to string) string {
	if rest, ok := strings.CutPrefix(path, from); ok && (rest == "" || rest[0] == '/') {
		return to + rest
	}
	return path
}

// simpler tries simpler values of every field of every step.
func simpler(best *Failure, try func([]Op) *Failure) *Failure {
	for at := 0; at < len(best.Script); at++ {
		for _, change := range best.Script[at].simpler() {
			script := slices.Clone(best.Script)
			change(&script[at])
			if script[at] == best.Script[at] {
				continue
			}
			if f := try(script); f != nil {
				best = f
			}
			if at >= len(best.Script) {
				break
			}
		}
	}
	return best
}

// simpler returns the ways to simplify one field of the step.
func (o Op) simpler() []func(o *Op) {
	all := []func(o *Op){
		func(o *Op) { o.Mount = 0 },
		func(o *Op) { o.Mode = 0o644 },
	}
	for _, fl := range kinds[o.Kind].flags {
		all = append(all, func(o *Op) { o.Flags &^= fl.bits })
	}
	for _, name := range names[:3] {
		all = append(all, func(o *Op) {
			if plainer(name, o.Path) {
				o.Path = name
			}
		}, func(o *Op) {
			if plainer(name, o.To) && o.Kind != "copyrange" {
				o.To = name
			}
		})
	}
	for h := range o.H {
		all = append(all, func(o *Op) { o.H = min(o.H, h) })
	}
	for _, n := range []int64{0, 1, 4096} {
		all = append(all, func(o *Op) { o.Off = min(o.Off, n) }, func(o *Op) { o.Len = min(o.Len, n) }, func(o *Op) { o.Seed = min(o.Seed, n) })
	}
	return append(all, func(o *Op) { // so that the step that made the file can be left out
		if o.Kind == "open" {
			o.Flags = unix.O_RDWR | unix.O_CREAT
		}
	})
}

// plainer orders paths, so that no two replace each other forever.
func plainer(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }
