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

// The arms that figures have in common. The base of a ratio is the second of a
// row's arms in this order.
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
	made  int // directories, so that each has a name of its own
}

// pitch starts a job; wrap, if given, is what stands before a node's command.
func pitch(ctx context.Context, program, dir string, wrap func(node int) []string) (*camp, error) {
	return pitchWith(ctx, program, local.Config{Dir: dir, Wrap: wrap})
}

// pitchWith starts a job that has more settings.
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

// fresh makes a directory by the mount of a node, and returns it as that of
// another sees it.
func (c *camp) fresh(by, seen int) (string, error) {
	c.made++
	name := "d" + strconv.Itoa(c.made)
	if err := os.Mkdir(filepath.Join(c.scratch(by), name), 0o755); err != nil {
		return "", err
	}
	return filepath.Join(c.scratch(seen), name), nil
}

// away makes a directory whose home is not the node, and returns it as that
// node sees it: every call in it goes to another node.
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

// same is a directory of scratch as another node sees it.
func (c *camp) same(dir string, node int) string {
	return filepath.Join(c.scratch(node), filepath.Base(dir))
}

// home is the node that keeps a directory.
func home(dir string) (int, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", dir, err)
	}
	return int(metadata.Ino(st.Ino).Home()), nil
}

// counters is what the daemons and mounts have counted so far.
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

// pids is the numbers of all daemons.
func (c *camp) pids() (pids []int) {
	for _, n := range c.state.Nodes {
		pids = append(pids, n.PID)
	}
	return pids
}

// cpu is the processor time of all daemons, and that of each.
func (c *camp) cpu() (total time.Duration, each [nodes]time.Duration, err error) {
	for i, n := range c.state.Nodes {
		if each[i], err = processTime(n.PID); err != nil {
			return 0, each, err
		}
		total += each[i]
	}
	return total, each, nil
}

// processTime is the processor time that a process has used, to the nanosecond:
// its clock id is made of its number (clock_getcpuclockid(3)).
func processTime(pid int) (time.Duration, error) {
	const scheduled = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
