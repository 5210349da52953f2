package simulate

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Lognormal returns n sizes of the given mean; sigma is the standard deviation of their logarithm, 0 for files of one
// size.
func Lognormal(n int, mean int64, sigma float64, seed uint64) ([]int64, error) {
	switch {
	case n < 1 || n > maxFiles:
		return nil, fmt.Errorf("--files %d: 1 to %d; for more, divide --files and --room by 10: the times are then a tenth, too", n, maxFiles)
	case mean < 1 || mean > 1<<40:
		return nil, fmt.Errorf("mean size %d: give 1 byte to 1T", mean)
	case !(sigma >= 0 && sigma <= 4):
		return nil, fmt.Errorf("sigma %v: give 0 (one size) to 4; photographs have about 0.5", sigma)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	sizes, sum := make([]int64, n), 0.0
	mu := math.Log(float64(mean)) - sigma*sigma/2
	for i := range sizes {
		sizes[i] = int64(math.Min(math.Exp(mu+sigma*rng.NormFloat64()), 1<<42))
		sum += float64(sizes[i])
	}
	// The mean of a sample of a wide distribution often differs from the requested one.
	scale := float64(mean) * float64(n) / max(sum, 1)
	for i := range sizes {
		sizes[i] = max(1, int64(math.Round(float64(sizes[i])*scale)))
	}
	return sizes, nil
}

// ReadSizes parses a manifest: the first field of each line is the size of a file in bytes, as find -printf '%s %p\n'
// prints it.
func ReadSizes(r io.Reader) ([]int64, error) {
	var sizes []int64
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for line := 1; s.Scan(); line++ {
		field := strings.TrimSpace(s.Text())
		if i := strings.IndexAny(field, " \t"); i >= 0 {
			field = field[:i]
		}
		if field == "" || field[0] == '#' {
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("line %d: %.40q is not a size in bytes: make the manifest with: find DIR -type f -printf '%%s %%P\\n' | sort -k 2", line, field)
		}
		if len(sizes) == maxFiles {
			return nil, fmt.Errorf("more than %d files: keep every tenth line and divide --room by 10: the times are then a tenth, too", maxFiles)
		}
		sizes = append(sizes, n)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(sizes)+1, err)
	}
	if len(sizes) == 0 {
		return nil, fmt.Errorf("no sizes: make the manifest with: find DIR -type f -printf '%%s %%P\\n' | sort -k 2")
	}
	return sizes, nil
}

// block is the unit of a file's bytes on a drive.
const block = 4096

// inSource is the place of files without room on the nodes.
const inSource = -1

// placement is the placement of the files.
type placement struct {
	owner []int32   // the node that serves a file
	home  []int32   // owner, or inSource
	draw  []float32 // in [0, 1): which files a node copies first
	bytes float64   // of the dataset
	fits  float64   // share of the files that have room
}

// place assigns each file an owner and room by hash, as the real placement does.
func (j *Job) place() placement {
	n := len(j.Sizes)
	p := placement{owner: make([]int32, n), home: make([]int32, n), draw: make([]float32, n), fits: 1}
	onDisk := 0.0
	for _, s := range j.Sizes {
		p.bytes += float64(s)
		onDisk += float64((s + block - 1) / block * block)
	}
	if j.Room > 0 && onDisk > 0 {
		p.fits = min(1, float64(j.Room)*float64(j.Nodes)/onDisk)
	}
	rng := rand.New(rand.NewPCG(j.Seed, 2))
	for i := range n {
		p.owner[i] = int32(rng.IntN(j.Nodes))
		p.draw[i] = rng.Float32()
		if p.home[i] = p.owner[i]; rng.Float64() >= p.fits {
			p.home[i] = inSource
		}
	}
	return p
}
