package netcluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/local"
)

// TestPeek is not a test but a wrapper of a daemon's command: it peeks at the key on the heartbeat, without consuming
// it, writes it to the file that is its first argument, and becomes the daemon.
func TestPeek(t *testing.T) {
	args := flag.Args()
	if len(args) < 2 {
		t.Skip("run by TestKeyIsNowhere")
	}
	b := make([]byte, 64<<10)
	n := 0
	for !bytes.Contains(b[:n], []byte("\n")) {
		if _, err := unix.Poll([]unix.PollFd{{Fd: daemon.HeartbeatFD, Events: unix.POLLIN}}, -1); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatalf("heartbeat: %v", err)
		}
		var err error
		n, _, err = unix.Recvfrom(daemon.HeartbeatFD, b, unix.MSG_PEEK) // it does not block
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) || n == 0 && err == nil {
			t.Fatalf("heartbeat: %d bytes, %v", n, err)
		}
		n = max(n, 0)
	}
	var s daemon.Start
	if err := json.Unmarshal(b[:bytes.IndexByte(b, '\n')], &s); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(args[0], []byte(s.Key), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Fatal(syscall.Exec(args[1], args[1:], os.Environ()))
}

// TestKeyIsNowhere: the job key is in no file of the job, no log, no command line, no environment, and no output of a
// daemon.
func TestKeyIsNowhere(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	dir, err := os.MkdirTemp("", "key") // short, as socket paths are limited
	if err != nil {
		t.Fatal(err)
	}
	keys := t.TempDir()
	bin := Binary(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	job := filepath.Join(dir, "job")
	s, err := local.Up(ctx, local.Config{Dir: job, Nodes: 3, Program: bin, Wrap: func(i int) []string {
		return []string{os.Args[0], "-test.run=^TestPeek$", "--", filepath.Join(keys, fmt.Sprint(i))}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := local.Down(job); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	key, err := os.ReadFile(filepath.Join(keys, "0"))
	if err != nil || len(key) != 64 {
		t.Fatalf("key %q, %v", key, err)
	}
	raw, err := hex.DecodeString(string(key))
	if err != nil {
		t.Fatal(err)
	}
	look := func(where string, b []byte) {
		t.Helper()
		for what, k := range map[string]string{
			"hex": string(key), "HEX": strings.ToUpper(string(key)), "bytes": string(raw),
			"base64": base64.StdEncoding.EncodeToString(raw)[:40], "decimal": strings.Trim(fmt.Sprint(raw[:16]), "[]"),
		} {
			if bytes.Contains(b, []byte(k)) {
				t.Errorf("%s has the key, as %s", where, what)
			}
		}
	}
	useAll(ctx, t, s, look)
	for _, n := range s.Nodes {
		for _, f := range []string{"cmdline", "environ"} {
			p := fmt.Sprintf("/proc/%d/%s", n.PID, f)
			b, err := os.ReadFile(p)
			if err != nil || len(b) == 0 {
				t.Errorf("%s: %d bytes, %v", p, len(b), err)
			}
			look(p, b)
		}
	}
	seen := 0
	err = filepath.WalkDir(filepath.Join(job, ".bivouac"), func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the stores are in use
		}
		seen++
		look(p, b)
		return err
	})
	if err != nil || seen < 10 {
		t.Errorf("looked at %d files, %v", seen, err)
	}
}

// useAll makes the daemons produce all kinds of files and output.
func useAll(ctx context.Context, t *testing.T, s *local.State, look func(string, []byte)) {
	t.Helper()
	dir, _ := makeTree(t)
	ctl := daemon.NewCtl(s.Nodes[1].Sock)
	if _, err := ctl.StageIn(ctx, job.Dataset{Source: dir, Name: "set"}); err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		eventually(t, "the dataset is ready", func() bool {
			st, err := daemon.NewCtl(n.Sock).Status(ctx)
			return err == nil && len(st.Datasets) == 1 && st.Datasets[0].Ready
		})
		m, err := daemon.NewCtl(n.Sock).Metrics(ctx)
		if err != nil {
			t.Error(err)
		}
		look("metrics of "+n.Host, []byte(m))
		for _, f := range []string{"status", "stats", "map"} {
			p := filepath.Join(n.Mount, ".bivouac", f)
			b, err := os.ReadFile(p)
			if err != nil || len(b) == 0 {
				t.Errorf("%s: %d bytes, %v", p, len(b), err)
			}
			look(p, b)
		}
	}
}
