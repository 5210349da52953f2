// Command bivouac is the whole program: the daemon of a node, the commands that Slurm's plugin runs, and those for
// users. Each command is one file: it turns flags into a configuration, starts something, and waits.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	daemonnode "github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/deploy/pitch"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	os.Exit(exitStatus(err))
}

// one checks the argument of a command that takes exactly one.
func one(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return fmt.Errorf("%s takes one %s, not %d arguments: see %s --help", c.Name(), what, len(args), c.CommandPath())
	}
}

// timeVar is DurationVar that also accepts a number of seconds, as in --bivouac-opts and the site's configuration.
func timeVar(flags *pflag.FlagSet, to *time.Duration, name string, value time.Duration, usage string) {
	*to = value
	flags.Var((*timeValue)(to), name, usage)
}

type timeValue time.Duration

func (v *timeValue) Set(s string) error {
	d, err := pitch.ParseTime(s)
	*v = timeValue(d)
	return err
}

func (v *timeValue) String() string { return time.Duration(*v).String() }
func (v *timeValue) Type() string   { return "duration" }

// exitError is an error with a given exit status; without a text it is not printed.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	e, ok := err.(*exitError)
	if !ok {
		e = &exitError{status: 1, err: err}
	}
	if e.err != nil {
		fmt.Fprintln(os.Stderr, "bivouac:", daemonnode.ErrorText(e.err))
	}
	return e.status
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "bivouac",
		Short: "A filesystem that lives as long as one Slurm job",
		Long: `Bivouac turns the node-local drives of a Slurm job into one filesystem that is
there when the job starts and gone when it ends.

In a job script:

    #SBATCH --bivouac-stage-in=/lustre/me/imagenet.tar
    #SBATCH --bivouac-stage-out=ckpt:/lustre/me/run7
    #SBATCH --bivouac-opts=wait=all,capacity=400G

The job reads the dataset in $BIVOUAC_DATA/imagenet and writes to
$BIVOUAC_SCRATCH. Files in $BIVOUAC_SCRATCH/ckpt are copied to /lustre/me/run7
while the job runs and at its end.

Without Slurm, on this machine:

    bivouac up --dir D
    bivouac stage-in imagenet.tar --dir D
    ls D/node0/data/imagenet
    bivouac down --dir D`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	group := func(id, title string, commands ...*cobra.Command) {
		c.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, s := range commands {
			s.GroupID = id
		}
		c.AddCommand(commands...)
	}
	group("job", "In a job, or with --dir D:", statusCmd(), topCmd(), stageInCmd(), cancelCmd(), removeCmd(), stageOutCmd(), waitCmd(), reportCmd(), skippedCmd(), verifyCmd(), checkCmd(), locateCmd(), planCmd())
	group("alone", "Without a job:", upCmd(), downCmd(), simulateCmd())
	group("site", "For administrators:", doctorCmd(), configCmd(), prologCmd(), epilogCmd())
	c.AddCommand(daemonCmd(), keeperCmd(), coverCmd(), viewCmd(), checkOptionsCmd(), versionCmd(), manCmd())
	c.SetUsageTemplate(c.UsageTemplate() + "{{if not .HasParent}}\n" + optsHelp() + "{{end}}")
	return c
}

// optsHelp returns the documentation of the keys of --bivouac-opts.
func optsHelp() string { return "Keys of --bivouac-opts:\n\n" + keysHelp(pitch.OptionKeys) }
