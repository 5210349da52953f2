package doctor

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/rails"
)

// This is the Host on which the program runs.
type This struct{}

var _ Host = This{}

// Read implements Host.
func (This) Read(path string) ([]byte, error) { return os.ReadFile(path) }

// Run implements Host.
func (This) Run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if first, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n"); err != nil && first != "" {
		err = errors.New(first)
	}
	return string(out), err
}

// Root implements Host.
func (This) Root() bool { return os.Geteuid() == 0 }

// OpenFuse implements Host.
func (This) OpenFuse() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// Dial implements Host.
func (This) Dial(ctx context.Context, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}

// Synchronized implements Host.
func (This) Synchronized() (bool, error) {
	state, err := unix.Adjtimex(new(unix.Timex))
	return state != unix.TIME_ERROR, err
}

// Glob implements Host.
func (This) Glob(pattern string) []string {
	found, _ := filepath.Glob(pattern) // a bad pattern matches nothing
	return found
}

// Networks implements Host.
func (This) Networks(networks []string) error {
	own, err := rails.Interfaces()
	if err == nil {
		_, err = rails.Choose(networks, own)
	}
	return err
}

// kinds maps magic numbers to filesystems; network filesystems cannot be a store.
var kinds = map[int64]struct {
	name    string
	network bool
}{
	unix.EXT4_SUPER_MAGIC: {"ext4", false}, unix.XFS_SUPER_MAGIC: {"xfs", false}, unix.BTRFS_SUPER_MAGIC: {"btrfs", false},
	unix.TMPFS_MAGIC: {"tmpfs", false}, unix.OVERLAYFS_SUPER_MAGIC: {"overlay", false}, unix.NFS_SUPER_MAGIC: {"nfs", true},
	0x0BD00BD0: {"lustre", true}, 0x47504653: {"gpfs", true}, 0x19830326: {"beegfs", true}, unix.CEPH_SUPER_MAGIC: {"ceph", true}, unix.FUSE_SUPER_MAGIC: {"fuse", true},
}

// Store implements Host.
func (This) Store(dir string, probe time.Duration) (Drive, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Drive{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	var at unix.Stat_t
	if err := unix.Stat(dir, &at); err != nil {
		return Drive{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	k, known := kinds[st.Type]
	if !known {
		k.name = fmt.Sprintf("filesystem %#x", st.Type)
	}
	d := Drive{Mode: fs.FileMode(at.Mode & 0o777), Owner: at.Uid, Kind: k.name, Network: k.network, Free: int64(st.Bavail) * st.Bsize, NoInodes: st.Files > 0 && st.Ffree == 0}
	if at.Mode&unix.S_IFMT == unix.S_IFDIR {
		d.Mode |= fs.ModeDir
	}
	if probe <= 0 || d.Network || !d.Mode.IsDir() {
		return d, nil
	}
	var err error
	d.Write, d.Read, err = speed(dir, probe, d.Free/4)
	return d, err
}

// speed writes a file of at most most bytes for half of d, reads it for the other half, and removes it.
func speed(dir string, d time.Duration, most int64) (write, read float64, err error) {
	f, err := os.CreateTemp(dir, ".bivouac-doctor-*")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return 0, 0, err
	}
	b := bytes.Repeat([]byte("bivouac "+filepath.Base(dir)+"\n"), 1<<20)[:4<<20]
	size := int64(0)
	begun := time.Now()
	for ; time.Since(begun) < d/2 && size < most; size += int64(len(b)) {
		if _, err := f.WriteAt(b, size); err != nil {
			return 0, 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	write = float64(size) / time.Since(begun).Seconds()
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // otherwise the page cache would be measured
	begun = time.Now()
	got := int64(0)
	for ; time.Since(begun) < d/2 && got < size; got += int64(len(b)) {
		if _, err := f.ReadAt(b, got); err != nil {
			return 0, 0, err
		}
	}
	return write, float64(got) / time.Since(begun).Seconds(), nil
}

// pluginVersion returns the release of Slurm against whose headers a plugin was built.
func pluginVersion(b []byte) (major, minor int, err error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return 0, 0, fmt.Errorf("no plugin: %w", err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, 0, err
	}
	for _, s := range symbols {
		if s.Name != "plugin_version" || int(s.Section) >= len(f.Sections) {
			continue
		}
		sec := f.Sections[s.Section]
		data, err := sec.Data()
		if off := s.Value - sec.Addr; err == nil && s.Value >= sec.Addr && off+4 <= uint64(len(data)) {
			v := binary.LittleEndian.Uint32(data[off:])
			return int(v >> 16 & 0xff), int(v >> 8 & 0xff), nil
		}
	}
	return 0, 0, errors.New("it has no plugin_version")
}
