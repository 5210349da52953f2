package pitch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/mounts"
)

// With metrics_textfile, the keeper writes the metrics of its job to a file that node_exporter reads. The daemon is a
// process of the user: its answer is bounded, and only samples named bivouac_… are accepted, without comments, so that
// it can break neither the metrics of the node nor those of another job.

const (
	metricsEvery = 15 * time.Second
	metricsTime  = 5 * time.Second // for the daemon's answer
	maxMetrics   = 4 << 20         // bytes, of one job
)

// textfile returns the file of the job's metrics; "" if the site wants none.
func (p place) textfile() string {
	if p.site.MetricsTextfile == "" {
		return ""
	}
	return filepath.Join(p.site.MetricsTextfile, "bivouac_"+p.job+".prom")
}

// removeTextfile removes the file, and an unfinished one.
func (p place) removeTextfile() error {
	if p.textfile() == "" {
		return nil
	}
	for _, f := range []string{p.textfile() + ".new", p.textfile()} {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// startExport starts to write the metrics periodically, until stopExport.
func (k *keeper) startExport() {
	if k.place.textfile() == "" {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.exports.Go(func() {
		t := time.NewTicker(metricsEvery)
		defer t.Stop()
		failed := false
		for ctx.Err() == nil {
			err := k.export(ctx)
			if err != nil && !failed {
				k.log.WithError(err).Warn("could not write the metrics of this node; trying again")
			}
			failed = err != nil
			select {
			case <-ctx.Done():
			case <-t.C:
			}
		}
	})
	k.endExport = cancel
}

// stopExport stops the export and waits until no write is in progress.
func (k *keeper) stopExport() {
	k.endExport()
	k.exports.Wait()
}

// export writes the metrics once.
func (k *keeper) export(ctx context.Context) error {
	text := k.metrics(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return replaceFile(k.place.textfile(), text, 0o644)
}

// metrics returns the samples of the job.
func (k *keeper) metrics(ctx context.Context) []byte {
	var b bytes.Buffer
	text, err := daemonMetrics(ctx, k.place, k.rec.Job.UID)
	up := 1
	if err != nil { // it restarts, or hangs, which the watchdog handles
		up = 0
	}
	fmt.Fprintf(&b, "bivouac_daemon_up{jobid=%q} %d\nbivouac_daemon_restarts_total{jobid=%q} %d\n", k.place.job, up, k.place.job, k.restarts.Load())
	relabel(&b, text, k.place.job)
	return b.Bytes()
}

// dialDaemon connects to the control socket of a daemon, in a directory of the user. It accepts only a socket of the
// user on which a process of the user listens, and enters no mount there.
func dialDaemon(ctx context.Context, p place, uid uint32) (net.Conn, error) {
	j := job.File{Dirs: job.Dirs{Run: p.ctl()}}
	socket, err := mounts.BeneathPath(p.ctl(), filepath.Base(j.CtlSocket()))
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(socket.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Uid != uid {
		return nil, fmt.Errorf("%s is not a socket of uid %d: %w", j.CtlSocket(), uid, unix.EPERM)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", mounts.Reopen(socket))
	if err != nil {
		return nil, err
	}
	peer, err := peerUID(conn.(*net.UnixConn))
	if err == nil && peer != uid {
		err = fmt.Errorf("%s belongs to uid %d, not %d: %w", j.CtlSocket(), peer, uid, unix.EPERM)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// daemonMetrics asks the daemon of a job.
func daemonMetrics(ctx context.Context, p place, uid uint32) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTime)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialDaemon(ctx, p, uid) }
	c := http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://bivouac/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the daemon's metrics: %s", resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics+1))
	if err == nil && len(b) > maxMetrics {
		err = fmt.Errorf("the daemon has more than %d bytes of metrics", maxMetrics)
	}
	return b, err
}

const (
	maxSample = 4 << 10 // bytes of a line
	maxLabels = 32
)

// sample matches a line of the Prometheus text format without a timestamp: its name, its labels and its value. Each
// character allows only one way to continue, so that matching is fast for every line.
var sample = regexp.MustCompile(`^(bivouac_[a-z0-9_]+)(?:\{((?:` + oneLabel + `(?:,` + oneLabel + `)*)?)\})? ([-+.0-9eINafn]+)$`)

// label matches a label of a sample.
var label = regexp.MustCompile(oneLabel)

const oneLabel = `([a-z][a-z_]*)="(?:[^"\\\x00]|\\[\\"n])*"`

// own reports whether a sample of this name belongs to the keeper, not the daemon.
func own(name []byte) bool {
	return bytes.HasPrefix(name, []byte("bivouac_daemon_"))
}

// acceptable reports whether a parser of the text format accepts the sample m, with a label jobid.
func acceptable(m [][]byte) bool {
	if m == nil || !utf8.Valid(m[0]) || own(m[1]) {
		return false
	}
	names := map[string]bool{"jobid": true}
	for _, l := range label.FindAllSubmatch(m[2], maxLabels) {
		if names[string(l[1])] || len(names) == maxLabels {
			return false
		}
		names[string(l[1])] = true
	}
	_, err := strconv.ParseFloat(string(m[len(m)-1]), 64)
	return err == nil
}

// relabel writes the samples of text, without duplicates, with the job as a further label. It drops all other lines.
func relabel(w *bytes.Buffer, text []byte, job string) {
	seen := make(map[string]bool)
	for line := range bytes.Lines(text) {
		if len(line) > maxSample {
			continue
		}
		m := sample.FindSubmatch(bytes.TrimSuffix(line, []byte("\n")))
		if !acceptable(m) {
			continue
		}
		series := fmt.Sprintf("%s{jobid=%q", m[1], job)
		if len(m[2]) > 0 {
			series += "," + string(m[2])
		}
		if !seen[series] {
			seen[series] = true
			fmt.Fprintf(w, "%s} %s\n", series, m[len(m)-1])
		}
	}
}
