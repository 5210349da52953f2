package pebblestore

import (
	"errors"
	"fmt"
	"reflect"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestRecords: an inventory fetched in pages of any size is the same.
func TestRecords(t *testing.T) {
	s := open(t, Config{})
	for i := range 50 {
		name := fmt.Sprint("f", i)
		if _, err := s.Create(ctx, metadata.RootIno, name, metadata.New{Mode: syscall.S_IFREG | 0o600}); err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 {
			if _, err := s.Unlink(ctx, metadata.RootIno, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := metadata.TxID(metadata.LiveIno(3, 2000))
	if _, err := s.Prepare(ctx, other, []metadata.Edit{{Kind: metadata.EditEnter, Dir: metadata.RootIno, Name: "g", Ino: metadata.LiveIno(3, 2001), Mode: syscall.S_IFREG}}); err != nil {
		t.Fatal(err)
	}
	want, err := s.Inventory(ctx)
	if err != nil || len(want.Inodes) != 51 || len(want.Orphans) != 10 || len(want.Entries[metadata.RootIno]) != 40 || len(want.Open) != 1 {
		t.Fatalf("inventory: %+v, %v", want, err)
	}
	for _, limit := range []int{1, 100, 1 << 20} {
		c := NewInventoryBuilder(0)
		var after []byte
		for pages := 0; ; pages++ {
			rs, err := s.Records(ctx, after, limit)
			if err != nil || pages > 1000 {
				t.Fatalf("page %d: %v", pages, err)
			}
			if len(rs) == 0 {
				break
			}
			for _, r := range rs {
				if err := c.Add(r); err != nil {
					t.Fatal(err)
				}
				after = r.Key
			}
		}
		if got := c.Inventory(); !reflect.DeepEqual(got, want) {
			t.Errorf("with pages of %d bytes: %+v, want %+v", limit, got, want)
		}
	}
}

// TestInventoryOfFillingShard: the entries of a shard that is being filled are not counted.
func TestInventoryOfFillingShard(t *testing.T) {
	for state, want := range map[shardState]int{shardFilling: 0, shardActive: 1} {
		c := NewInventoryBuilder(2)
		d := *wideDirSamples[0]
		d.state = state
		for _, r := range []Record{
			{entryKey(70, "a"), entry{71, syscall.S_IFREG}.append(nil)},
			{shardKey(70), d.append(nil)},
		} {
			if err := c.Add(r); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(c.Inventory().Entries[70]); n != want {
			t.Errorf("a shard that is %v has %d entries, want %d", state, n, want)
		}
	}
}

// FuzzInventory: a record of another node is rejected or counted.
func FuzzInventory(f *testing.F) {
	f.Add(entryKey(70, "a"), entry{71, syscall.S_IFREG}.append(nil))
	f.Add(inodeKey(70), inodes[0].append(nil))
	f.Add(shardKey(70), wideDirSamples[0].append(nil))
	f.Add([]byte{prefixIntent}, []byte{})
	f.Fuzz(func(t *testing.T, k, v []byte) {
		c := NewInventoryBuilder(1)
		if err := c.Add(Record{k, v}); err != nil && !errors.Is(err, syscall.EIO) {
			t.Fatalf("record %x %x: %v, want EIO", k, v, err)
		}
		c.Inventory()
	})
}
