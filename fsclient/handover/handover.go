// Package handover keeps the state that a daemon leaves to the next one on its node: memory, shared with the keeper, in
// which a mount records its open files. Its one idea is that every record is valid at every moment, so that it does not
// matter when the daemon is killed.
//
// The kernel's node ids are inode numbers, and a directory is opened again by its inode number, so neither needs a
// record. Only the daemon uses the memory (a memfd): the keeper merely holds it.
//
//	[0, 8)      magic, once the settings are recorded
//	[8, 16)     generation: how many daemons have used the memory
//	[16, 24)    length of the settings
//	[24, 4096)  settings: the kernel's INIT request, which the next daemon answers for itself
//	then        records of 48 bytes: handle (0: free; written last), inode, request, flags,
//	            state, backing
package handover

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	magic   = 0x31_65_76_69_76_72_75_53
	header  = 4096
	records = 1 << 18
	size    = header + records*int(unsafe.Sizeof(record{}))
	// generationShift: the handles of a generation begin at the generation number, shifted left by this.
	generationShift = 40
	// registered is the handle in the record of a file that is registered for passthrough.
	registered = 1<<64 - 1
)

// record is one open file.
type record struct {
	fh      atomic.Uint64
	ino     uint64
	request uint64
	flags   uint32
	state   atomic.Uint32
	backing int32
	_       [12]byte
}

// State is the state of an open file that the next daemon needs.
type State uint32

const (
	Direct State = 1 << iota // the kernel caches no pages
	Dirty                    // acknowledged writes may not have arrived
	Locked                   // locks may be held through it
	Untold                   // the file's home may not know of changes
)

// Open is an open file.
type Open struct {
	FH      uint64
	Ino     metadata.Ino
	Request uint64 // the request that opened it
	Flags   uint32 // of open(2)
	Backing int32  // its id for passthrough; 0: none
	State   State
}

// Table is the handover memory. A nil *Table records nothing.
type Table struct {
	mem  []byte
	all  []record
	mu   sync.Mutex
	used int   // under mu: no record from this index on was used
	free []int // under mu: unused records before that
}

// Slot is a record in the Table. A nil *Slot belongs to a file that is not recorded.
type Slot struct {
	t *Table
	i int
	r *record
}

// Map maps f, which is empty or, with earlier, holds the records of an earlier daemon.
func Map(f *os.File, earlier bool) (*Table, error) {
	if !earlier {
		if err := f.Truncate(int64(size)); err != nil {
			return nil, fmt.Errorf("handover memory: %w", err)
		}
	}
	if st, err := f.Stat(); err != nil || st.Size() != int64(size) {
		return nil, fmt.Errorf("handover memory has another size: %w", syscall.EINVAL)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("handover memory: %w", err)
	}
	t := &Table{mem: mem, all: unsafe.Slice((*record)(unsafe.Pointer(&mem[header])), records)}
	if earlier && t.word(0) != magic {
		return nil, fmt.Errorf("handover memory is not initialised: %w", syscall.EINVAL)
	}
	t.setWord(8, t.word(8)+1)
	for i := range t.all {
		if t.all[i].fh.Load() != 0 {
			t.used = i + 1
		}
	}
	for i := range t.used {
		if t.all[i].fh.Load() == 0 {
			t.free = append(t.free, i)
		}
	}
	return t, nil
}

func (t *Table) word(off int) uint64       { return binary.LittleEndian.Uint64(t.mem[off:]) }
func (t *Table) setWord(off int, v uint64) { binary.LittleEndian.PutUint64(t.mem[off:], v) }

// FirstHandle returns the first handle of this daemon: no earlier daemon has used it.
func (t *Table) FirstHandle() uint64 {
	if t == nil {
		return 1
	}
	return t.word(8)<<generationShift | 1
}

// SetSettings records the settings of the connection; the memory is usable from then on.
func (t *Table) SetSettings(b []byte) error {
	if len(b) > header-24 {
		return fmt.Errorf("settings of %d bytes: %w", len(b), syscall.EMSGSIZE)
	}
	copy(t.mem[24:header], b)
	t.setWord(16, uint64(len(b)))
	t.setWord(0, magic)
	return nil
}

// Settings returns the settings recorded by SetSettings.
func (t *Table) Settings() []byte { return t.mem[24 : 24+min(t.word(16), header-24)] }

// Add records an open file; it returns nil if there is no room.
func (t *Table) Add(o Open) *Slot {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.used
	if n := len(t.free); n > 0 {
		i = t.free[n-1]
		t.free = t.free[:n-1]
	} else if i == len(t.all) {
		return nil
	} else {
		t.used++
	}
	r := &t.all[i]
	r.ino, r.request, r.flags, r.backing = uint64(o.Ino), o.Request, o.Flags, o.Backing
	r.state.Store(uint32(o.State))
	r.fh.Store(o.FH)
	return &Slot{t, i, r}
}

// Register records that a file is registered for passthrough.
func (t *Table) Register(ino metadata.Ino, id int32) *Slot {
	return t.Add(Open{FH: registered, Ino: ino, Backing: id})
}

// Slots returns the records of open files, and those of files registered for passthrough.
func (t *Table) Slots() (open, passthrough []*Slot) {
	if t == nil {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.used {
		switch r := &t.all[i]; r.fh.Load() {
		case 0:
		case registered:
			passthrough = append(passthrough, &Slot{t, i, r})
		default:
			open = append(open, &Slot{t, i, r})
		}
	}
	return open, passthrough
}

// Open returns the recorded open file.
func (s *Slot) Open() Open {
	r := s.r
	return Open{
		FH: r.fh.Load(), Ino: metadata.Ino(r.ino), Request: r.request, Flags: r.flags, Backing: r.backing, State: State(r.state.Load()),
	}
}

// Set sets bits of the state.
func (s *Slot) Set(b State) {
	if s != nil && State(s.r.state.Load())&b != b {
		s.r.state.Or(uint32(b))
	}
}

// Clear clears bits of the state.
func (s *Slot) Clear(b State) {
	if s != nil {
		s.r.state.And(^uint32(b))
	}
}

// Free frees a record.
func (s *Slot) Free() {
	if s == nil {
		return
	}
	s.r.fh.Store(0)
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.free = append(s.t.free, s.i)
}
