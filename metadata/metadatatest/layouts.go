package metadatatest

import (
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func (f *fixture) setLayout(ino metadata.Ino, set metadata.Set, l metadata.Layout) metadata.Layout {
	f.Helper()
	a, err := f.s.Setattr(ctx, ino, metadata.Change{Set: set, Layout: l})
	f.want(err, nil, "Setattr(%v) of layout %+v", ino, l)
	a.Before = 0
	if got := f.attr(ino); got != a {
		f.Fatalf("Getattr(%v) after a layout = %+v, want %+v", ino, got, a)
	}
	return a.Layout
}

func testLayout(f *fixture) {
	file, d := f.create(root, "f"), f.mkdir(root, "d")
	l := metadata.Layout{Kind: metadata.Local, Node: 2, Copies: 2, ChunkSize: 1 << 20, Width: 4, Epoch: 7}
	if got := f.setLayout(d.Ino, metadata.SetLayout, l); got != l {
		f.Errorf("layout = %+v, want %+v", got, l)
	}
	for _, ino := range []metadata.Ino{file.Ino, d.Ino} {
		want := f.attr(ino).Layout
		want.Kind, want.Node = metadata.Local, 1
		if got := f.setLayout(ino, metadata.SetLayoutKind, metadata.Layout{Kind: metadata.Local, Node: 1, ChunkSize: 5}); got != want {
			f.Errorf("layout after its kind was set = %+v, want %+v", got, want)
		}
		want.ChunkSize = 1 << 17
		if got := f.setLayout(ino, metadata.SetChunkSize, metadata.Layout{ChunkSize: 1 << 17}); got != want {
			f.Errorf("layout after its chunk size was set = %+v, want %+v", got, want)
		}
		want.Width = 3
		if got := f.setLayout(ino, metadata.SetWidth, metadata.Layout{Width: 3, ChunkSize: 7}); got != want {
			f.Errorf("layout after its width was set = %+v, want %+v", got, want)
		}
		want.Copies = 2
		if got := f.setLayout(ino, metadata.SetCopies, metadata.Layout{Copies: 2, ChunkSize: 7}); got != want {
			f.Errorf("layout after its copies were set = %+v, want %+v", got, want)
		}
		_, err := f.s.Setattr(ctx, ino, metadata.Change{Set: metadata.SetCopies, Layout: metadata.Layout{Copies: 3}})
		f.want(err, syscall.EINVAL, "Setattr(%v) of three copies", ino)
		want.Kind, want.Node = metadata.Striped, 0
		if got := f.setLayout(ino, metadata.SetLayoutKind, metadata.Layout{}); got != want {
			f.Errorf("layout after its kind was reset = %+v, want %+v", got, want)
		}
	}
}

// testLayoutInherited: new inodes inherit the layout of their directory, except for the fields that the request sets;
// the node is the creator's.
func testLayoutInherited(f *fixture) {
	d := f.mkdir(root, "d").Ino
	f.setLayout(d, metadata.SetLayoutKind|metadata.SetChunkSize, metadata.Layout{Kind: metadata.Local, Node: 9, ChunkSize: 1 << 16})
	sub := f.mkdir(d, "sub")
	if l := sub.Layout; l.Kind != metadata.Local || l.ChunkSize != 1<<16 {
		f.Errorf("layout of a new directory = %+v, want that of its parent", l)
	}
	for _, dir := range []metadata.Ino{d, sub.Ino} {
		for name, tt := range map[string]struct{ given, want metadata.Layout }{
			"plain":    {metadata.Layout{Node: 1, Epoch: 5}, metadata.Layout{Kind: metadata.Local, Node: 1, ChunkSize: 1 << 16, Epoch: 5}},
			"explicit": {metadata.Layout{ChunkSize: 1 << 20, Epoch: 5}, metadata.Layout{ChunkSize: 1 << 20, Epoch: 5}},
		} {
			a, err := f.s.Create(ctx, dir, name, metadata.New{Mode: reg | 0o644, Layout: tt.given})
			if f.want(err, nil, "Create"); a.Layout != tt.want {
				f.Errorf("layout of a file made with %+v = %+v, want %+v", tt.given, a.Layout, tt.want)
			}
		}
	}
}

func testLayoutRefuses(f *fixture) {
	file, full, d := f.create(root, "f").Ino, f.create(root, "full").Ino, f.mkdir(root, "d").Ino
	sym, err := f.s.Create(ctx, root, "s", metadata.New{Mode: lnk | 0o777, Target: "t"})
	f.want(err, nil, "Create of a symbolic link")
	_, err = f.s.Setattr(ctx, full, metadata.Change{Set: metadata.GrowSize, Size: 1})
	f.want(err, nil, "Setattr of a size")
	tests := []struct {
		name string
		ino  metadata.Ino
		set  metadata.Set
		l    metadata.Layout
		want error
	}{
		{"all of a file", file, metadata.SetLayout, metadata.Layout{}, syscall.EINVAL},
		{"kind of a symbolic link", sym.Ino, metadata.SetLayoutKind, metadata.Layout{}, syscall.EINVAL},
		{"kind of a file with data", full, metadata.SetLayoutKind, metadata.Layout{Kind: metadata.Local}, syscall.EBUSY},
		{"chunk size of a file with data", full, metadata.SetChunkSize, metadata.Layout{ChunkSize: 1 << 16}, syscall.EBUSY},
		{"unknown kind", d, metadata.SetLayoutKind, metadata.Layout{Kind: 2}, syscall.EINVAL},
		{"odd chunk size", d, metadata.SetChunkSize, metadata.Layout{ChunkSize: 3 << 16}, syscall.EINVAL},
		{"small chunk size", d, metadata.SetChunkSize, metadata.Layout{ChunkSize: 4096}, syscall.EINVAL},
		{"large chunk size", d, metadata.SetChunkSize, metadata.Layout{ChunkSize: 1 << 31}, syscall.EINVAL},
	}
	before := map[metadata.Ino]metadata.Attr{}
	for _, tt := range tests {
		before[tt.ino] = f.attr(tt.ino)
	}
	for _, tt := range tests {
		_, err := f.s.Setattr(ctx, tt.ino, metadata.Change{Set: tt.set, Layout: tt.l})
		f.want(err, tt.want, "Setattr of the %s", tt.name)
		if a := f.attr(tt.ino); a != before[tt.ino] {
			f.Errorf("after the refused %s: %+v, want %+v", tt.name, a, before[tt.ino])
		}
	}
}
