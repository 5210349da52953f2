package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html
var layout string

// first is the page that links to all others.
const first = "README.md"

// page is one Markdown file of the repository.
type page struct {
	Source string // path below the root
	File   string // in the site
	Title  string // text of its first heading
	Body   template.HTML
	Nav    []*page

	text    []byte
	node    ast.Node
	anchors []string
}

// site holds all pages, in the order in which README.md links to them, and the other files that they show.
type site struct {
	root     string
	markdown goldmark.Markdown
	pages    []*page
	files    []string // paths below the root
	errs     []error
}

// build writes the site of the repository at root to out.
func build(root, out string) error {
	s := &site{root: root, markdown: goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))}
	if err := s.read(first); err != nil {
		return err
	}
	for i := 0; i < len(s.pages); i++ { // s.pages grows
		s.links(s.pages[i], func(_ *page, to *url.URL) string { return s.find(to) })
	}
	s.complete()
	for _, p := range s.pages {
		s.links(p, s.target)
		var b bytes.Buffer
		if err := s.markdown.Renderer().Render(&b, p.text, p.node); err != nil {
			return err
		}
		p.Body, p.Nav = template.HTML(b.String()), s.pages
	}
	if err := errors.Join(s.errs...); err != nil {
		return err
	}
	return s.write(out)
}

// read reads and parses a page.
func (s *site) read(name string) error {
	b, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return err
	}
	p := &page{Source: name, File: strings.TrimSuffix(path.Base(name), ".md") + ".html", text: b}
	if name == first {
		p.File = "index.html"
	}
	ids := &headings{}
	p.node = s.markdown.Parser().Parse(text.NewReader(b), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	p.anchors = ids.seen
	err = ast.Walk(p.node, func(n ast.Node, enter bool) (ast.WalkStatus, error) {
		if h, ok := n.(*ast.Heading); ok && enter && p.Title == "" {
			p.Title = string(h.Lines().Value(b))
		}
		return ast.WalkContinue, nil
	})
	s.pages = append(s.pages, p)
	return err
}

// links replaces the destination of each link and image that is neither external nor within the page.
func (s *site) links(p *page, replace func(from *page, to *url.URL) string) {
	change := func(dest []byte) []byte {
		to, err := url.Parse(string(dest))
		if err != nil || to.Scheme != "" {
			return dest
		}
		if to.Path != "" && !strings.HasPrefix(to.Path, "/") {
			to.Path = path.Join("/", path.Dir(p.Source), to.Path)
		}
		return []byte(replace(p, to))
	}
	_ = ast.Walk(p.node, func(n ast.Node, enter bool) (ast.WalkStatus, error) { // the callback returns no error
		switch n := n.(type) {
		case *ast.Link:
			if enter {
				n.Destination = change(n.Destination)
			}
		case *ast.Image:
			if enter {
				n.Destination = change(n.Destination)
			}
		}
		return ast.WalkContinue, nil
	})
}

// find reads the linked page, or records the linked file. It returns the link as a path from the root.
func (s *site) find(to *url.URL) string {
	name := strings.TrimPrefix(to.Path, "/")
	switch {
	case name == "":
	case path.Ext(name) != ".md":
		if !slices.Contains(s.files, name) {
			s.files = append(s.files, name)
		}
	case s.page(name) == nil:
		if err := s.read(name); err != nil {
			s.errs = append(s.errs, err)
		}
	}
	return to.String()
}

// complete reports pages of deploy/docs that no page links to.
func (s *site) complete() {
	names, err := filepath.Glob(filepath.Join(s.root, "deploy/docs/*.md"))
	s.errs = append(s.errs, err)
	for _, name := range names {
		if rel := path.Join("deploy/docs", filepath.Base(name)); s.page(rel) == nil {
			s.errs = append(s.errs, fmt.Errorf("%s: no page links to it", rel))
		}
	}
}

func (s *site) page(name string) *page {
	if i := slices.IndexFunc(s.pages, func(p *page) bool { return p.Source == name }); i >= 0 {
		return s.pages[i]
	}
	return nil
}

// target returns the destination of a link in the site.
func (s *site) target(from *page, to *url.URL) string {
	name := strings.TrimPrefix(to.Path, "/")
	p, file := from, ""
	switch {
	case name != "" && path.Ext(name) != ".md":
		return path.Base(name)
	case name != "":
		if p = s.page(name); p == nil {
			return "" // reported by find
		}
		file = p.File
	}
	if to.Fragment == "" {
		return file
	}
	if !slices.Contains(p.anchors, to.Fragment) {
		s.errs = append(s.errs, fmt.Errorf("%s: a link leads to #%s of %s, which has no such heading", from.Source, to.Fragment, p.Source))
	}
	return file + "#" + to.Fragment
}

// write writes the pages, and copies the other files.
func (s *site) write(out string) error {
	t, err := template.New("page").Parse(layout)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, p := range s.pages {
		var b bytes.Buffer
		if err := t.Execute(&b, p); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, p.File), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	for _, name := range s.files {
		b, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, path.Base(name)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// headings assigns headings the anchors that code hosts assign.
type headings struct{ seen []string }

// Generate returns the anchor of a heading: lower case, dashes for spaces, no punctuation.
func (h *headings) Generate(value []byte, _ ast.NodeKind) []byte {
	base := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(string(value)))
	id := base
	for n := 1; slices.Contains(h.seen, id); n++ {
		id = fmt.Sprintf("%s-%d", base, n)
	}
	h.seen = append(h.seen, id)
	return []byte(id)
}

// Put records an anchor that a page sets itself.
func (h *headings) Put(value []byte) { h.seen = append(h.seen, string(value)) }
