package main

import (
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

func keeperCmd() *cobra.Command {
	cfg := pitch.KeeperConfig{Key: os.Stdin}
	c := &cobra.Command{
		Use:    "keeper --record F",
		Short:  "Supervise a job's filesystem on this node (started by the prolog)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l := logrus.StandardLogger()
			l.SetFormatter(pitch.LogFormatter(""))
			cfg.Log = l.WithField("part", "keeper")
			return pitch.Keeper(c.Context(), cfg)
		},
	}
	c.Flags().StringVar(&cfg.Record, "record", "", "path of the record that the prolog wrote (required)")
	must(c.MarkFlagRequired("record"))
	return c
}
