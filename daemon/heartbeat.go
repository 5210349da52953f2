package daemon

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// HeartbeatFD is the daemon's descriptor of its heartbeat connection: one end of a Unix stream socket pair, whose other
// end its keeper (or bivouac up) holds. Both send JSON lines. A daemon that is not detached ends when the connection
// closes, so that it never outlives its keeper.
const HeartbeatFD = 3

// FuseFD is the descriptor of /dev/fuse, already mounted by the keeper, if
// Start.Fuse is set.
const FuseFD = 4

// ListenFD is the descriptor of a listening socket, if Start.Listen is set.
const ListenFD = 5

// HandoverFD is the descriptor of the memory that one daemon hands over to the next, if Start.Handover is set.
const HandoverFD = 7

// Start is the first line from keeper to daemon.
type Start struct {
	Key      string `json:"key"`                // the job key, hex
	Detached bool   `json:"detached,omitempty"` // continue when the heartbeat connection closes
	Fuse     bool   `json:"fuse,omitempty"`     // FuseFD is open; otherwise the daemon mounts by itself
	Listen   bool   `json:"listen,omitempty"`   // ListenFD is open; otherwise the daemon listens by itself
	Backing  bool   `json:"backing,omitempty"`  // BackingFD is open
	Handover bool   `json:"handover,omitempty"` // HandoverFD is open
	Adopt    bool   `json:"adopt,omitempty"`    // an earlier daemon has served FuseFD
}

// Order is a later line from keeper to daemon.
type Order struct {
	// Leave has the daemon leave the job: stage out, notify the other nodes, end.
	Leave bool `json:"leave,omitempty"`
	// Deadline is the time limit for that in seconds.
	Deadline int `json:"deadline,omitempty"`
}

// Note is a line from daemon to keeper.
type Note struct {
	// Ready is sent once, when the map is known and the mount answers.
	Ready bool `json:"ready,omitempty"`
	// Kept is sent with Ready: another daemon can take the connection over.
	Kept bool `json:"kept,omitempty"`
	// Failed is why the daemon cannot start; the daemon exits after sending it.
	Failed string `json:"failed,omitempty"`
	// Alive is sent every few seconds, after the mount has answered a probe.
	Alive bool `json:"alive,omitempty"`
	// Lost is the host of a node that was declared lost; the node that notifies the user sends it.
	Lost string `json:"lost,omitempty"`
	// Left ends an Order to leave. Trouble is a message for the user.
	Left    bool   `json:"left,omitempty"`
	Trouble string `json:"trouble,omitempty"`
}

// maxLine bounds a line, in bytes.
const maxLine = 64 << 10

// Heartbeat is one end of the heartbeat connection between a daemon and its keeper. Several goroutines may call Send,
// one may call Receive.
type Heartbeat struct {
	rw io.ReadWriteCloser
	in *bufio.Scanner

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// NewHeartbeat returns a Heartbeat on rw.
func NewHeartbeat(rw io.ReadWriteCloser) *Heartbeat {
	h := &Heartbeat{rw: rw, in: bufio.NewScanner(rw), out: json.NewEncoder(rw)}
	h.in.Buffer(make([]byte, 0, 4096), maxLine)
	return h
}

// Send writes v (a Start, Order or Note) as one line.
func (h *Heartbeat) Send(v any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.out.Encode(v); err != nil {
		return fmt.Errorf("heartbeat connection: %w", err)
	}
	return nil
}

// Receive reads the next line into v; it returns io.EOF when the other end has closed.
func (h *Heartbeat) Receive(v any) error {
	if !h.in.Scan() {
		if err := h.in.Err(); err != nil {
			return fmt.Errorf("heartbeat connection: %w", err)
		}
		return io.EOF
	}
	if err := json.Unmarshal(h.in.Bytes(), v); err != nil {
		return fmt.Errorf("heartbeat connection: %w", err)
	}
	return nil
}

// Close closes the connection. A daemon that is not detached then ends.
func (h *Heartbeat) Close() error { return h.rw.Close() }
