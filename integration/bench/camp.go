package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/metadata"
)

// The arms that figures have in common. The base of a ratio is the second of a row's arms in this order.
const (
	armBivouac  = "bivouac"
	armLoopback = "loopback"
	armPages    = "loopback, FUSE pages"
	armPebble   = "pebble"
)

const nodes = 4

// camp is a job of four daemons, each with its mount.
type camp struct {
	dir   string
	state *local.State
	made  int // number of directories, for unique names
}

// pitch starts a job; wrap, if given, returns the prefix of a node's command.
func pitch(ctx context.Context, program, dir string, wrap func(node int) []string) (*camp, error) {
	return pitchWith(ctx, program, local.Config{Dir: dir, Wrap: wrap})
}

// pitchWith starts a job with more settings.
func pitchWith(ctx context.Context, program string, cfg local.Config) (*camp, error) {
	program, err := filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("no program to measure: %w: run make build", err)
	}
	cfg.Nodes, cfg.Program = nodes, program
	s, err := local.Up(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &camp{dir: cfg.Dir, state: s}, nil
}

func (c *camp) down() error {
	_, err := local.Down(c.dir)
	return err
}

func (c *camp) scratch(node int) string {
	return filepath.Join(c.state.Nodes[node].Mount, "scratch")
}

// fresh makes a directory through the mount of one node, and returns its path on another.
func (c *camp) fresh(by, seen int) (string, error) {
	c.made++
	name := "d" + strconv.Itoa(c.made)
	if err := os.Mkdir(filepath.Join(c.scratch(by), name), 0o755); err != nil {
		return "", err
	}
	return filepath.Join(c.scratch(seen), name), nil
}

// away makes a directory whose home is another node, and returns its path on the node: every call in it is remote.
func (c *camp) away(node int) (string, error) {
	for range 1000 {
		dir, err := c.fresh((node+1)%nodes, node)
		if err != nil {
			return "", err
		}
		if h, err := home(dir); err != nil || h != node {
			return dir, err
		}
	}
	return "", fmt.Errorf("no directory is homed elsewhere than on node %d: %w", node, syscall.EIO)
}

// same returns the path of a scratch directory on another node.
func (c *camp) same(dir string, node int) string {
	return filepath.Join(c.scratch(node), filepath.Base(dir))
}

// home returns the home of a directory.
func home(dir string) (int, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", dir, err)
	}
	return int(metadata.Ino(st.Ino).Home()), nil
}

// counters holds the counts of the daemons and mounts so far.
type counters struct {
	Client struct {
		MetaRemote int64 `json:"meta_remote"`
	} `json:"client"`
	Mount struct {
		Calls map[string]int64 `json:"calls"`
	} `json:"mount"`
	RPC struct {
		Calls map[string]int64 `json:"calls"`
	} `json:"rpc"`
	Memory daemon.Memory `json:"memory"`
}

func (c *camp) counters(node int) (counters, error) {
	var k counters
	b, err := os.ReadFile(filepath.Join(c.state.Nodes[node].Mount, ".bivouac", "stats"))
	if err != nil {
		return k, err
	}
	return k, json.Unmarshal(b, &k)
}

// pids returns the process ids of all daemons.
func (c *camp) pids() (pids []int) {
	for _, n := range c.state.Nodes {
		pids = append(pids, n.PID)
	}
	return pids
}

// cpu returns the processor time of all daemons, in total and of each.
func (c *camp) cpu() (total time.Duration, each [nodes]time.Duration, err error) {
	for i, n := range c.state.Nodes {
		if each[i], err = processTime(n.PID); err != nil {
			return 0, each, err
		}
		total += each[i]
	}
	return total, each, nil
}

// processTime returns the processor time of a process in nanoseconds: its clock id is derived from its pid
// (clock_getcpuclockid(3)).
func processTime(pid int) (time.Duration, error) {
	const scheduled = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
