package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func daemonCmd() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:    "daemon --job-file F",
		Short:  "Serve one node of a job (run by the keeper or by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conn := os.NewFile(daemon.HeartbeatFD, "heartbeat")
			if _, err := conn.Stat(); err != nil {
				return errors.New("the daemon command cannot be run by hand: use bivouac up")
			}
			l := daemon.NewHeartbeat(conn)
			defer l.Close()
			err := runDaemon(c.Context(), file, l)
			if err != nil {
				_ = l.Send(daemon.Note{Failed: err.Error()}) // the keeper may have ended; the log has the error
			}
			return err
		},
	}
	c.Flags().StringVar(&file, "job-file", "", "the job file (required)")
	must(c.MarkFlagRequired("job-file"))
	return c
}

// runDaemon serves until an order, the end of the heartbeat connection or a signal.
func runDaemon(ctx context.Context, file string, heartbeat *daemon.Heartbeat) error {
	log := logrus.NewEntry(logrus.StandardLogger())
	log.Logger.SetFormatter(pitch.LogFormatter(""))
	job, err := job.Read(file)
	if err != nil {
		return err
	}
	log.Logger.SetFormatter(pitch.LogFormatter(job.LogFormat))
	if job.Debug {
		log.Logger.SetLevel(logrus.DebugLevel)
	}
	var start daemon.Start
	if err := heartbeat.Receive(&start); err != nil {
		return err
	}
	lost := func(host string) {
		_ = heartbeat.Send(daemon.Note{Lost: host}) // if the keeper died, the connection closes
	}
	n, err := openNode(job, start, lost, log.WithField("host", job.Hosts[job.Self]))
	if err != nil {
		return err
	}
	defer n.close()
	orders := make(chan daemon.Order)
	starting, cut := context.WithCancel(ctx)
	defer cut()
	go listenHeartbeat(heartbeat, start.Detached, orders, cut)
	err = n.up(starting, heartbeat)
	if err != nil && starting.Err() != nil && ctx.Err() == nil {
		return errKeeperGone
	}
	if err != nil {
		return err
	}
	return n.serve(ctx, heartbeat, orders)
}

var errKeeperGone = errors.New("the keeper has ended")

// listenHeartbeat forwards orders. When the heartbeat connection closes it calls cut and closes orders, unless the
// daemon is to outlive the connection. It treats errors like EOF: a connection closed with unread data ends with a
// reset, not EOF.
func listenHeartbeat(l *daemon.Heartbeat, detached bool, orders chan<- daemon.Order, cut func()) {
	for {
		var o daemon.Order
		if err := l.Receive(&o); err != nil {
			if !detached {
				cut()
				close(orders)
			}
			return
		}
		orders <- o
	}
}

func parseKey(s string) (rpc.Key, error) {
	var k rpc.Key
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(k) {
		return k, fmt.Errorf("the job key is not %d bytes of hex", len(k))
	}
	copy(k[:], b)
	return k, nil
}

func inheritedListener(start daemon.Start) (net.Listener, error) {
	if !start.Listen {
		return nil, nil
	}
	f := os.NewFile(daemon.ListenFD, "listener")
	defer f.Close()
	return net.FileListener(f)
}
