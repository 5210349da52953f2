package rpc

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// ServerStats holds the counters of a server.
type ServerStats struct {
	Conns    int64             `json:"conns"`    // open now, those in the handshake included
	Accepted int64             `json:"accepted"` // handshakes that succeeded
	InFlight int64             `json:"in_flight"`
	Requests map[wire.Op]int64 `json:"requests"`
	Errors   map[wire.Op]int64 `json:"errors"` // replies with a status
	Panics   int64             `json:"panics"`
	BytesIn  int64             `json:"bytes_in"`
	BytesOut int64             `json:"bytes_out"`
	FileOut  int64             `json:"file_out"` // of BytesOut: data by sendfile
	Memory   MemoryStats       `json:"memory"`
	Rejected Rejected          `json:"rejected"`
}

// Rejected counts the connections that a server closed, by cause.
type Rejected map[string]int64

// causes lists the reasons for which a server closes a connection, with their errors.
var causes = [...]struct {
	name string
	err  error
}{
	{"key", errKey},                // the peer lacks the job's key, or has another job's name
	{"replay", errReplay},          // a handshake that was seen before
	{"oversize", wire.ErrTooLarge}, // a frame larger than allowed
	{"slow", errSlow},              // handshake or frame not complete in time, or replies not read
	{"version", wire.ErrVersion},   // another version of the protocol
	{"node", errOtherNode},         // the peer wanted another node
	{"malformed", errNotAsked},     // not our protocol, or a damaged frame
	{"malformed", wire.ErrMalformed},
	{"full", errFull},                // too many connections
	{"hangup", errHangup},            // the peer closed before its Hello
	{"protection", errProtection},    // the peer has another encrypt or auth
	{"tampered", secure.ErrTampered}, // received bytes differ from those that the peer sent
}

type serverStats struct {
	conns, accepted, inFlight, panics atomic.Int64
	bytesIn, bytesOut, fileOut        atomic.Int64
	requests, errors                  [wire.MaxOp]atomic.Int64
	rejected                          [len(causes)]atomic.Int64
}

// reject counts a connection that was closed for err; it returns false if err is no violation but a normal close.
func (s *serverStats) reject(err error) bool {
	for i, c := range causes {
		if errors.Is(err, c.err) {
			s.rejected[i].Add(1)
			return true
		}
	}
	return false
}

func (s *serverStats) snapshot() ServerStats {
	rejected := make(Rejected)
	for i, c := range causes {
		rejected[c.name] += s.rejected[i].Load()
	}
	return ServerStats{
		Rejected: rejected,
		Conns:    s.conns.Load(),
		Accepted: s.accepted.Load(),
		InFlight: s.inFlight.Load(),
		Requests: byOp(&s.requests),
		Errors:   byOp(&s.errors),
		Panics:   s.panics.Load(),
		BytesIn:  s.bytesIn.Load(),
		BytesOut: s.bytesOut.Load(),
		FileOut:  s.fileOut.Load(),
	}
}

// PeersStats holds the counters of the client side.
type PeersStats struct {
	Conns       int64             `json:"conns"` // open now
	Dials       int64             `json:"dials"` // attempts, each over all of a node's addresses
	DialsFailed int64             `json:"dials_failed"`
	Calls       map[wire.Op]int64 `json:"calls"`
	Errors      map[wire.Op]int64 `json:"errors"` // failed calls
	TimedOut    int64             `json:"timed_out"`
	Interrupted int64             `json:"interrupted"`
	Lost        int64             `json:"lost"`      // lost with their connection
	FailFast    int64             `json:"fail_fast"` // refused during back-off
	BytesIn     int64             `json:"bytes_in"`
	BytesOut    int64             `json:"bytes_out"`
	Piped       int64             `json:"piped"`      // of BytesIn: data that went into pipes
	PipesFull   int64             `json:"pipes_full"` // replies that did not fit there
}

type peersStats struct {
	conns, dials, dialsFailed             atomic.Int64
	timedOut, interrupted, lost, failFast atomic.Int64
	bytesIn, bytesOut, piped, pipesFull   atomic.Int64
	calls, errors                         [wire.MaxOp]atomic.Int64
}

func (s *peersStats) snapshot() PeersStats {
	return PeersStats{
		Conns:       s.conns.Load(),
		Dials:       s.dials.Load(),
		DialsFailed: s.dialsFailed.Load(),
		Calls:       byOp(&s.calls),
		Errors:      byOp(&s.errors),
		TimedOut:    s.timedOut.Load(),
		Interrupted: s.interrupted.Load(),
		Lost:        s.lost.Load(),
		FailFast:    s.failFast.Load(),
		BytesIn:     s.bytesIn.Load(),
		BytesOut:    s.bytesOut.Load(),
		Piped:       s.piped.Load(),
		PipesFull:   s.pipesFull.Load(),
	}
}

// byOp returns the counters that are not zero.
func byOp(counters *[wire.MaxOp]atomic.Int64) map[wire.Op]int64 {
	out := make(map[wire.Op]int64)
	for op := range wire.MaxOp {
		if n := counters[op].Load(); n > 0 {
			out[op] = n
		}
	}
	return out
}

// refusals limits log lines about refused connections to one per host and minute.
type refusals struct {
	mu    sync.Mutex
	hosts map[string]*refusal // guarded by mu
}

type refusal struct {
	logged time.Time
	more   int64 // refusals since then
}

const (
	refusalEvery = time.Minute
	maxRefusals  = 1024 // hosts that are remembered
)

// count counts a refusal of host. If first, the caller logs it, with the number not logged since the last log line.
func (r *refusals) count(host string, at time.Time) (more int64, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts == nil || len(r.hosts) >= maxRefusals {
		r.hosts = make(map[string]*refusal)
	}
	x := r.hosts[host]
	if x == nil {
		r.hosts[host] = &refusal{logged: at}
		return 0, true
	}
	if at.Sub(x.logged) < refusalEvery {
		x.more++
		return 0, false
	}
	more = x.more
	*x = refusal{logged: at}
	return more, true
}

// hostOf returns an address without its port, which differs by connection.
func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
