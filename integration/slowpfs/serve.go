package slowpfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Config configures a Server.
type Config struct {
	Under  string   // the directory to serve
	Mounts []string // existing mountpoints, one per client node
	Socket string   // for Stats and Limits; "" is none
	Limits Limits
	Kept   time.Duration // how long a client caches names and attributes; 0 is a second

	clock clock // nil is the wall clock
}

// Server is a mounted source.
type Server struct {
	srv    *server
	mounts []*mounted
	http   *http.Server
	served chan struct{} // closed when http has ended; nil without a socket
}

type mounted struct {
	dir    string
	fs     *slowFS
	server *fuse.Server
}

// Serve mounts, and answers until Close.
func Serve(cfg Config) (*Server, error) {
	if err := cfg.Limits.validate(); err != nil {
		return nil, err
	}
	if cfg.clock == nil {
		cfg.clock = wallClock{}
	}
	if cfg.Kept == 0 {
		cfg.Kept = time.Second
	}
	s := &Server{srv: &server{clock: cfg.clock, limits: cfg.Limits}}
	for _, dir := range cfg.Mounts {
		if err := s.mount(&cfg, dir); err != nil {
			return nil, errors.Join(fmt.Errorf("slowpfs at %s: %w", dir, err), s.Close())
		}
	}
	if cfg.Socket == "" {
		return s, nil
	}
	if err := s.listen(cfg.Socket); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// The maximum that one request moves, and the kernel's read-ahead.
const (
	maxTransfer   = 1 << 20
	maxBackground = 64
	readAheadKiB  = 4096 // for root's mounts: some requests ahead, like a Lustre client
)

func (s *Server) mount(cfg *Config, dir string) error {
	root, err := fs.NewLoopbackRoot(cfg.Under)
	if err != nil {
		return err
	}
	opts := &fs.Options{EntryTimeout: &cfg.Kept, AttrTimeout: &cfg.Kept}
	m := &mounted{dir: dir, fs: &slowFS{RawFileSystem: fs.NewNodeFS(root, opts), srv: s.srv, count: newCounters()}}
	isRoot := os.Geteuid() == 0
	m.server, err = fuse.NewServer(m.fs, dir, &fuse.MountOptions{
		AllowOther: isRoot, Options: []string{"default_permissions"}, DirectMount: isRoot,
		MaxBackground: maxBackground, MaxWrite: maxTransfer, MaxReadAhead: maxTransfer,
		FsName: cfg.Under, Name: "slowpfs", DisableReadDirPlus: true, DisableSplice: true,
		// The kernel's own reads would be neither limited nor counted.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	})
	if err != nil {
		return err
	}
	go m.server.Serve() // ends with the mount; Close waits for it
	s.mounts = append(s.mounts, m)
	if err := m.server.WaitMount(); err != nil || !isRoot {
		return err
	}
	return setReadAhead(dir)
}

func setReadAhead(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	dev := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	return os.WriteFile(filepath.Join("/sys/class/bdi", dev, "read_ahead_kb"), []byte(strconv.Itoa(readAheadKiB)), 0)
}

func (s *Server) listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("slowpfs: %w", err)
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(s.Stats()) })
	m.HandleFunc("POST /limits", s.postLimits)
	s.http, s.served = &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second}, make(chan struct{})
	go func() {
		defer close(s.served)
		_ = s.http.Serve(l) // Close ends it
	}()
	return nil
}

func (s *Server) postLimits(w http.ResponseWriter, r *http.Request) {
	var l Limits
	if err := json.NewDecoder(r.Body).Decode(&l); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.SetLimits(l); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// SetLimits changes the limits for future requests.
func (s *Server) SetLimits(l Limits) error {
	if err := l.validate(); err != nil {
		return err
	}
	s.srv.set(l)
	return nil
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.srv.mu.Lock()
	st := Stats{Limits: s.srv.limits, Sum: Counts{}, Mounts: map[string]Counts{}}
	s.srv.mu.Unlock()
	for _, m := range s.mounts {
		c := m.fs.count.counts()
		st.Mounts[m.dir] = c
		for k, n := range c {
			st.Sum[k] = Count{st.Sum[k].Ops + n.Ops, st.Sum[k].Bytes + n.Bytes}
		}
	}
	return st
}

// Close unmounts. A mount in use is detached, and answers until its last user ends.
func (s *Server) Close() error {
	var errs []error
	if s.http != nil {
		errs = append(errs, s.http.Close())
		<-s.served
	}
	for _, m := range s.mounts {
		errs = append(errs, m.close())
	}
	return errors.Join(errs...)
}

func (m *mounted) close() error {
	err := m.server.Unmount()
	if errors.Is(err, syscall.EBUSY) || err != nil && os.Geteuid() == 0 {
		if unix.Unmount(m.dir, unix.MNT_DETACH) == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", m.dir, err)
	}
	m.server.Wait()
	return nil
}
