package pitch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/rpc"
)

// fakeSealer seals for uid and opens everything.
type fakeSealer struct{ uid string }

func (f fakeSealer) seal(_ context.Context, payload []byte) ([]byte, error) {
	return []byte("MUNGE:" + f.uid + ":" + string(payload)), nil
}

func (f fakeSealer) open(_ context.Context, c []byte) ([]byte, string, error) {
	uid, payload, ok := bytes.Cut(bytes.TrimPrefix(c, []byte("MUNGE:")), []byte(":"))
	if !ok {
		return nil, "", errors.New("damaged")
	}
	return payload, string(uid), nil
}

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(&bytes.Buffer{})
	return logrus.NewEntry(l)
}

// freeAddrs returns n loopback addresses that were free a moment ago.
func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// squat serves bytes that are not a key at addr.
func squat(t *testing.T, addr string, text []byte) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(text)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
}

func sealed(t *testing.T, s sealer, job string, restart int, key rpc.Key) []byte {
	t.Helper()
	b, err := sealKey(t.Context(), s, job, restart, key)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestKeyPassesSquatters(t *testing.T) {
	addrs := freeAddrs(t, 6)
	key, other := rpc.Key{1}, rpc.Key{2}
	root := fakeSealer{"0"}
	squat(t, addrs[0], sealed(t, fakeSealer{"1000"}, "7", 1, other)) // a user's own credential
	squat(t, addrs[1], sealed(t, root, "8", 1, other))               // another job's
	squat(t, addrs[2], sealed(t, root, "7", 0, other))               // an earlier start of the job
	squat(t, addrs[3], bytes.Repeat([]byte("MUNGE:"), maxCredential))
	squat(t, addrs[4], nil)
	var hits countHook
	log := quiet()
	log.Logger.AddHook(&hits)
	m := meeting{job: "7", restart: 1, addrs: addrs, sealer: root, log: log}
	s, err := serveKey(t.Context(), m, key)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got, err := fetchKey(ctx, m)
	if err != nil || got != key {
		t.Errorf("fetchKey = %v, is the key: %v", err, got == key)
	}
	if hits.n != 5 {
		t.Errorf("%d refusals were logged, want 5", hits.n)
	}
}

// countHook counts log entries.
type countHook struct{ n int }

func (h *countHook) Levels() []logrus.Level   { return logrus.AllLevels }
func (h *countHook) Fire(*logrus.Entry) error { h.n++; return nil }

func TestKeyIsNamedWhenItDoesNotCome(t *testing.T) {
	m := meeting{job: "7", addrs: freeAddrs(t, 1), sealer: fakeSealer{"0"}, log: quiet()}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := fetchKey(ctx, m); err == nil || !strings.Contains(err.Error(), "the first host 127.0.0.1 did not hand out the job key in time") {
		t.Errorf("fetchKey = %v", err)
	}
}

func TestSilentConnectionsHoldNobody(t *testing.T) {
	m := meeting{job: "7", addrs: freeAddrs(t, 1), sealer: fakeSealer{"0"}, log: quiet()}
	s, err := serveKey(t.Context(), m, rpc.Key{9})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		c, err := net.Dial("tcp", m.addrs[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if k, err := fetchKey(ctx, m); err != nil || k != (rpc.Key{9}) {
		t.Errorf("fetchKey = %v", err)
	}
	s.close()
	if l, err := net.Listen("tcp", m.addrs[0]); err != nil {
		t.Errorf("the port is not free after close: %v", err)
	} else {
		_ = l.Close()
	}
}

func TestParseKey(t *testing.T) {
	if _, err := parseKey(strings.Repeat("ab", 32)); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "zz", strings.Repeat("ab", 31), strings.Repeat("ab", 33), strings.Repeat("00", 32)} {
		if _, err := parseKey(bad); err == nil {
			t.Errorf("parseKey(%q) is no error", bad)
		} else if bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("parseKey shows what might be a key: %v", err)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, ports := range []int{64, 65, 4000} {
		site := DefaultSite()
		site.Ports = ports
		for job := range 200 {
			id := strconv.Itoa(job + 1)
			addrs := append(Addrs(site, id, 0, []string{"a", "b"}), meetingAddrs(site, id, 0, "m"))
			for i, a := range addrs {
				lo, hi := site.Port+ports/meetShare, site.Port+ports
				if i == 2 {
					lo, hi = site.Port, site.Port+ports/meetShare
				}
				checkAddrs(t, a, []string{"a", "b", "m"}[i], lo, hi)
			}
			if again := Addrs(site, id, 0, []string{"a", "b"}); !slices.Equal(again[1], addrs[1]) {
				t.Fatalf("Addrs differ: %v and %v", again[1], addrs[1])
			}
		}
	}
	site := DefaultSite()
	a, b := Addrs(site, "5", 0, []string{"h"}), Addrs(site, "5", 1, []string{"h"})
	if slices.Equal(a[0], b[0]) {
		t.Error("two starts of a job have the same ports")
	}
}

func checkAddrs(t *testing.T, addrs []string, host string, lo, hi int) {
	t.Helper()
	seen := map[string]bool{}
	for _, a := range addrs {
		h, port, err := net.SplitHostPort(a)
		p, _ := strconv.Atoi(port)
		if err != nil || h != host || p < lo || p >= hi || seen[a] {
			t.Fatalf("candidates %v of %s: %s is wrong, want distinct ports in [%d, %d)", addrs, host, a, lo, hi)
		}
		seen[a] = true
	}
	if len(addrs) != candidates {
		t.Fatalf("%d candidates, want %d", len(addrs), candidates)
	}
}

// startMunged runs a munged for the test.
func startMunged(t *testing.T) munge {
	t.Helper()
	needRoot(t)
	for _, p := range []string{"/usr/sbin/munged", mungeProgram, unmungeProgram} {
		if _, err := os.Stat(p); err != nil {
			t.Skip("needs munge: ", err)
		}
	}
	dir, err := os.MkdirTemp("", "munge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/key", bytes.Repeat([]byte("k3y!"), 32), 0o400)); err != nil {
		t.Fatal(err)
	}
	cred := mungeUser(t, dir)
	in := func(n string) string { return filepath.Join(dir, n) }
	cmd := exec.Command("/usr/sbin/munged", "--foreground", "--force", "--key-file="+in("key"), "--socket="+in("sock"),
		"--pid-file="+in("pid"), "--log-file="+in("log"), "--seed-file="+in("seed"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Pdeathsig: syscall.SIGKILL}
	var msg bytes.Buffer
	cmd.Stderr = &msg
	if err := cmd.Start(); err != nil {
		t.Skip("munged does not start: ", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := poll(ctx, func() bool { return unix.Access(in("sock"), unix.W_OK) == nil }); err != nil {
		t.Skip("munged does not come up: ", msg.String())
	}
	return munge{in("sock")}
}

// mungeUser gives dir to the user munge, under which munged insists on running.
func mungeUser(t *testing.T, dir string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("munge")
	if err != nil {
		t.Skip("needs the user munge: ", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chown(dir+"/key", uid, gid)); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func TestMunge(t *testing.T) {
	m := startMunged(t)
	key := rpc.Key{1, 2, 3}
	c := sealed(t, m, "7", 2, key)
	if bytes.Contains(c, []byte("010203")) {
		t.Error("the key is in the credential as it is")
	}
	if got, err := openKey(t.Context(), m, c, "7", 2); err != nil || got != key {
		t.Errorf("openKey = %v", err)
	}
	if _, err := openKey(t.Context(), m, c, "7", 2); err == nil {
		t.Error("a replayed credential was opened")
	}
	if _, err := openKey(t.Context(), m, sealed(t, m, "8", 2, key), "7", 2); err == nil || !strings.Contains(err.Error(), `job "8"`) {
		t.Errorf("openKey of another job = %v", err)
	}
	as := func(name string, in []byte, args ...string) ([]byte, error) {
		cmd := exec.Command(name, append(args, "--socket="+m.socket)...)
		cmd.Stdin = bytes.NewReader(in)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd.Output()
	}
	if out, err := as(unmungeProgram, sealed(t, m, "7", 2, key)); err == nil {
		t.Errorf("a user can open the credential: %q", out)
	}
	forged, err := as(mungeProgram, []byte(`{"job":"7","restart":2,"key":"`+strings.Repeat("ab", 32)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openKey(t.Context(), m, forged, "7", 2); err == nil || !strings.Contains(err.Error(), "not by root") {
		t.Errorf("openKey of a user's credential = %v", err)
	}
}

// TestTwoNodes pitches one job on two nodes, which have loopback addresses, and authenticate with munge or with a key
// from the submission.
func TestTwoNodes(t *testing.T) {
	for _, way := range []string{"munge", "submission"} {
		t.Run(way, func(t *testing.T) {
			socket := ""
			if way == "munge" {
				socket = startMunged(t).socket
			}
			var nodes []*node
			for i := range 2 {
				n := newNode(t, wellBehaved)
				n.site.MungeSocket = socket
				n.vars["SLURM_JOB_NODELIST"] = "127.0.0.[1-2]"
				n.vars["SLURMD_NODENAME"] = fmt.Sprintf("127.0.0.%d", i+1)
				if way == "submission" {
					n.site.Munge = MungeOff
					n.vars[keyVar] = strings.Repeat("5c", 32)
				}
				nodes = append(nodes, n)
			}
			var wg sync.WaitGroup
			for _, n := range nodes {
				wg.Add(1)
				go func() {
					defer wg.Done()
					n.prolog()
				}()
			}
			wg.Wait()
			for _, n := range nodes {
				n.wantState(State{Ready, n.place().mount()})
			}
			if a, b := nodes[0].seen().KeyHash, nodes[1].seen().KeyHash; a != b {
				t.Error("the nodes have different keys")
			}
			for _, n := range nodes {
				n.keyIsNowhere(way)
			}
		})
	}
}

// keyIsNowhere looks for the key in the places where it must not be.
func (n *node) keyIsNowhere(way string) {
	n.t.Helper()
	if way != "submission" {
		return // only then is the key known
	}
	key := []byte(n.vars[keyVar])
	for _, p := range []process{n.keeper(), n.daemon()} {
		for _, f := range []string{"cmdline", "environ"} {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid, f)); err != nil || bytes.Contains(b, key) {
				n.t.Errorf("the key is in %s of process %d (%v)", f, p.pid, err)
			}
		}
	}
	for _, dir := range append(n.place().allStores(), n.place().run(), n.site.Log) {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, key) {
				n.t.Errorf("the key is in %s", path)
			}
			return err
		})
		if err != nil {
			n.t.Error(err)
		}
	}
}
