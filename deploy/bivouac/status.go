package main

import (
	"bytes"
	"os"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/show"
)

func statusCmd() *cobra.Command {
	var sources bool
	c := statusLike("status", "Show nodes, space and datasets of a job", func(c *cobra.Command, s daemon.Status) error {
		if sources {
			return show.Sources(c.OutOrStdout(), s)
		}
		return show.Status(c.OutOrStdout(), s)
	})
	c.Example = "  bivouac status\n  bivouac status --dir /tmp/camp --sources"
	c.Flags().BoolVar(&sources, "sources", false, "show how fast this node reads datasets from each node and the source")
	return c
}

func reportCmd() *cobra.Command {
	var html string
	var line bool
	c := statusLike("report", "Show what staging and training have read, from where, and how long it took", func(c *cobra.Command, s daemon.Status) error {
		if line {
			return show.Line(c.OutOrStdout(), s)
		}
		if html == "" {
			return show.Report(c.OutOrStdout(), s)
		}
		var b bytes.Buffer
		if err := show.HTML(&b, s); err != nil {
			return err
		}
		return os.WriteFile(html, b.Bytes(), 0o644)
	})
	c.Example = "  bivouac report\n  bivouac report --html report.html\n" + `  scontrol update job=$SLURM_JOB_ID comment="$(bivouac report --line)"`
	c.Flags().StringVar(&html, "html", "", "write the report to this file as one self-contained page with charts")
	c.Flags().BoolVar(&line, "line", false, "print one line, for the comment of the job")
	c.MarkFlagsMutuallyExclusive("html", "line", "json")
	return c
}

// statusLike returns a command that shows the daemon's status.
func statusLike(use, short string, text func(*cobra.Command, daemon.Status) error) *cobra.Command {
	var w which
	var asJSON bool
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: w.run(func(c *cobra.Command, ctl *daemon.Ctl, _ []string) error {
			s, err := ctl.TrainingStatus(c.Context())
			if err != nil {
				return err
			}
			if !asJSON {
				return text(c, s)
			}
			return writeJSON(c.OutOrStdout(), s)
		}),
	}
	w.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
