package pitch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
)

func TestRelabel(t *testing.T) {
	const in = `# HELP bivouac_a A.
# TYPE bivouac_a gauge
bivouac_a 1
bivouac_a 2
bivouac_b{x="1"} 2.5e+06
bivouac_b{x="2",y="a\"b"} NaN
bivouac_c_bucket{le="+Inf"} +Inf
bivouac_a{jobid="8"} 1
bivouac_daemon_up 1
node_load1 7
bivouac_a 1 1700000000
bivouac_A 1
bivouac_b{x="1} 2
bivouac_b{} 3
bivouac_b{__name__="node_load1"} 1
bivouac_b{z="1",z="2"} 1
bivouac_a{w="jobid=\"8\""} 4
bivouac_b 1e
bivouac_b{x="1"y="2"} 1
bivouac_b{x="1",} 1
bivouac_b{,x="1"} 1
bivouac_b{x="1",,y="2"} 1
bivouac_b{x="` + "\x00" + `"} 1
not a sample
`
	const want = `bivouac_a{jobid="7"} 1
bivouac_b{jobid="7",x="1"} 2.5e+06
bivouac_b{jobid="7",x="2",y="a\"b"} NaN
bivouac_c_bucket{jobid="7",le="+Inf"} +Inf
bivouac_b{jobid="7"} 3
bivouac_a{jobid="7",w="jobid=\"8\""} 4
`
	long := `bivouac_a{x="` + strings.Repeat("x", maxSample) + "\"} 1\n"
	var many strings.Builder
	for i := range maxLabels {
		fmt.Fprintf(&many, `,x%s="1"`, strings.Repeat("x", i))
	}
	var b bytes.Buffer
	if relabel(&b, []byte(long+in+long+"bivouac_a{"+many.String()[1:]+"} 1\nbivouac_d 1e9"), "7"); b.String() != want+"bivouac_d{jobid=\"7\"} 1e9\n" {
		t.Errorf("relabel = %s, want %s", b.String(), want)
	}
}

// FuzzRelabel: whatever a daemon answers, each line is a sample of the job.
func FuzzRelabel(f *testing.F) {
	f.Add("bivouac_a{x=\"1\"} 2\nbivouac_b 1\n")
	f.Add("bivouac_a{x=\"\\\"\"} 2\r\n# TYPE a b\n")
	f.Fuzz(func(t *testing.T, in string) {
		var b bytes.Buffer
		relabel(&b, []byte(in), "7")
		for line := range strings.Lines(b.String()) {
			if !sample.MatchString(strings.TrimSuffix(line, "\n")) || !strings.Contains(line, `{jobid="7"`) || strings.Contains(line, `,jobid="`) && !strings.Contains(line, `\"`) {
				t.Errorf("relabel of %q has %q", in, line)
			}
		}
	})
}

// TestDaemonMetrics: metrics are accepted only from a process of the user, and only up to a limit.
func TestDaemonMetrics(t *testing.T) {
	k := &keeper{rec: &record{Site: Site{Run: t.TempDir()}, Job: job.File{ID: "7", UID: uint32(os.Getuid())}}}
	k.place = k.rec.place()
	socket := filepath.Join(k.place.ctl(), "ctl.sock")
	if err := os.MkdirAll(k.place.ctl(), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	body := "bivouac_a 1\n"
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, body) // the client may have stopped reading
		}
	})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	uid := uint32(os.Getuid())
	if b, err := daemonMetrics(t.Context(), k.place, uid); err != nil || string(b) != body {
		t.Errorf("daemonMetrics = %q, %v", b, err)
	}
	if _, err := daemonMetrics(t.Context(), k.place, uid+1); !errors.Is(err, syscall.EPERM) {
		t.Errorf("a socket of another user: %v, want EPERM", err)
	}
	body = strings.Repeat("x", maxMetrics+1)
	if _, err := daemonMetrics(t.Context(), k.place, uid); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too much: %v", err)
	}
	if got := string(k.metrics(t.Context())); got != "bivouac_daemon_up{jobid=\"7\"} 0\nbivouac_daemon_restarts_total{jobid=\"7\"} 0\n" {
		t.Errorf("metrics with too much of a daemon's = %s", got)
	}
	body = "bivouac_a 1\n"
	if got := string(k.metrics(t.Context())); got != "bivouac_daemon_up{jobid=\"7\"} 1\nbivouac_daemon_restarts_total{jobid=\"7\"} 0\nbivouac_a{jobid=\"7\"} 1\n" {
		t.Errorf("metrics = %s", got)
	}
}

// TestMetricsAttacks: root neither follows a link nor accesses a hanging FUSE filesystem that a user has put in place
// of the control socket or of its directory.
func TestMetricsAttacks(t *testing.T) {
	needFuse(t)
	for _, c := range []struct {
		what string
		make func(ctl, socket string) error
		want syscall.Errno
	}{
		{"a link", func(ctl, socket string) error {
			return errors.Join(os.Rename(socket, socket+".moved"), os.Symlink("ctl.sock.moved", socket))
		}, syscall.EPERM},
		{"a linked directory", func(ctl, _ string) error {
			return errors.Join(os.Rename(ctl, ctl+".moved"), os.Symlink("d.moved", ctl))
		}, syscall.ELOOP},
		{"a file", func(_, socket string) error { return errors.Join(os.Remove(socket), os.WriteFile(socket, nil, 0o600)) }, syscall.EPERM},
		{"a socket of another user", func(_, socket string) error { return os.Lchown(socket, 12345, 12345) }, syscall.EPERM},
		{"a mount that hangs", func(ctl, _ string) error { hanging(t, ctl); return nil }, syscall.EXDEV},
	} {
		dir, err := os.MkdirTemp("", "metrics") // a short path, since it contains a socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		p := place{Site{Run: dir}, "7"}
		socket := filepath.Join(p.ctl(), "ctl.sock")
		if err := os.MkdirAll(p.ctl(), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false) // unlinking would access what is mounted there
		conn, err := dialDaemon(t.Context(), p, 0)
		if err != nil {
			t.Fatalf("before %s: %v", c.what, err)
		}
		_ = conn.Close()
		if err := c.make(p.ctl(), socket); err != nil {
			t.Fatal(err)
		}
		if conn, err := dialDaemon(t.Context(), p, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.what, conn, err, c.want)
		}
		_ = l.Close()
	}
}

// TestTextfile: the metrics of a job exist as long as the job, also with a log in JSON.
func TestTextfile(t *testing.T) {
	n := newNode(t, wellBehaved)
	n.site.MetricsTextfile, n.site.LogFormat = t.TempDir(), job.LogJSON
	n.pitched()
	want := "bivouac_daemon_up{jobid=\"17\"} 0\nbivouac_daemon_restarts_total{jobid=\"17\"} 0\n" // the fake daemon has no control socket
	soon(t, "the metrics are there", func() bool {
		b, err := os.ReadFile(n.place().textfile())
		return err == nil && string(b) == want
	})
	log, err := os.ReadFile(n.place().log())
	if err != nil || !strings.Contains(string(log), `"msg":"job is ready on this node"`) {
		t.Errorf("the log is %q, %v", log, err)
	}
	for line := range strings.Lines(string(log)) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON in the log: %q", line)
		}
	}
	if got := n.epilog(); got != exitOK {
		t.Errorf("Epilog = %d, said %q", got, n.said.String())
	}
	if left, err := os.ReadDir(n.site.MetricsTextfile); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// listenSyslog starts a syslog socket; next returns the next message received.
func listenSyslog(t *testing.T) (socket string, next func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "log")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return socket, func() string {
		t.Helper()
		b := make([]byte, 4096)
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// TestLostNodeInSyslog: there is exactly one event for each lost node of the job, whatever the daemon sends.
func TestLostNodeInSyslog(t *testing.T) {
	socket, next := listenSyslog(t)
	log := logrus.New()
	log.SetOutput(io.Discard)
	rec := &record{Job: job.File{ID: "7", UID: 5001, Hosts: []string{"node1", "node2"}}}
	k := &keeper{rec: rec, place: rec.place(), syslog: socket, log: logrus.NewEntry(log)}
	c := &child{k: k}
	for range 9 {
		for _, host := range []string{"", "node2\nforged", "node2"} {
			c.noteTrouble(daemon.Note{Lost: host})
		}
	}
	k.exports.Wait()
	for range rec.Job.Hosts { // never more events than nodes
		if got := next(); !strings.HasPrefix(got, "<27>") || !strings.HasSuffix(got, "]: job 7 of uid 5001: node node2 is lost: its daemon, its machine or its network is down") {
			t.Errorf("syslog has %q", got)
		}
	}
	if err := logEvent(socket, "the next"); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.HasSuffix(got, ": the next") {
		t.Errorf("one event too many: %q", got)
	}
}
