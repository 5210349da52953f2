package opens

import (
	"context"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// mapping opens a file for mapping and reports whether it may.
func mapping(t *testing.T, f *Files, by metadata.Holder, ino metadata.Ino, tick metadata.Ticket) bool {
	t.Helper()
	h, err := f.Open(context.Background(), by, ino, metadata.Opening{Ticket: tick, Maps: true})
	if err != nil {
		t.Fatal(err)
	}
	return h.Maps
}

// TestMapOneNode: only one node at a time may map a file, until it closes the file or is lost.
func TestMapOneNode(t *testing.T) {
	ctx := context.Background()
	w := newWorld()
	f := serve(t, w)
	n := metadata.New{Mode: syscall.S_IFREG | 0o644}
	h, err := f.CreateOpen(ctx, on(1), metadata.Opening{Ticket: 1, Maps: true}, 16, "f", n)
	if err != nil || !h.Maps || !h.Alone {
		t.Fatalf("CreateOpen = %+v, %v, want a file that only node 1 has", h, err)
	}
	ino := h.Attr.Ino
	step := func(what string, by metadata.Holder, tick metadata.Ticket, want bool) {
		t.Helper()
		if got := mapping(t, f, by, ino, tick); got != want {
			t.Errorf("%s: node %d may map: %v, want %v", what, by.Node, got, want)
		}
	}
	step("node 1 has it", on(2), 2, false)
	step("again", on(1), 3, true)
	if err := f.Closed(ctx, on(1), []metadata.Opened{{Ino: ino, Ticket: 3}}); err != nil {
		t.Fatal(err)
	}
	step("node 1 has closed it", on(2), 4, true)
	step("node 2 has it", on(3), 5, false)
	f.Lost(2)
	step("node 2 is lost", on(3), 6, true)
	step("node 3 has it", on(1), 7, false)
	later := metadata.Holder{Node: 3, Run: 2}
	f.NoteRun(later)
	step("node 3 has started again", on(1), 8, true)
}

// TestMapRestored: a restarted home grants no mapping until a Recall has restored the grants of all nodes.
func TestMapRestored(t *testing.T) {
	f := serve(t, newWorld())
	ino := create(t, f, on(1), 1)
	f.Recover(2)
	f.Recover(3)
	f.Add(on(2), []metadata.Opened{{Ino: ino, Ticket: 4, Maps: true}})
	f.Answered(2)
	if ok, _, wait := f.Map(on(1), ino); ok || wait == nil {
		t.Errorf("Map = %v while node 3 has not answered", ok)
	}
	f.Answered(3)
	if mapping(t, f, on(1), ino, 5) {
		t.Error("node 1 may map what node 2 has mapped")
	}
	if !mapping(t, f, on(2), ino, 6) {
		t.Error("node 2 may not map what it has mapped")
	}
}

// TestMapAsksBeforeItRefuses: a close in flight is taken into account, but not if the node has mapped the file since.
func TestMapAsksBeforeItRefuses(t *testing.T) {
	f := serve(t, newWorld())
	ino := create(t, f, on(1), 1)
	var answer metadata.Recalled
	var before func()
	f.cfg.Recall = func(context.Context, metadata.NodeID, metadata.Recall) (metadata.Recalled, error) {
		if before != nil {
			before()
		}
		return answer, nil
	}
	if !mapping(t, f, on(1), ino, 2) {
		t.Fatal("the first may not map")
	}
	answer = metadata.Recalled{Run: 1, Floor: 10, Files: []metadata.Opened{{Ino: ino, Ticket: 2, Maps: true}}}
	if mapping(t, f, on(2), ino, 3) {
		t.Error("node 2 may map what node 1 has mapped")
	}
	answer.Files = nil
	before = func() { f.Map(on(1), ino) }
	if mapping(t, f, on(2), ino, 4) {
		t.Error("node 2 may map, though node 1 was given the right after it answered")
	}
	before, answer.Floor = nil, 2
	if mapping(t, f, on(2), ino, 5) {
		t.Error("node 2 may map, though a create of node 1 is under way")
	}
	answer.Floor = 10
	if !mapping(t, f, on(2), ino, 6) {
		t.Error("node 2 may not map what node 1 has closed")
	}
}
