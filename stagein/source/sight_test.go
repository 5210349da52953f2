package source

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// lookedTree is a tree with a large directory, deep ones, hard links over several of
// them, and odd names.
func lookedTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(rel string) {
		p := filepath.Join(dir, rel)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(rel), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxLook + 100 {
		write(fmt.Sprintf("large/%d", i))
	}
	for i := range 40 {
		for j := range 20 {
			write(fmt.Sprintf("deep/%d/%d/f", i, j))
		}
		if err := os.Link(filepath.Join(dir, "large/7"), filepath.Join(dir, fmt.Sprintf("deep/%d/same", i))); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../large", filepath.Join(dir, fmt.Sprintf("deep/%d/link", i))); err != nil {
			t.Fatal(err)
		}
	}
	write("deep/\xff\n/f")
	return dir
}

// other looks as another process does: what it is asked, and says, is JSON.
func other(asked *atomic.Int64) Looker {
	return func(ctx context.Context, s Sight) (seen Seen, err error) {
		asked.Add(1)
		b, err := json.Marshal(s)
		var q Sight
		if err == nil {
			err = json.Unmarshal(b, &q)
		}
		if err == nil {
			seen, err = q.Look(ctx, OS{})
		}
		if err == nil {
			b, err = json.Marshal(seen)
		}
		seen = Seen{}
		if err == nil {
			err = json.Unmarshal(b, &seen)
		}
		return seen, err
	}
}

// TestWalkWithOthers: with the help of others a walk finds what it finds alone,
// whatever they say.
func TestWalkWithOthers(t *testing.T) {
	dir := lookedTree(t)
	want, err := Walk(context.Background(), OS{}, dir, 4)
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, it := range want {
		if it.Hardlink != "" {
			links++
		}
	}
	if links != 40 {
		t.Fatalf("%d hard links of 40", links)
	}
	var asked atomic.Int64
	for name, o := range map[string]Looker{
		"helps": other(&asked),
		"is lost": func(context.Context, Sight) (Seen, error) {
			asked.Add(1)
			return Seen{}, syscall.ECONNRESET
		},
		"sees nothing": func(_ context.Context, s Sight) (Seen, error) {
			asked.Add(1)
			return Seen{Left: s.Names, Unread: len(s.Names) == 0}, nil
		},
		"forgets": func(ctx context.Context, s Sight) (Seen, error) {
			seen, err := other(&asked)(ctx, s)
			if len(s.Names) > 0 {
				seen.Items = seen.Items[:len(seen.Items)/2]
			}
			return seen, err
		},
		"lies": func(ctx context.Context, s Sight) (Seen, error) {
			seen, err := other(&asked)(ctx, s)
			for i := range seen.Items {
				seen.Items[i].Path = "large/../" + seen.Items[i].Path
			}
			return seen, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			got, err := WalkConfig{FS: OS{}, Root: dir, Workers: 1, Others: []Looker{o, o}}.Walk(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if asked.Load() == 0 {
				t.Error("nobody was asked")
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%d items of %d", len(got), len(want))
			}
		})
	}
}

// TestWalkWithOthersNames: what is wrong is named as by one who walks alone.
func TestWalkWithOthersNames(t *testing.T) {
	dir := lookedTree(t)
	if err := syscall.Mkfifo(filepath.Join(dir, "large/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	cfg := WalkConfig{FS: OS{}, Root: dir, Workers: 1, Others: []Looker{other(&asked)}}
	if _, err := cfg.Walk(context.Background()); err == nil || !strings.Contains(err.Error(), "large/pipe: is a FIFO") {
		t.Errorf("%v, want the FIFO's name", err)
	}
	var skipped []string
	cfg.Skip = func(path string, _ error) { skipped = append(skipped, path) }
	items, err := cfg.Walk(context.Background())
	if err != nil || len(skipped) != 1 || skipped[0] != filepath.Join(dir, "large/pipe") {
		t.Errorf("left out %q, %v", skipped, err)
	}
	for _, it := range items {
		if it.Path == "large/pipe" {
			t.Error("it is among the items all the same")
		}
	}
}

// TestLookRefuses: what was never asked for is no answer.
func TestLookRefuses(t *testing.T) {
	file := func(p string) []Item { return []Item{{Path: p, Mode: TypeRegular | 0o600}} }
	for name, n := range map[string]Seen{
		"elsewhere":     {Items: file("b/f")},
		"deeper":        {Items: file("a/b/f")},
		"not clean":     {Items: file("a//f")},
		"itself":        {Items: file("a")},
		"of no type":    {Items: []Item{{Path: "a/f", Mode: 0o600}}},
		"a FIFO":        {Items: []Item{{Path: "a/f", Mode: TypeFIFO}}},
		"of no size":    {Items: []Item{{Path: "a/f", Mode: TypeRegular, Size: -1}}},
		"one too many":  {Items: append(file("a/f"), file("a/g")...)},
		"name of none":  {Left: []Name{""}},
		"name of two":   {Left: []Name{"b/c"}},
		"name for up":   {Left: []Name{".."}},
		"name for here": {Left: []Name{"."}},
	} {
		if err := n.check(&Sight{Dir: "a", Names: []Name{"f"}}); err == nil {
			t.Errorf("%s: %+v is taken", name, n)
		}
	}
	for _, n := range []Seen{{Items: file("a/f")}, {Left: []Name{"f"}}, {Unread: true}} {
		if err := n.check(&Sight{Dir: "a", Names: []Name{"f"}}); err != nil {
			t.Errorf("%+v: %v", n, err)
		}
	}
	if err := (&Seen{Items: file("f")}).check(&Sight{}); err != nil {
		t.Errorf("in the root: %v", err)
	}
}
