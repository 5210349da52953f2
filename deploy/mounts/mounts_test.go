package mounts

import (
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	const text = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
44 22 0:40 / /tmp/a\040b\011c\134d rw,nosuid - fuse.bivouac bivouac rw,user_id=0
45 22 0:41 /x /y rw master:3 propagate_from:1 - tmpfs tmpfs rw
cut off
`
	want := []Entry{
		{ID: "22", Parent: "1", Dev: "254:0", Path: "/", Shared: true, FSType: "ext4"},
		{ID: "44", Parent: "22", Dev: "0:40", Path: "/tmp/a b\tc\\d", FSType: "fuse.bivouac"},
		{ID: "45", Parent: "22", Dev: "0:41", Path: "/y", FSType: "tmpfs"},
	}
	if got := parse(text); !slices.Equal(got, want) {
		t.Errorf("parse = %+v, want %+v", got, want)
	}
}

// TestUpon: the topmost mount is last, whatever the order of the table.
func TestUpon(t *testing.T) {
	table := []Entry{
		{ID: "9", Parent: "1", Path: "/a/b"}, {ID: "5", Parent: "7", Path: "/a"}, {ID: "6", Parent: "1", Path: "/a"},
		{ID: "7", Parent: "6", Path: "/a"}, {ID: "1", Parent: "0", Path: "/"},
	}
	var got []string
	for _, m := range upon(table, "/a") {
		got = append(got, m.ID)
	}
	if want := []string{"6", "7", "5"}; !slices.Equal(got, want) {
		t.Errorf("the mounts at /a are %v, want %v", got, want)
	}
}

func TestAt(t *testing.T) {
	if at, err := At("/proc"); err != nil || len(at) == 0 || at[0].FSType != "proc" {
		t.Errorf("At(/proc) = %v, %v", at, err)
	}
	if at, err := At("/nothing/is/here"); err != nil || len(at) != 0 {
		t.Errorf("At of no mount = %v, %v", at, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("44 22 0:40 / /a\\040b rw - fuse x rw\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, m := range parse(text) {
			if m.Path == "" || m.Dev == "" {
				t.Errorf("parse(%q) has %+v", text, m)
			}
		}
	})
}
