package txn_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

// onDisk returns a job whose stores are in dir.
func onDisk(t testing.TB, dir string) *tree {
	t.Helper()
	j := &job{TB: t, away: time.Nanosecond, down: make(map[metadata.NodeID]bool), ops: make(map[string]int)}
	for i := range 4 {
		j.nodes = append(j.nodes, j.start(metadata.NodeID(i), vfs.Default, filepath.Join(dir, fmt.Sprint(i))))
	}
	w := &tree{job: j, realm: realm{j}}
	for i := range w.d {
		name := fmt.Sprint("d", i)
		if e, err := w.realm.Lookup(ctx, root, name); err == nil {
			w.d[i] = e.Ino
		} else {
			w.d[i] = w.mkdir(root, name)
		}
	}
	return w
}

const killDir = "BIVOUAC_TEST_KILL" // where the process to be killed has its stores

// TestKill repeatedly kills, with SIGKILL, a process with the homes of a job during work. Each time the tree is
// consistent, and the last acknowledged rename is in effect.
func TestKill(t *testing.T) {
	if dir := os.Getenv(killDir); dir != "" {
		work(onDisk(t, dir))
		return
	}
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 8 {
		cmd := exec.Command(exe, "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), killDir+"="+dir)
		said := killed(t, cmd, 20+rand.IntN(200))
		t.Run(fmt.Sprint(round), func(t *testing.T) { // closes its stores at its end
			w := onDisk(t, dir)
			w.settle()
			w.check()
			var at int
			var name string
			if _, err := fmt.Sscanf(said, "%d %s", &at, &name); err != nil {
				t.Fatalf("the process said %q", said)
			}
			found := 0
			for _, d := range w.d {
				es, err := w.realm.ReadDir(ctx, d, "", 1000)
				w.must(err)
				for _, e := range es {
					if old, is := strings.CutPrefix(e.Name, "t"); is {
						found++
						if old < name[1:] {
							t.Errorf("%q is there, %q was acknowledged", e.Name, name)
						}
					}
				}
			}
			if found != 1 {
				t.Errorf("the file that moves has %d names", found)
			}
		})
	}
}

// killed runs cmd until it has printed a number of lines, kills it and returns the last line.
func killed(t *testing.T, cmd *exec.Cmd, lines int) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watch := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer watch.Stop()
	last := ""
	r := bufio.NewScanner(out)
	for r.Scan() {
		last = r.Text()
		if lines--; lines == 0 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || st.Signal() != syscall.SIGKILL || lines > 0 {
		t.Fatalf("the process ended by itself: %v, %q", err, last)
	}
	return last
}

// work moves one file for ever, and prints its place; other goroutines perform other operations.
func work(w *tree) {
	w.settle()
	at, name, n := 0, "", 0
	for i, d := range w.d {
		es, err := w.realm.ReadDir(ctx, d, "", 1000)
		w.must(err)
		for _, e := range es {
			if strings.HasPrefix(e.Name, "t") {
				at, name = i, e.Name
			}
		}
	}
	if name == "" {
		name = fmt.Sprintf("t%09d", 0)
		w.create(w.d[0], name)
	}
	_, err := fmt.Sscanf(name, "t%d", &n)
	w.must(err)
	for i := range 3 {
		go jostle(w, i)
	}
	for {
		n++
		to, next := (at+1+rand.IntN(3))%4, fmt.Sprintf("t%09d", n)
		w.must(w.move(w.d[at], name, w.d[to], next, 0))
		at, name = to, next
		fmt.Println(at, name)
	}
}

// jostle performs random operations, which may fail, on a few names.
func jostle(w *tree, i int) {
	for {
		from, to := w.d[rand.IntN(4)], w.d[rand.IntN(4)]
		name, other := fmt.Sprint("n", rand.IntN(4)), fmt.Sprint("n", rand.IntN(4))
		switch (i + rand.IntN(4)) % 6 {
		case 0:
			_, _ = w.realm.Create(ctx, from, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
			_, _ = w.realm.Mkdir(ctx, to, other, metadata.New{Mode: 0o755})
		case 1:
			if e, err := w.realm.Lookup(ctx, from, name); err == nil {
				_, _ = w.realm.Link(ctx, e.Ino, to, other)
			}
		case 2:
			_, _ = w.realm.Unlink(ctx, from, name)
			_ = w.realm.Rmdir(ctx, to, other)
		case 3:
			_ = w.move(from, name, to, other, metadata.RenameExchange)
		case 4:
			if a, err := w.realm.at(from).CreateUnnamed(ctx, from, metadata.New{Mode: syscall.S_IFREG | 0o600}); err == nil {
				_, _ = w.realm.Link(ctx, a.Ino, to, other)
			}
		default:
			_ = w.move(from, name, to, other, 0)
		}
	}
}
