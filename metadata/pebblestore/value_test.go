package pebblestore

import (
	"bytes"
	"math"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

var inodes = []inode{
	{},
	{Attr: metadata.Attr{Mode: reg | 0o644, Nlink: 1, UID: 1000, GID: 1000, Size: 110_000, Mtime: 5, Atime: 6, Ctime: 4}},
	{Attr: metadata.Attr{
		Mode: math.MaxUint32, Nlink: math.MaxUint32, UID: math.MaxUint32, GID: math.MaxUint32, Rdev: math.MaxUint32,
		Size: math.MaxInt64, Atime: math.MinInt64, Mtime: math.MaxInt64, Ctime: -1,
		Layout: metadata.Layout{Kind: 255, Copies: 255, Node: 65535, ChunkSize: math.MaxUint32, Width: 65535, Epoch: math.MaxUint64},
	}, parent: math.MaxUint64, text: "odd\x00\xff", xattrs: math.MaxUint32},
}

func TestInodeValue(t *testing.T) {
	for _, want := range inodes {
		want.Ino = 77
		b := want.append(nil)
		got, err := parseInode(77, b)
		if err != nil || got != want {
			t.Errorf("parseInode(append(%+v)) = %+v, %v", want, got, err)
		}
		for n := range b {
			if _, err := parseInode(77, b[:n]); err == nil {
				t.Errorf("parseInode of %d of %d bytes succeeded", n, len(b))
			}
		}
		if _, err := parseInode(77, append(b, 0)); err == nil {
			t.Error("parseInode with a byte too many succeeded")
		}
	}
}

func FuzzInodeValue(f *testing.F) {
	for _, n := range inodes {
		f.Add(n.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parseInode(1, b)
		if err != nil {
			return
		}
		again, err := parseInode(1, n.append(nil))
		if err != nil || again != n {
			t.Fatalf("%x is %+v, and encoded again %+v, %v", b, n, again, err)
		}
	})
}

func FuzzEntryValue(f *testing.F) {
	f.Add(entry{1, 2}.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEntry(b)
		if err != nil {
			return
		}
		if again, err := parseEntry(e.append(nil)); err != nil || again != e {
			t.Fatalf("%x is %+v, and encoded again %+v, %v", b, e, again, err)
		}
	})
}

func TestKeysAreInOrder(t *testing.T) {
	keys := [][]byte{
		keyCounter, keySelf, keyVersion,
		inodeKey(1), inodeKey(256), inodeKey(metadata.LiveIno(3, 1)),
		entryKey(1, ""), entryKey(1, "\x00"), entryKey(1, "a"), entryKey(1, "\xff\xff"), entriesEnd(1), entryKey(2, "a"),
		entryKey(math.MaxUint64, "z"), entriesEnd(math.MaxUint64),
		orphanKey(1),
		tableKey(1, nil), tableKey(1, []byte{255, 255}), tableEnd(1), tableKey(math.MaxUint16, []byte{255}), tableEnd(math.MaxUint16),
	}
	for i := range keys[1:] {
		a, b := keys[i], keys[i+1]
		if bytes.Compare(a, b) > 0 {
			t.Errorf("key %x is behind %x", a, b)
		}
	}
}
