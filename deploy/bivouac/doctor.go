package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/doctor"
	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func doctorCmd() *cobra.Command {
	var config, peer string
	var probe time.Duration
	var asJSON, submit bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine has what Bivouac needs, with a remedy for each finding",
		Long: `Doctor checks the kernel, /dev/fuse, the store (with a probe of its speed), munge,
Slurm's settings, the plugin, the network to another node and the clock, before
or after the installation. It changes nothing. Run it as root: other users cannot
see everything. With --submit it checks only what a host that submits jobs needs.
The exit status is 1 if jobs would fail.`,
		Example: "  bivouac doctor --peer node2\n  bivouac doctor --submit",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			site, err := pitch.LoadSite(config)
			all := []doctor.Finding{{Check: "configuration", State: doctor.OK, Found: config}}
			if _, gone := os.Stat(config); gone != nil && err == nil {
				all[0].Found += " is missing: the defaults are used"
			}
			if err != nil { // then check the defaults
				all[0] = doctor.Finding{Check: "configuration", State: doctor.Failed, Found: err.Error(), Remedy: "correct it; bivouac config check " + config + " checks it again"}
			}
			all = append(all, doctor.Run(c.Context(), doctor.Config{
				Host: doctor.This{}, Path: config, Store: site.Store, Mount: site.Mount, Run: site.Run, Log: site.Log, Port: site.Port, Ports: site.Ports,
				Munge: string(site.Munge), MungeSocket: site.MungeSocket, StartTimeout: time.Duration(site.StartTimeout), EpilogTimeout: site.LeaveTime(true),
				FailureTimeout: time.Duration(site.FailureTimeout), Memory: int64(site.Memory), Network: site.Network, Textfile: site.MetricsTextfile,
				Submit: submit, Peer: peer, Probe: probe,
			})...)
			if asJSON {
				err = writeJSON(c.OutOrStdout(), all)
			} else {
				err = doctor.Write(c.OutOrStdout(), all)
			}
			if err == nil && doctor.Worst(all) == doctor.Failed {
				err = fmt.Errorf("jobs would fail on this machine: follow the remedies above, and run bivouac doctor again")
			}
			return err
		},
	}
	c.Flags().StringVar(&config, "config", pitch.SitePath, "path of the site configuration")
	c.Flags().StringVar(&peer, "peer", "", "another node, to check the network to it")
	timeVar(c.Flags(), &probe, "probe", 2*time.Second, "time for the speed of each drive; 0 for none")
	c.Flags().BoolVar(&submit, "submit", false, "this is a submit host: do not check what only nodes need")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
