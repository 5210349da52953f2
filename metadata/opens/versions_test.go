package opens

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// TestNewVersions: a file whose bytes may have changed without the knowledge of its home gets a new st_ctime, which all
// nodes learn, and keeps its st_mtime. Otherwise nodes would keep stale pages.
func TestNewVersions(t *testing.T) {
	const ino = 1000
	freeze, thaw := metadata.Append{Ino: ino, Freeze: 1}, metadata.Append{Ino: ino, Freeze: 1, Thaw: true}
	for what, happen := range map[string]func(f *Files, later func(time.Duration)){
		"the writer's daemon is killed": func(f *Files, _ func(time.Duration)) { f.NoteRun(metadata.Holder{Node: 1, Run: 2}) },
		"the writer's node is lost":     func(f *Files, _ func(time.Duration)) { f.Lost(1) },
		"a close after a failed write": func(f *Files, _ func(time.Duration)) {
			f.Close(on(1), metadata.Opened{Ino: ino, Ticket: 9, Unsure: true})
		},
		"a truncate that has failed": func(f *Files, _ func(time.Duration)) {
			place(t, f, on(2), freeze)
			place(t, f, on(2), thaw)
		},
		"one, and the home has restarted": func(f *Files, _ func(time.Duration)) { place(t, f, on(2), thaw) },
		"one that has not ended": func(f *Files, later func(time.Duration)) {
			place(t, f, on(2), freeze)
			later(appends.FreezeTime)
		},
		"one that has not ended before the next": func(f *Files, later func(time.Duration)) {
			place(t, f, on(2), freeze)
			later(appends.FreezeTime)
			place(t, f, on(3), metadata.Append{Ino: ino, Freeze: 2})
		},
		"a daemon is killed amid one": func(f *Files, _ func(time.Duration)) {
			f.NoteRun(on(2))
			place(t, f, on(2), freeze)
			f.NoteRun(metadata.Holder{Node: 2, Run: 2})
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld()
			w.attrs[ino] = metadata.Attr{Ino: ino, Mode: syscall.S_IFREG, Nlink: 1}
			var heard, passed atomic.Int64
			f := serveWith(t, Config{
				Store: w, Places: w.places, Remove: w.remove, Rest: time.Millisecond,
				Now:     func() time.Time { return time.Unix(1000, passed.Load()) },
				Changed: func(context.Context, metadata.Ino) { heard.Add(1) },
			})
			mustOpen(t, f.Registry, on(1), ino, 9)
			happen(f, func(d time.Duration) { passed.Add(int64(d)) })
			eventually(t, "a new version", func() bool {
				a, err := w.Getattr(t.Context(), ino)
				if err == nil && a.Mtime != 0 {
					t.Fatal("a new st_mtime")
				}
				return err == nil && a.Ctime > 0 && heard.Load() > 0
			})
		})
	}
}

// TestSameVersion: a change that the home knows completely needs no new version.
func TestSameVersion(t *testing.T) {
	w := newWorld()
	w.attrs[1000] = metadata.Attr{Ino: 1000, Mode: syscall.S_IFREG, Nlink: 1}
	f := New(Config{Store: w, Run: 7})
	run := func(when string, want metadata.Run) {
		t.Helper()
		if h, err := f.Open(t.Context(), on(1), 1000, metadata.Opening{Ticket: 1}); err != nil || h.Run != want {
			t.Errorf("%s: run %d, %v, want %d", when, h.Run, err, want)
		}
	}
	run("at first", 7)
	f.Recover(1)
	f.Recover(2)
	run("a node has not answered since the restart", 0)
	f.Add(on(1), []metadata.Opened{{Ino: 1000, Ticket: 1}})
	f.Answered(1)
	f.Answered(2)
	run("all have", 8)
	f.Await(2)
	run("a node has come back", 8)
	f.Answered(2)
	run("and has answered", 8)
	place(t, f, on(2), metadata.Append{Ino: 1000, Freeze: 1})
	set := func() (metadata.Attr, error) { return w.Getattr(t.Context(), 1000) }
	if _, err := f.Truncate(1000, metadata.Change{Freeze: 1}, set); err != nil {
		t.Fatal(err)
	}
	f.Close(on(1), metadata.Opened{Ino: 1000, Ticket: 1})
	f.Lost(1)
	f.Lost(2)
	if files := f.takeOutdated(); len(files) > 0 || len(f.files)+len(f.frozen) > 0 {
		t.Errorf("to be published: %v; %d files and %d freezes are remembered", files, len(f.files), len(f.frozen))
	}
}
