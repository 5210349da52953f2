package pebblestore

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

var sampleEdits = []edit{
	{
		Edit: metadata.Edit{
			Kind: metadata.EditMake, Ino: metadata.LiveIno(3, 2000), ToDir: metadata.RootIno, ToName: "d",
			New: &metadata.New{Mode: dir | 0o2755, UID: 1, GID: 2, Layout: metadata.Layout{Kind: metadata.Local, Node: 3, Epoch: 9}},
		},
		at: 77,
	},
	{
		Edit: metadata.Edit{Kind: metadata.EditSwap, Dir: 20, Name: "a", Ino: 21, Mode: reg, ToDir: 22, ToName: "b"},
		old:  23, at: 1 << 60,
	},
}

func TestIntent(t *testing.T) {
	for _, late := range []bool{false, true} {
		got, is, err := parseIntent(appendIntent(nil, sampleEdits, late))
		if err != nil || is != late || !reflect.DeepEqual(got, sampleEdits) {
			t.Errorf("parseIntent = %+v, %v, %v, want %+v, %v", got, is, err, sampleEdits, late)
		}
	}
	if got, err := parseDecision(appendDecision(nil, []metadata.NodeID{1, 700})); err != nil || len(got) != 2 || got[1] != 700 {
		t.Errorf("parseDecision = %v, %v", got, err)
	}
}

// FuzzIntent parses arbitrary bytes as the records of transactions.
func FuzzIntent(f *testing.F) {
	f.Add(appendIntent(nil, sampleEdits, true))
	f.Add(appendDecision(nil, []metadata.NodeID{1, 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if edits, late, err := parseIntent(b); err == nil {
			again, is, err := parseIntent(appendIntent(nil, edits, late))
			if err != nil || is != late || !reflect.DeepEqual(again, edits) {
				t.Fatalf("%+v, written and read, is %+v, %v", edits, again, err)
			}
		}
		if others, err := parseDecision(b); err == nil && !bytes.Equal(appendDecision(nil, others), b) {
			t.Fatalf("%v is not %x", others, b)
		}
	})
}
