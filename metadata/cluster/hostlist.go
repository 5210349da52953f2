package cluster

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	maxHost   = 255 // bytes of a host name
	maxDigits = 18  // of a number in brackets, so that it fits an int64
)

// ParseHostList expands a host list as Slurm writes it, in the order in which `scontrol show hostnames` prints it:
//
//	gpu[001-004,007],login1   rack[1-2]n[01-03]   n[9-11]
//
// A number is at least as wide as the first number of its range is written. Several brackets multiply, in Slurm's
// order: the last bracket varies fastest, then the first, the second and so on. Unlike Slurm, it accepts a suffix after
// the last bracket, and rejects text that Slurm accepts by accident ("n[1-]", "n[1", "n1]"). A host that is named twice
// is returned twice. More than metadata.MaxNodes hosts are an error. Errors give the column, counted from 1.
func ParseHostList(s string) ([]string, error) {
	p := hostParser{s: s}
	var hosts []string
	for p.skip(); p.pos < len(p.s); p.skip() {
		start := p.pos
		t, err := p.term()
		if err != nil {
			return nil, err
		}
		if n := t.count(); n > metadata.MaxNodes || len(hosts)+n > metadata.MaxNodes {
			return nil, p.errorAt(start, "more than %d hosts", metadata.MaxNodes)
		}
		if t.longest() > maxHost {
			return nil, p.errorAt(start, "host name longer than %d bytes", maxHost)
		}
		hosts = t.expand(hosts)
	}
	if len(hosts) == 0 {
		return nil, p.errorAt(0, "no host")
	}
	return hosts, nil
}

// hostTerm is one element of the list: text, bracket, text, bracket, … text.
type hostTerm struct {
	text     []string
	brackets [][]numRange
}

// numRange is "lo-hi", each number at least width digits wide.
type numRange struct {
	lo, hi int64
	width  int
}

func (t hostTerm) count() int {
	n := 1
	for _, b := range t.brackets {
		in := 0
		for _, r := range b {
			if r.hi-r.lo >= metadata.MaxNodes {
				return metadata.MaxNodes + 1
			}
			in += int(r.hi-r.lo) + 1
		}
		n *= in
		if in > metadata.MaxNodes || n > metadata.MaxNodes {
			return metadata.MaxNodes + 1
		}
	}
	return n
}

func (t hostTerm) longest() int {
	n := 0
	for _, s := range t.text {
		n += len(s)
	}
	for _, b := range t.brackets {
		w := 0
		for _, r := range b {
			w = max(w, r.width, len(strconv.FormatInt(r.hi, 10)))
		}
		n += w
	}
	return n
}

// loops returns the order of the brackets from the outermost loop to the innermost. It is Slurm's order: the last but
// one, the ones before it leftwards, the last.
func (t hostTerm) loops() []int {
	last := len(t.brackets) - 1
	var order []int
	for i := last - 1; i >= 0; i-- {
		order = append(order, i)
	}
	if last >= 0 {
		order = append(order, last)
	}
	return order
}

// expand appends the hosts of t.
func (t hostTerm) expand(hosts []string) []string {
	chosen := make([]string, len(t.brackets))
	var fill func(loops []int)
	fill = func(loops []int) {
		if len(loops) == 0 {
			hosts = append(hosts, t.join(chosen))
			return
		}
		for _, r := range t.brackets[loops[0]] {
			for n := r.lo; n <= r.hi; n++ {
				chosen[loops[0]] = fmt.Sprintf("%0*d", r.width, n)
				fill(loops[1:])
			}
		}
	}
	fill(t.loops())
	return hosts
}

func (t hostTerm) join(numbers []string) string {
	var b strings.Builder
	for i, n := range numbers {
		b.WriteString(t.text[i])
		b.WriteString(n)
	}
	b.WriteString(t.text[len(numbers)])
	return b.String()
}

type hostParser struct {
	s   string
	pos int
}

func (p *hostParser) errorAt(pos int, format string, args ...any) error {
	return fmt.Errorf("host list, column %d: %s", pos+1, fmt.Sprintf(format, args...))
}

// skip skips the separators between elements.
func (p *hostParser) skip() {
	for p.pos < len(p.s) && separates(p.s[p.pos]) {
		p.pos++
	}
}

func separates(c byte) bool { return c == ',' || c == ' ' || c == '\t' || c == '\n' }

func digit(c byte) bool { return '0' <= c && c <= '9' }

func inHostName(c byte) bool {
	return digit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '_' || c == '.'
}

func (p *hostParser) term() (hostTerm, error) {
	var t hostTerm
	for {
		start := p.pos
		for p.pos < len(p.s) && inHostName(p.s[p.pos]) {
			p.pos++
		}
		t.text = append(t.text, p.s[start:p.pos])
		switch {
		case p.pos == len(p.s) || separates(p.s[p.pos]):
			return t, nil
		case p.s[p.pos] != '[':
			return t, p.errorAt(p.pos, "%q cannot be in a host name", p.s[p.pos])
		}
		b, err := p.bracket()
		if err != nil {
			return t, err
		}
		t.brackets = append(t.brackets, b)
	}
}

// bracket parses "[1-3,07]", including both brackets.
func (p *hostParser) bracket() ([]numRange, error) {
	open := p.pos
	var ranges []numRange
	for {
		p.pos++
		r, err := p.numRange()
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, r)
		switch {
		case p.pos == len(p.s):
			return nil, p.errorAt(open, "bracket is not closed")
		case p.s[p.pos] == ']':
			p.pos++
			return ranges, nil
		case p.s[p.pos] != ',':
			return nil, p.errorAt(p.pos, "%q instead of ',' or ']'", p.s[p.pos])
		}
	}
}

func (p *hostParser) numRange() (numRange, error) {
	start := p.pos
	lo, err := p.number()
	if err != nil {
		return numRange{}, err
	}
	r := numRange{lo: lo, hi: lo, width: p.pos - start}
	if p.pos == len(p.s) || p.s[p.pos] != '-' {
		return r, nil
	}
	p.pos++
	if r.hi, err = p.number(); err != nil {
		return r, err
	}
	if r.hi < r.lo {
		return r, p.errorAt(start, "range %s runs backwards", p.s[start:p.pos])
	}
	return r, nil
}

func (p *hostParser) number() (int64, error) {
	start := p.pos
	for p.pos < len(p.s) && digit(p.s[p.pos]) {
		p.pos++
	}
	switch n := p.pos - start; {
	case n == 0:
		return 0, p.errorAt(start, "a number is missing")
	case n > maxDigits:
		return 0, p.errorAt(start, "a number of %d digits", n)
	}
	n, err := strconv.ParseInt(p.s[start:p.pos], 10, 64)
	if err != nil {
		return 0, p.errorAt(start, "%v", err)
	}
	return n, nil
}
