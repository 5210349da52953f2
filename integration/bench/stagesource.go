package main

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/bivouacfs/bivouac/integration/slowpfs"
)

// site is the source of a stage-in: archives in a directory, and slowpfs over it, with a mount for each node.
type site struct {
	under  string
	mounts []string
	client *slowpfs.Client
	child  *child
}

// newSite makes a site with the given limits, in a separate process.
func newSite(ctx context.Context, home string, l slowpfs.Limits) (*site, error) {
	s := &site{under: filepath.Join(home, "under")}
	dirs := []string{home, s.under}
	for i := range nodes {
		s.mounts = append(s.mounts, filepath.Join(home, "client"+strconv.Itoa(i)))
	}
	for _, d := range append(dirs, s.mounts...) {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	sock := filepath.Join(home, "sock")
	var err error
	if s.child, err = spawn(append([]string{"slowpfs", s.under, sock}, s.mounts...)...); err != nil {
		return nil, err
	}
	s.client = slowpfs.NewClient(sock)
	if err := s.client.SetLimits(ctx, l); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *site) close() error {
	_ = s.child.in.Close() // a pipe; it ends the process
	return s.child.cmd.Wait()
}

// serveSlow runs in the process.
func serveSlow(under, sock string, mounts []string) error {
	s, err := slowpfs.Serve(slowpfs.Config{Under: under, Socket: sock, Mounts: mounts})
	if err != nil {
		return err
	}
	ready()
	awaitInput()
	return s.Close()
}

// read returns what was read from the source during f.
func (s *site) read(ctx context.Context, f func() error) (slowpfs.Counts, error) {
	before, err := s.client.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if err := f(); err != nil {
		return nil, err
	}
	after, err := s.client.Stats(ctx)
	return after.Sum.Since(before.Sum), err
}

// own returns a path of the site on each node's own mount: the daemons are started in those mounts (wrap), and the
// source is named relative to their working directory. Nodes of a cluster have separate page caches; on a shared
// mount, one node would find the pages that another has read.
func (s *site) own(name string) string { return filepath.Join("/proc/self/cwd", name) }

func (s *site) wrap(node int) []string { return []string{"env", "-C", s.mounts[node], "--"} }

// archive describes a tar that is made for a figure.
type archive struct {
	name    string
	members int
	size    int // bytes of each
}

// write makes the archive in dir, with incompressible members in 100 directories, and returns its size.
func (a archive) write(dir string) (int64, error) {
	f, err := os.Create(filepath.Join(dir, a.name))
	if err != nil {
		return 0, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = a.fill(tar.NewWriter(w)); err == nil {
		err = w.Flush()
	}
	st, e := f.Stat()
	if err = errors.Join(err, e, f.Close()); err != nil {
		return 0, fmt.Errorf("%s: %w", a.name, err)
	}
	return st.Size(), nil
}

func (a archive) fill(w *tar.Writer) error {
	rng := rand.NewChaCha8([32]byte{1})
	data := make([]byte, a.size)
	_, _ = rng.Read(data) // never fails
	when := time.Unix(1_700_000_000, 0)
	for i := range a.members {
		if a.size >= 8 {
			binary.LittleEndian.PutUint64(data, uint64(i))
		}
		h := &tar.Header{
			Name: fmt.Sprintf("set/class%02d/sample%07d.jpg", i%100, i), Mode: 0o644, Size: int64(a.size),
			ModTime: when, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return w.Close()
}
