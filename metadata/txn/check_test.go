package txn_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

// sound returns the inventory of a small job: root/d on home 1, with the file f.
func sound() []metadata.Inventory {
	d, f := metadata.LiveIno(1, 2000), metadata.LiveIno(1, 2001)
	dir := func(ino metadata.Ino, nlink uint32, parent metadata.Ino, name string) metadata.InventoryInode {
		return metadata.InventoryInode{Attr: metadata.Attr{Ino: ino, Mode: syscall.S_IFDIR | 0o755, Nlink: nlink}, Parent: parent, Name: name}
	}
	return []metadata.Inventory{
		{
			Self: 0, Inodes: map[metadata.Ino]metadata.InventoryInode{root: dir(root, 3, 0, "")}, Orphans: map[metadata.Ino]bool{},
			Entries: map[metadata.Ino][]metadata.Entry{root: {{Name: "d", Ino: d, Mode: syscall.S_IFDIR}}},
		},
		{
			Self: 1, Inodes: map[metadata.Ino]metadata.InventoryInode{
				d: dir(d, 2, root, "d"), f: {Attr: metadata.Attr{Ino: f, Mode: syscall.S_IFREG, Nlink: 1}},
			},
			Orphans: map[metadata.Ino]bool{},
			Entries: map[metadata.Ino][]metadata.Entry{d: {{Name: "f", Ino: f, Mode: syscall.S_IFREG}}},
		},
	}
}

// TestCheck: every kind of damage is detected.
func TestCheck(t *testing.T) {
	if wrong := txn.Check(sound()); len(wrong) > 0 {
		t.Fatalf("a sound tree: %q", wrong)
	}
	d, f := metadata.LiveIno(1, 2000), metadata.LiveIno(1, 2001)
	change := func(h *metadata.Inventory, ino metadata.Ino, fn func(*metadata.InventoryInode)) {
		k := h.Inodes[ino]
		fn(&k)
		h.Inodes[ino] = k
	}
	for what, damage := range map[string]func(h []metadata.Inventory){
		"names the missing inode " + f.String(): func(h []metadata.Inventory) { delete(h[1].Inodes, f) },
		"2 links and 1 names":                   func(h []metadata.Inventory) { change(&h[1], f, func(k *metadata.InventoryInode) { k.Attr.Nlink = 2 }) },
		"1 links and 0 names":                   func(h []metadata.Inventory) { delete(h[1].Entries, d) },
		"says mode":                             func(h []metadata.Inventory) { h[1].Entries[d][0].Mode = syscall.S_IFLNK },
		"an orphan: true":                       func(h []metadata.Inventory) { h[1].Orphans[f] = true },
		"has no inode":                          func(h []metadata.Inventory) { h[1].Orphans[f+1] = true },
		"4 links and 1 directories": func(h []metadata.Inventory) {
			change(&h[0], root, func(k *metadata.InventoryInode) { k.Attr.Nlink = 4 })
		},
		"believes to be":     func(h []metadata.Inventory) { change(&h[1], d, func(k *metadata.InventoryInode) { k.Name = "e" }) },
		"has 0 names":        func(h []metadata.Inventory) { delete(h[0].Entries, root) },
		"not below the root": func(h []metadata.Inventory) { change(&h[1], d, func(k *metadata.InventoryInode) { k.Parent = d }) },
		"the root is named": func(h []metadata.Inventory) {
			h[1].Entries[d] = append(h[1].Entries[d], metadata.Entry{Name: "r", Ino: root, Mode: syscall.S_IFDIR})
		},
		"without an end":    func(h []metadata.Inventory) { h[1].Open = []metadata.TxID{7} },
		"is kept by home 0": func(h []metadata.Inventory) { h[0].Inodes[f] = h[1].Inodes[f]; delete(h[1].Inodes, f) },
	} {
		h := sound()
		damage(h)
		if wrong := strings.Join(txn.Check(h), "\n"); !strings.Contains(wrong, what) {
			t.Errorf("Check = %q, want that %q", wrong, what)
		}
	}
}
