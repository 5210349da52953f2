package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/deploy/pitch"
)

// which selects the daemon that a command talks to.
type which struct {
	dir    string       // a local job
	job    string       // a Slurm job on this node
	node   int          // of a local job
	chosen func() bool  // reports whether node was given
	dead   []local.Node // of a local job
}

func (w *which) flags(c *cobra.Command) {
	c.Flags().StringVar(&w.dir, "dir", "", `directory given to "bivouac up"`)
	c.Flags().StringVar(&w.job, "job", "", "ID of a Slurm job on this node (default: the current job)")
	c.Flags().IntVar(&w.node, "node", 0, "with --dir: ask this node (default: the first that answers)")
	w.chosen = func() bool { return c.Flags().Changed("node") }
	c.MarkFlagsMutuallyExclusive("dir", "job")
}

// ctl finds the control socket.
func (w *which) ctl() (*daemon.Ctl, error) {
	if w.dir != "" {
		return w.local()
	}
	id := cmp.Or(w.job, os.Getenv("SLURM_JOB_ID"))
	if id == "" {
		return nil, errors.New("no job given: use --dir D for one started by bivouac up, --job ID for a Slurm job on this node, or run the command inside the job")
	}
	site, err := pitch.LoadSite(pitch.SitePath)
	if err != nil {
		return nil, err
	}
	run, err := pitch.RunDir(site, id)
	if err != nil {
		return nil, err
	}
	j := job.File{Dirs: job.Dirs{Run: run}}
	return daemon.NewCtl(j.CtlSocket()), nil
}

func (w *which) local() (*daemon.Ctl, error) {
	dir, err := filepath.Abs(w.dir)
	if err != nil {
		return nil, err
	}
	s, err := local.Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("nothing is up in %s: start it with bivouac up --dir %s", w.dir, w.dir)
	}
	if err != nil {
		return nil, err
	}
	if w.dead = s.Dead(); len(w.dead) == len(s.Nodes) {
		return nil, fmt.Errorf("all daemons of %s have ended (see %s): run bivouac down --dir %s, then bivouac up", w.dir, w.dead[0].Log, w.dir)
	}
	if w.node < 0 || w.node >= len(s.Nodes) {
		return nil, fmt.Errorf("--node %d: %s has %d nodes", w.node, w.dir, len(s.Nodes))
	}
	if n := s.Nodes[w.node]; w.chosen() && slices.Contains(w.dead, n) {
		return nil, errors.New(w.ended(n))
	}
	if w.chosen() {
		return daemon.NewCtl(s.Nodes[w.node].Sock), nil
	}
	return answering(s.Nodes), nil
}

// ended describes what the death of a daemon means and what to do.
func (w *which) ended(n local.Node) string {
	return fmt.Sprintf("the daemon of %s has ended (see %s) and is restarted only under Slurm: calls below %s fail with \"Transport endpoint is not connected\"; "+
		"copy what you need from the other nodes, then run bivouac down --dir %s and bivouac up", n.Host, n.Log, n.Mount, w.dir)
}

// answerTime bounds the wait for the answer of a node when other nodes can be asked instead.
const answerTime = 2 * time.Second

// answering returns the first node whose daemon answers. If none does, it returns the first node, whose error the
// request will report.
func answering(nodes []local.Node) *daemon.Ctl {
	for _, n := range nodes {
		ctl := daemon.NewCtl(n.Sock)
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		_, err := ctl.Status(ctx)
		cancel()
		if err == nil {
			return ctl
		}
	}
	return daemon.NewCtl(nodes[0].Sock)
}

// run returns the RunE of a command that asks the daemon selected by w.
func (w *which) run(f func(c *cobra.Command, ctl *daemon.Ctl, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctl, err := w.ctl()
		if err != nil {
			return err
		}
		for _, n := range w.dead {
			fmt.Fprintln(c.ErrOrStderr(), "bivouac: "+w.ended(n))
		}
		return f(c, ctl, args)
	}
}

// writeJSON prints v as --json does.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
