package manifest

import (
	"cmp"
	"fmt"
	"syscall"
)

// conflict is a record that conflicts with others, and the reason.
type conflict struct {
	rec Record
	why error
}

// dir reports whether r is a directory.
func (r *Record) dir() bool { return r.Hardlink == "" && isDir(r.Attr.Mode) }

// twice handles a second record for the path of n: it keeps one of the two and leaves the other out.
func (n *named) twice(r Record) error {
	why := fmt.Errorf("duplicate path %q: %w", n.path, syscall.EEXIST)
	if !n.leave {
		return why
	}
	if after(&r, &n.rec) {
		r, n.rec = n.rec, r
	}
	n.left = append(n.left, conflict{r, why})
	return nil
}

// after reports whether r, which was read after s, replaces s.
func after(r, s *Record) bool {
	if c := cmp.Compare(r.rank(), s.rank()); c != 0 {
		return c > 0
	}
	if r.From.Off > 0 && s.From.Off > 0 {
		return cmp.Or(cmp.Compare(r.From.Source, s.From.Source), cmp.Compare(r.From.Off, s.From.Off)) >= 0
	}
	return true
}

// rank is the precedence of a record over others with its path.
func (r *Record) rank() int {
	switch {
	case r.dir():
		return 2
	case r.Hardlink == "":
		return 1
	}
	return 0
}

// below leaves out the record of n, because paths below it make n a directory.
func (n *named) below() error {
	why := fmt.Errorf("%q has paths below it: %w", n.path, syscall.ENOTDIR)
	if !n.leave {
		return why
	}
	n.left = append(n.left, conflict{n.rec, why})
	n.rec, n.some = Record{}, false
	return nil
}

// choose reports the records that a dataset leaves out at each path, and limits links to the hard links that are kept.
func (b *builder) choose() error {
	if b.cfg.Leave == nil {
		return nil
	}
	return b.each(func(n *named) error {
		for i := range n.left {
			if err := b.cfg.Leave(&n.left[i].rec, n.left[i].why); err != nil {
				return err
			}
		}
		if len(n.left) > 0 {
			delete(b.links, n.path)
		}
		if n.rec.Hardlink != "" {
			b.links[n.path] = n.rec.Hardlink
		}
		return nil
	})
}

// bury reports the hard links that were left out because they name nothing.
func (b *builder) bury() error {
	if len(b.dead) == 0 {
		return nil
	}
	return b.each(func(n *named) error {
		if n.rec.Hardlink == "" || !b.dead[n.path] {
			return nil
		}
		return b.cfg.Leave(&n.rec, b.leads(n.path))
	})
}
