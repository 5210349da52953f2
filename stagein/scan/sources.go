package scan

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// common returns the deepest directory that contains all paths, and the paths relative to it.
func common(paths []string) (root string, below map[string]bool) {
	root = path.Dir(paths[0])
	for _, p := range paths {
		for root != "/" && !strings.HasPrefix(p, root+"/") {
			root = path.Dir(root)
		}
	}
	below = make(map[string]bool, len(paths))
	for _, p := range paths {
		below[strings.TrimPrefix(strings.TrimPrefix(p, root), "/")] = true
	}
	return root, below
}

// paths returns the paths that the request's source stands for: itself, or its matches if it is a pattern and no file
// has that very name.
func (cfg *Config) paths() ([]string, error) {
	src := cfg.Request.Source
	_, err := cfg.FS.Lstat(src)
	if !errors.Is(err, syscall.ENOENT) || !walk.IsPattern(src) {
		return []string{src}, nil // its reader reports the error
	}
	return walk.Glob(cfg.FS, src)
}

// alone reports whether each archive is read by one node from front to back: there are several, or only their reader
// can know which members are wanted.
func (cfg *Config) alone(paths []string) bool {
	r := &cfg.Request
	return len(paths) > 1 || r.Selects() || r.OnError != stagein.OnErrorFail || r.Unpack != stagein.UnpackYes
}

// planKept plans archives that are kept as files (unpack=no).
func (cfg *Config) planKept(ctx context.Context, p *stagein.Plan, paths []string, nodes []metadata.NodeID) error {
	root, below, err := cfg.kept(paths)
	if err != nil {
		return err
	}
	return cfg.planTree(ctx, p, root, below, nodes)
}

// kept returns the directory that contains paths, and which paths below it they are; nil: all.
func (cfg *Config) kept(paths []string) (root string, below map[string]bool, err error) {
	if len(paths) == 1 {
		at, info, err := source.Resolve(cfg.FS, paths[0])
		if err != nil {
			return "", nil, err
		}
		if paths[0] = at; info.Is(source.TypeDir) {
			return at, nil, nil
		}
	}
	for _, path := range paths {
		if info, err := cfg.FS.Lstat(path); err == nil && info.Is(source.TypeSymlink) {
			return "", nil, fmt.Errorf("%s: is a symbolic link: give its target: %w", path, syscall.EINVAL)
		}
	}
	root, below = common(paths)
	return root, below, nil
}

// planTree plans a directory or, if below is not nil, only the paths below.
func (cfg *Config) planTree(ctx context.Context, p *stagein.Plan, root string, below map[string]bool, nodes []metadata.NodeID) error {
	items, err := cfg.tree(ctx, p, root, below)
	if err != nil {
		return err
	}
	return cfg.room(p, cfg.deal(p, items, nodes))
}

// tree finds the selected items of a directory.
func (cfg *Config) tree(ctx context.Context, p *stagein.Plan, root string, below map[string]bool) ([]source.Item, error) {
	sel, err := stagein.NewSelection(cfg.FS, cfg.Request.Options)
	if err != nil {
		return nil, err
	}
	w := walk.Config{FS: cfg.FS, Root: root, Workers: cfg.Workers, Remotes: cfg.Others, Paths: below}
	if sel != nil {
		w.Select = &sel.Select
	}
	if below == nil && sel != nil {
		w.Paths = sel.Paths
	}
	if cfg.Request.OnError == stagein.OnErrorSkip {
		w.Skip = func(path string, err error) {
			p.Skips = append(p.Skips, stagein.Skip{Path: source.Name(path), Error: err.Error()})
		}
	}
	items, err := w.Run(ctx)
	if err != nil {
		return nil, err
	}
	if items, err = cfg.wanted(p, sel, items); err != nil {
		return nil, err
	}
	p.Kind, p.Source, p.Options = source.Dir, source.Name(w.Root), cfg.Request.Options
	return items, nil
}

// wanted filters items, and checks that they include the whole list.
func (cfg *Config) wanted(p *stagein.Plan, sel *stagein.Selection, items []source.Item) ([]source.Item, error) {
	if sel == nil {
		return items, nil
	}
	missing := sel.Missing(items)
	if cfg.Request.OnError == stagein.OnErrorSkip {
		for _, m := range missing {
			p.Skips = append(p.Skips, stagein.Skip{Path: source.Name(m), Error: stagein.NotThere(cfg.Request.List).Error()})
		}
		missing = nil
	}
	if err := stagein.Unlisted(cfg.Request.List, missing); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Request.Source, err)
	}
	items = sel.Filter(items, cfg.Request.Limit)
	if len(items) == 0 || len(items) == 1 && items[0].Path == "" {
		return nil, fmt.Errorf("%s: no file is selected: check list=, include= and exclude=: %w", cfg.Request.Source, syscall.EINVAL)
	}
	return items, nil
}
