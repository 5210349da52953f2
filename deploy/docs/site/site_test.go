package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	reference = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	anchor    = regexp.MustCompile(` id="([^"]*)"`)
)

// TestSite: all links in the documentation have a target, and pages load nothing from other sites.
func TestSite(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	if err := build("../../..", out); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(out, "*.html"))
	if err != nil {
		t.Fatal(err)
	}
	docs, err := filepath.Glob("../*.md")
	if err != nil || len(names) < len(docs)+3 {
		t.Errorf("%d pages, want those of %q, README, ARCHITECTURE and CHANGELOG (%v)", len(names), docs, err)
	}
	pages := make(map[string]string)
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(name)] = string(b)
	}
	for name, text := range pages {
		for _, m := range anchor.FindAllStringSubmatch(text, -1) {
			if strings.Count(text, m[0]) != 1 {
				t.Errorf("%s has the anchor %s twice", name, m[1])
			}
		}
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			file, id, _ := strings.Cut(m[1], "#")
			if strings.HasPrefix(m[0], "href") && strings.HasPrefix(m[1], "https://") {
				continue
			}
			if file == "" {
				file = name
			}
			if _, err := os.Stat(filepath.Join(out, file)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if id != "" && !strings.Contains(pages[file], ` id="`+id+`"`) {
				t.Errorf("%s: a link leads to #%s, which %s lacks", name, id, file)
			}
		}
		for other := range pages {
			if !strings.Contains(text, `<a href="`+other+`"`) {
				t.Errorf("%s has no link to %s", name, other)
			}
		}
		if strings.Contains(text, "<script") {
			t.Errorf("%s has a script", name)
		}
	}
}

// TestBroken: a link to a missing page, file or heading is an error that names both; so is a page without links to it.
func TestBroken(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "deploy/docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const alone = "deploy/docs/alone.md: no page links to it"
	for text, want := range map[string]string{
		"# A\n[b](deploy/docs/b.md#second)":               "",
		"# A\n[b](deploy/docs/b.md#third)":                "README.md: a link leads to #third of deploy/docs/b.md",
		"# A\n[a](#b) [b](deploy/docs/b.md)":              "README.md: a link leads to #b of README.md",
		"# A\n[c](deploy/docs/c.md)":                      "c.md: no such file",
		"# A\n![p](deploy/p.svg) [b](deploy/docs/b.md)":   "p.svg: no such file",
		"# A\n[b](deploy/docs/b.md)\n\n[x][y]\n\n[y]: #z": "leads to #z",
	} {
		write("README.md", text)
		write("deploy/docs/b.md", "# B\n## Second")
		err := build(root, t.TempDir())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	write("deploy/docs/alone.md", "# Alone")
	if err := build(root, t.TempDir()); err == nil || !strings.Contains(err.Error(), alone) {
		t.Errorf("%v, want %q", err, alone)
	}
}
