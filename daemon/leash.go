package daemon

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// LeashFD is the descriptor on which a daemon finds its leash: one end of a
// Unix stream socket pair, the other end of which its keeper (or bivouac up)
// holds. Lines of JSON go both ways. A daemon that is not detached ends when
// the leash is cut, so nothing outlives a keeper that died.
const LeashFD = 3

// FuseFD is the descriptor of /dev/fuse, already mounted by the keeper, when
// Start.Fuse says so.
const FuseFD = 4

// ListenFD is the descriptor of a listening socket, when Start.Listen says so.
const ListenFD = 5

// Start is the first line on the leash, from keeper to daemon.
type Start struct {
	Key      string `json:"key"`                // the job key, hex
	Detached bool   `json:"detached,omitempty"` // go on when the leash is cut
	Fuse     bool   `json:"fuse,omitempty"`     // FuseFD is there; else the daemon mounts by itself
	Listen   bool   `json:"listen,omitempty"`   // ListenFD is there; else the daemon binds by itself
	Backing  bool   `json:"backing,omitempty"`  // BackingFD is there
}

// Order is a later line from keeper to daemon.
type Order struct {
	// Leave asks the daemon to finish: stage out, tell the others, end.
	Leave bool `json:"leave,omitempty"`
	// Deadline is the time for it in seconds.
	Deadline int `json:"deadline,omitempty"`
}

// Note is a line from daemon to keeper.
type Note struct {
	// Ready is sent once: the map is known and the mount answers.
	Ready bool `json:"ready,omitempty"`
	// Failed is why the daemon cannot start; it exits after it.
	Failed string `json:"failed,omitempty"`
	// Alive is sent every few seconds after the mount has answered a probe.
	Alive bool `json:"alive,omitempty"`
	// Left ends an Order to leave. Trouble is what the user should know.
	Left    bool   `json:"left,omitempty"`
	Trouble string `json:"trouble,omitempty"`
}

// maxLine bounds a line on the leash, in bytes.
const maxLine = 64 << 10

// Leash is one end of the connection between a daemon and its keeper. Send may
// be called by several goroutines, Receive by one.
type Leash struct {
	rw io.ReadWriteCloser
	in *bufio.Scanner

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// NewLeash speaks on rw.
func NewLeash(rw io.ReadWriteCloser) *Leash {
	l := &Leash{rw: rw, in: bufio.NewScanner(rw), out: json.NewEncoder(rw)}
	l.in.Buffer(make([]byte, 0, 4096), maxLine)
	return l
}

// Send writes v (a Start, Order or Note) as one line.
func (l *Leash) Send(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.out.Encode(v); err != nil {
		return fmt.Errorf("leash: %w", err)
	}
	return nil
}

// Receive reads the next line into v; io.EOF when the other end is gone.
func (l *Leash) Receive(v any) error {
	if !l.in.Scan() {
		if err := l.in.Err(); err != nil {
			return fmt.Errorf("leash: %w", err)
		}
		return io.EOF
	}
	if err := json.Unmarshal(l.in.Bytes(), v); err != nil {
		return fmt.Errorf("leash: %w", err)
	}
	return nil
}

// Close cuts the leash.
func (l *Leash) Close() error { return l.rw.Close() }
