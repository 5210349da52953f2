package walk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// lookedTree creates a tree with a large directory, deep ones, hard links across several of them, and odd names.
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
	for i := range maxServed + 100 {
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

// answers returns a remote that acts like another process: requests and replies pass through JSON.
func answers(asked *atomic.Int64) Remote {
	return func(ctx context.Context, s Request) (seen Reply, err error) {
		asked.Add(1)
		b, err := json.Marshal(s)
		var q Request
		if err == nil {
			err = json.Unmarshal(b, &q)
		}
		if err == nil {
			seen, err = q.Serve(ctx, source.OS{})
		}
		if err == nil {
			b, err = json.Marshal(seen)
		}
		seen = Reply{}
		if err == nil {
			err = json.Unmarshal(b, &seen)
		}
		return seen, err
	}
}

// TestWalkWithRemotes: a walk with remotes finds the same items as alone, whatever the remotes reply.
func TestWalkWithRemotes(t *testing.T) {
	dir := lookedTree(t)
	want, err := tree(context.Background(), source.OS{}, dir, 4)
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
	for name, o := range map[string]Remote{
		"helps": answers(&asked),
		"is lost": func(context.Context, Request) (Reply, error) {
			asked.Add(1)
			return Reply{}, syscall.ECONNRESET
		},
		"sees nothing": func(_ context.Context, s Request) (Reply, error) {
			asked.Add(1)
			return Reply{Left: s.Names, Unread: len(s.Names) == 0}, nil
		},
		"forgets": func(ctx context.Context, s Request) (Reply, error) {
			seen, err := answers(&asked)(ctx, s)
			if len(s.Names) > 0 {
				seen.Items = seen.Items[:len(seen.Items)/2]
			}
			return seen, err
		},
		"lies": func(ctx context.Context, s Request) (Reply, error) {
			seen, err := answers(&asked)(ctx, s)
			for i := range seen.Items {
				seen.Items[i].Path = "large/../" + seen.Items[i].Path
			}
			return seen, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			got, err := Config{FS: source.OS{}, Root: dir, Workers: 1, Remotes: []Remote{o, o}}.Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if asked.Load() == 0 {
				t.Error("no remote was asked")
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%d items of %d", len(got), len(want))
			}
		})
	}
}

// TestWalkWithRemotesNames: errors name the same path as in a walk without remotes.
func TestWalkWithRemotesNames(t *testing.T) {
	dir := lookedTree(t)
	if err := syscall.Mkfifo(filepath.Join(dir, "large/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	cfg := Config{FS: source.OS{}, Root: dir, Workers: 1, Remotes: []Remote{answers(&asked)}}
	if _, err := cfg.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "large/pipe: is a FIFO") {
		t.Errorf("%v, want the FIFO's name", err)
	}
	var skipped []string
	cfg.Skip = func(path string, _ error) { skipped = append(skipped, path) }
	items, err := cfg.Run(context.Background())
	if err != nil || len(skipped) != 1 || skipped[0] != filepath.Join(dir, "large/pipe") {
		t.Errorf("left out %q, %v", skipped, err)
	}
	for _, it := range items {
		if it.Path == "large/pipe" {
			t.Error("it is among the items nevertheless")
		}
	}
}

// emptyFS shows a directory as empty, as if a filesystem were not mounted.
type emptyFS struct {
	source.FS
	dir string
}

func (f emptyFS) Lstat(path string) (source.Info, error) {
	info, err := f.FS.Lstat(path)
	if path == f.dir {
		info.Mtime--
	}
	return info, err
}

func (f emptyFS) ReadDir(path string) ([]string, error) {
	if path == f.dir {
		return nil, nil
	}
	return f.FS.ReadDir(path)
}

// TestWalkWithRemotesElsewhere: a walk does not mistake a remote's different directory for the local one.
func TestWalkWithRemotesElsewhere(t *testing.T) {
	dir := t.TempDir()
	const n = 12
	for i := range n * n {
		p := filepath.Join(dir, fmt.Sprint(i/n), fmt.Sprint(i%n), "f")
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	fs := emptyFS{source.OS{}, filepath.Join(dir, "7/3")}
	var asked, wrong atomic.Int64
	o := func(ctx context.Context, s Request) (Reply, error) {
		if string(s.Dir) == "7/3" {
			wrong.Add(1)
		}
		return s.Serve(ctx, fs)
	}
	cfg := Config{FS: source.OS{}, Root: dir, Workers: 1, Remotes: []Remote{answers(&asked), o, answers(&asked)}}
	for wrong.Load() == 0 { // until the remote gets a request
		items, err := cfg.Run(context.Background())
		if want := 1 + n + n*n*2; err != nil || len(items) != want {
			t.Fatalf("%d items of %d, %v", len(items), want, err)
		}
	}
}

// wideFS is a source with latency, with directories of directories of one file each. It counts concurrent lookups.
type wideFS struct {
	source.FS
	now, most atomic.Int64
}

func (f *wideFS) look() {
	n := f.now.Add(1)
	for m := f.most.Load(); n > m && !f.most.CompareAndSwap(m, n); m = f.most.Load() {
	}
	time.Sleep(time.Millisecond) // on the clock of the synctest bubble
	f.now.Add(-1)
}

func (f *wideFS) Lstat(path string) (source.Info, error) {
	f.look()
	if strings.Count(path, "/") < 4 {
		return source.Info{Mode: source.TypeDir | 0o755}, nil
	}
	return source.Info{Mode: source.TypeRegular | 0o644, Nlink: 1}, nil
}

func (f *wideFS) ReadDir(path string) ([]string, error) {
	f.look()
	names := make([]string, [...]int{1: 30, 2: 30, 3: 1}[strings.Count(path, "/")])
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	return names, nil
}

// TestWalkWithRemotesIsBounded: only the local workers continue with a remote's reply.
func TestWalkWithRemotesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var here, there wideFS
		o := func(ctx context.Context, s Request) (Reply, error) { return s.Serve(ctx, &there) }
		items, err := Config{FS: &here, Root: "/r", Workers: 4, Remotes: []Remote{o, o, o, o}}.Run(t.Context())
		if want := 1 + 30 + 30*30*2; err != nil || len(items) != want {
			t.Fatalf("%d items of %d, %v", len(items), want, err)
		}
		if here.most.Load() > 4 {
			t.Errorf("%d concurrent lookups by 4 workers", here.most.Load())
		}
		if most := there.most.Load(); most > 4*requestsPerRemote*serveWorkers {
			t.Errorf("%d concurrent lookups by remotes", most)
		}
	})
}

// TestReplyCheck: items that were not requested are rejected.
func TestReplyCheck(t *testing.T) {
	file := func(p string) []source.Item { return []source.Item{{Path: p, Mode: source.TypeRegular | 0o600}} }
	for name, n := range map[string]Reply{
		"elsewhere":     {Items: file("b/f")},
		"deeper":        {Items: file("a/b/f")},
		"not clean":     {Items: file("a//f")},
		"itself":        {Items: file("a")},
		"of no type":    {Items: []source.Item{{Path: "a/f", Mode: 0o600}}},
		"a FIFO":        {Items: []source.Item{{Path: "a/f", Mode: source.TypeFIFO}}},
		"of no size":    {Items: []source.Item{{Path: "a/f", Mode: source.TypeRegular, Size: -1}}},
		"one too many":  {Items: append(file("a/f"), file("a/g")...)},
		"name of none":  {Left: []source.Name{""}},
		"name of two":   {Left: []source.Name{"b/c"}},
		"name for up":   {Left: []source.Name{".."}},
		"name for here": {Left: []source.Name{"."}},
	} {
		if err := n.check(&Request{Dir: "a", Names: []source.Name{"f"}}); err == nil {
			t.Errorf("%s: %+v is accepted", name, n)
		}
	}
	for _, n := range []Reply{{Items: file("a/f")}, {Left: []source.Name{"f"}}, {Unread: true}} {
		if err := n.check(&Request{Dir: "a", Names: []source.Name{"f"}}); err != nil {
			t.Errorf("%+v: %v", n, err)
		}
	}
	if err := (&Reply{Items: file("f")}).check(&Request{}); err != nil {
		t.Errorf("in the root: %v", err)
	}
}
