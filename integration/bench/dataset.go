package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	setName   = "photos"
	setFiles  = 20000
	setMean   = 110 << 10 // bytes
	setSpread = 0.5       // sigma of the logarithm of the sizes
	setDirs   = 100
	// The large files are a separate dataset, which the kernel reads differently.
	largeName = "large"
	bigName   = "big"
	bigSize   = 1 << 30
	// A file of the largest size that is not striped.
	mediumName = "medium"
	mediumSize = 60 << 20
)

// dataset is a staged dataset, made once for all figures that read one: small files of lognormal size, a medium one
// that is whole on a node, and a large striped one.
type dataset struct {
	source string // source of the small files
	large  string // source of the others
	files  []sample
	medium sample
	big    string // path below a mount
	below  string // path of the dataset in the main mount of node 0, without the view; "" if it has none
}

// sample is a file of the dataset.
type sample struct {
	path string // below a mount
	ino  metadata.Ino
	node int // the node that has it whole
	size int64
}

// staged stages the dataset at its first use.
func (b *bench) staged(ctx context.Context) (*dataset, error) {
	if b.set != nil {
		return b.set, nil
	}
	d := &dataset{source: filepath.Join(b.home, setName), large: filepath.Join(b.home, largeName), big: filepath.Join("data", largeName, bigName)}
	if err := d.write(b.amount(setFiles), int64(b.amount(bigSize>>20))<<20); err != nil {
		return nil, err
	}
	for name, source := range map[string]string{setName: d.source, largeName: d.large} {
		if err := b.addDataset(ctx, source, name); err != nil {
			return nil, err
		}
	}
	if err := b.camp.awaitView(ctx, setName); err != nil {
		return nil, err
	}
	b.set = d
	if err := d.find(b); err != nil {
		b.set = nil
		return nil, errors.Join(err, d.hideBelow())
	}
	return d, nil
}

// addDataset stages a directory as a dataset of the job.
func (b *bench) addDataset(ctx context.Context, source, name string) error {
	cmd := exec.CommandContext(ctx, b.program, "stage-in", source+":"+name, "--dir", b.camp.dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("stage-in of %s: %w", source, err)
	}
	return nil
}

// write makes the source.
func (d *dataset) write(n int, big int64) error {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range setDirs {
		if err := os.MkdirAll(filepath.Join(d.source, fmt.Sprintf("%02d", i)), 0o755); err != nil {
			return err
		}
	}
	for i := range n {
		size := int64(setMean * math.Exp(r.NormFloat64()*setSpread-setSpread*setSpread/2))
		path := filepath.Join(fmt.Sprintf("%02d", i%setDirs), fmt.Sprintf("%05d", i))
		if err := os.WriteFile(filepath.Join(d.source, path), noise(r, size), 0o644); err != nil {
			return err
		}
		d.files = append(d.files, sample{path: filepath.Join("data", setName, path), size: size})
	}
	if err := os.Mkdir(d.large, 0o755); err != nil {
		return err
	}
	d.medium = sample{path: filepath.Join("data", largeName, mediumName), size: mediumSize}
	if err := writeNoise(filepath.Join(d.large, mediumName), r, mediumSize); err != nil {
		return err
	}
	return writeNoise(filepath.Join(d.large, bigName), r, big)
}

func writeNoise(path string, r *rand.Rand, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for left := size; left > 0; left -= 1 << 20 {
		if _, err := f.Write(noise(r, 1<<20)); err != nil {
			_ = f.Close() // the write's error says it
			return err
		}
	}
	return f.Close()
}

// noise returns incompressible bytes.
func noise(r *rand.Rand, n int64) []byte {
	p := make([]byte, (n+7)&^7)
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	return p[:n]
}

// find determines the node of each file through the mount of node 0. A kernel view has other inode numbers than the
// directory below it.
func (d *dataset) find(b *bench) error {
	mount := b.camp.state.Nodes[0].Mount
	if os.Geteuid() == 0 {
		d.below = filepath.Join(b.home, "below")
		if err := below(filepath.Join(mount, "data", setName), d.below); err != nil {
			return fmt.Errorf("below the view of %s: %w", setName, err)
		}
	}
	for i := range d.files {
		path := filepath.Join(mount, d.files[i].path)
		if d.below != "" {
			path = d.belowView(d.files[i])
		}
		if err := d.files[i].find(b.camp, path); err != nil {
			return err
		}
	}
	return d.medium.find(b.camp, filepath.Join(mount, d.medium.path))
}

// hideBelow unmounts the mount that below made.
func (b *bench) hideBelow() error {
	if b.set == nil {
		return nil
	}
	return b.set.hideBelow()
}

func (d *dataset) hideBelow() error {
	on, err := mountedOn(d.below, mounts.FUSEType)
	if on {
		err = unix.Unmount(d.below, unix.MNT_DETACH)
	}
	return err
}

// belowView returns a file's path in the main mount.
func (d *dataset) belowView(s sample) string {
	return filepath.Join(d.below, strings.TrimPrefix(s.path, filepath.Join("data", setName)))
}

func (d *dataset) allBelow(files []sample) (paths []string) {
	for _, s := range files {
		paths = append(paths, d.belowView(s))
	}
	return paths
}

// find determines the node of the file at path.
func (s *sample) find(c *camp, path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	host := make([]byte, 64)
	n, err := unix.Getxattr(path, "user.bivouac.node", host)
	if err != nil {
		return fmt.Errorf("%s: where it is: %w", path, err)
	}
	s.ino, s.node = metadata.Ino(st.Ino), -1
	for k, node := range c.state.Nodes {
		if node.Host == string(host[:n]) {
			s.node = k
		}
	}
	if s.node < 0 || st.Size != s.size {
		return fmt.Errorf("%s: %d bytes on %q, want %d on one node: %w", path, st.Size, host[:n], s.size, syscall.EIO)
	}
	return nil
}

// on returns the files that a node has.
func (d *dataset) on(node int) (files []sample) {
	for _, s := range d.files {
		if s.node == node {
			files = append(files, s)
		}
	}
	return files
}

// through returns the paths of the files below a mount.
func through(mount string, files []sample) []string {
	paths := make([]string, len(files))
	for i, s := range files {
		paths[i] = filepath.Join(mount, s.path)
	}
	return paths
}

// objects returns the paths of the files' objects on the disks of their nodes.
func (c *camp) objects(files []sample) []string {
	paths := make([]string, len(files))
	for i, s := range files {
		paths[i] = filepath.Join(c.store(s.node), "objects", fmt.Sprintf("%02x", uint8(s.ino)), fmt.Sprintf("%016x", uint64(s.ino)))
	}
	return paths
}

// store returns the store directory of a node.
func (c *camp) store(node int) string {
	return filepath.Join(c.dir, ".bivouac", c.state.Nodes[node].Host, "store")
}
