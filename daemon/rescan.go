package daemon

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// A stage-in of which no file was read yet can begin anew: nobody has anything of it
// but who scans. So a daemon that was killed while it scanned does so again when it
// is back, and when it does not come back, the leader of the control group gives the
// stage-in to another node. The registry has what was asked for. Once nodes read
// files, the stage-in goes on (pass). Each beginning
// is a turn, and what is proposed in an earlier one is ESTALE.

// maxTurns is how often a stage-in begins anew at the most: what it reads may be
// what kills those who read it.
const maxTurns = 8

// maxSpec bounds what was asked for as it is in the registry, in bytes. Who asks for
// more has to ask again when the one who scans is killed.
const maxSpec = 32 << 10

// specText is a spec as it is in the registry; "" if it is too long for that.
func specText(s job.Dataset) (string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("stage-in of %s: %v: %w", s.Source, err, syscall.EINVAL)
	}
	if len(b) > maxSpec {
		return "", nil
	}
	return string(b), nil
}

// again reports whether ds, which nobody leads, can begin anew, or go on.
func again(ds cluster.Dataset) bool {
	return ds.Phase == cluster.Staging && ds.Spec != "" && ds.Turn < maxTurns
}

// adopt begins a stage-in anew that this node is said to lead, and does not: an
// earlier run of this daemon did, or a node that is lost. It reports whether there is
// nothing left to do.
func (d *Daemon) adopt(ctx context.Context, ds cluster.Dataset) bool {
	leads, maybe := d.stage.leads(ds)
	if leads || maybe {
		return leads
	}
	if !again(ds) {
		return d.disown(ctx, ds)
	}
	var s job.Dataset
	if err := node.DecodeJSON([]byte(ds.Spec), &s); err != nil {
		d.log.WithError(err).WithField("dataset", ds.Name).Warn("what was asked for cannot be read")
		return d.disown(ctx, ds)
	}
	log := d.log.WithField("dataset", ds.Name)
	var left *pass
	if ds.Reading {
		var err error
		if left, err = d.findPass(ctx, ds); err != nil {
			log.WithError(err).Warn("a stage-in that was interrupted does not go on yet")
			return false
		}
		if left == nil {
			return d.disown(ctx, ds)
		}
	} else {
		ds.SourceBytes += readCount(d.countFile(ds.ID, ds.Turn))
	}
	ds.Turn++
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := d.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: ds}); err != nil {
		log.WithError(err).Warn("a scan that was interrupted does not begin anew yet")
		return false
	}
	in := d.newIntake(ds, s.Request(d.job.Seed))
	if left != nil {
		in.takeUp(left)
		log.WithField("turn", ds.Turn).Info("the stage-in was interrupted and goes on")
	} else if err := os.RemoveAll(d.stageDir(ds.ID)); err != nil { // what was not finished
		log.WithError(err).Warn("left over from a scan that was interrupted")
	} else {
		log.WithField("turn", ds.Turn).Info("the scan was interrupted and begins anew")
	}
	d.stage.lead(in)
	d.Spawn(func(ctx context.Context) {
		if err := in.finish(ctx, in.run(ctx)); err != nil {
			log.WithError(err).Error("stage-in")
		}
	})
	return true
}

// disown says that a stage-in has failed which this node is said to lead, and
// cannot.
func (d *Daemon) disown(ctx context.Context, ds cluster.Dataset) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ds.Phase = cluster.Failed
	ds.Error = fmt.Sprintf("the daemon on %s was interrupted while it led the stage-in: stage it in again", d.job.Hosts[d.job.Self])
	_, err := d.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: ds})
	if err != nil {
		d.log.WithError(err).WithField("dataset", ds.Name).Warn("a stage-in that was interrupted")
	}
	return err == nil
}

// reading says that from now on all nodes read the files, so that the stage-in
// does not begin anew, but goes on.
func (in *intake) reading(ctx context.Context) error {
	in.ds.Reading = true
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	_, err := in.d.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: in.ds})
	return err
}

// outdated has a turn of a stage-in end on this node if there is a later one. Its source
// may be stuck, so nobody waits for it.
func (d *Daemon) outdated(ds cluster.Dataset) {
	if in := d.stage.leader(ds.ID); in != nil && in.ds.Turn < ds.Turn {
		in.end()
		d.stage.unlead(in)
	}
}

// stillLeads reports whether this node leads the stage-in by what the registry says,
// as far as that can be asked.
func (in *intake) stillLeads() bool {
	ctx, cancel := context.WithTimeout(in.d.ctx, registryTime)
	defer cancel()
	_, err := in.d.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: in.ds})
	return err == nil
}

// giveWay ends an intake that another has begun anew, or goes on with. It may notice that
// late, and this node may have begun to read a part of what the other leads, to be its
// heir, or to have the dataset: all that stays. What the scan has read the other has
// counted.
func (in *intake) giveWay() error {
	err := os.RemoveAll(in.dir())
	in.d.stage.unlead(in)
	in.d.Nudge()
	if err != nil {
		return fmt.Errorf("stage-in of %s: %w", in.ds.Source, err)
	}
	return fmt.Errorf("stage-in of %s: was begun anew by another node: %w", in.ds.Source, syscall.ECANCELED)
}

// counter counts the bytes that a scan, or a share, reads of the source, in a file that
// outlives the daemon: what one that was killed had read counts, too. A read counts when
// it is asked for, so what was in flight then may count that did not come.
type counter struct {
	f    *os.File
	n    *atomic.Int64
	kept atomic.Int64 // what the file says
}

// countEvery is how many bytes may be read without being in the file.
const countEvery = 64 << 10

func (d *Daemon) countFile(id metadata.DatasetID, turn int) string {
	return filepath.Join(d.turnDir(id, turn), "scanned")
}

// newCounter goes on from n.
func newCounter(path string, n *atomic.Int64) (*counter, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("stage-in: %w", err)
	}
	c := &counter{f: f, n: n}
	c.kept.Store(n.Load())
	return c, nil
}

func (c *counter) close() { _ = c.f.Close() } // what counts was written

// of is fs with what is read of it counted.
func (c *counter) of(fs source.FS) source.FS { return source.Paced(fs, c.add) }

func (c *counter) add(n int64) error {
	now, kept := c.n.Add(n), c.kept.Load()
	if now-kept < countEvery || !c.kept.CompareAndSwap(kept, now) {
		return nil
	}
	if _, err := c.f.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(now)), 0); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}

// readCount is what a counter has written; 0 if there is none.
func readCount(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil || len(b) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

// scanned is what this node has read for the scans that it leads, and what is read again
// if it is lost.
func (d *Daemon) scanned() map[metadata.DatasetID]int64 {
	var all map[metadata.DatasetID]int64
	for _, ds := range d.View().Datasets {
		in := d.stage.leader(ds.ID)
		if ds.Phase != cluster.Staging || ds.Reading || in == nil {
			continue
		}
		if all == nil {
			all = make(map[metadata.DatasetID]int64)
		}
		all[ds.ID] = in.scans.Load()
	}
	return all
}
