// Command bench measures Bivouac against its limits: through the mounts of a job of four daemons on this one machine,
// against a plain loopback filesystem of the same FUSE library over the same disk, and against bare Pebble with the
// same records; for files of datasets, against the disk, an ext4 with cold names, and bare sockets. Its one idea is
// that only ratios within one run count: the arms of a figure alternate, values are medians of the samples, and the
// table names the machine.
//
// With --stage it measures stage-in instead, in jobs of four daemons that are started for each sample, from a source
// behind integration/slowpfs, against the source's bandwidth and tar.
//
// With --train it measures PyTorch (train.py) instead, on nodes in network namespaces with links of bounded
// bandwidth, against a copy on the disk and the source; independent counts are taken from slowpfs and the kernel's
// interface counters.
//
// With --faults it measures the cost of a killed daemon, a lost node and checksums.
//
// With --veth the nodes are in separate network namespaces, joined by veth pairs, and so are the bare client and the
// bare server.
//
// A figure is a file here: a value in figures, whose run takes samples with bench.rounds and bench.take. The program
// does not judge: it prints the target beside the ratio and exits 0 either way; only a measurement that is impossible
// is an error.
//
// The program starts itself again for every separate process: the loopback, slowpfs, and the workers that put load on
// a mount (worker.go).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
)

// figures lists all live figures, in the order of the table.
var figures = []figure{namesFigure, smallFigure, findFigure, budgetFigure, serverFigure, localFigure, remoteFigure, rpcFigure, listingFigure, streamFigure, writeFigure, randomFigure, memoryFigure, reopenFigure, coldRandomFigure, largeDirFigure}

// stageFigures lists the figures of --stage.
var stageFigures = []figure{stageFigure, stageCPUFigure, stageMembersFigure, stageScanFigure, stageLatencyFigure, stageEpochFigure, stageFirstFigure, stageOverflowFigure}

// trainFigures lists the figures of --train.
var trainFigures = []figure{trainFigure, trainOverflowFigure, trainCutFigure, trainRemoteFigure}

// faultFigures lists the figures of --faults: rows 1, 2, 3, 4 and 7 of the table of failures.
var faultFigures = []figure{faultSoakFigure, faultKillFigure, faultLostFigure, faultCopiesFigure, sumsFigure}

// vethFigures lists the figures of --veth.
var vethFigures = []figure{remoteFigure}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "worker" {
		exit(worker(os.Args[2:]))
	}
	cfg, err := parse(os.Args[1:])
	if err != nil {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, cfg))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func parse(args []string) (config, error) {
	var c config
	var only, arms string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&c.program, "bivouac", "bin/bivouac", "the program to measure")
	fs.StringVar(&c.dir, "dir", "", "where stores and loopback lie: a new directory below this one (default the one for temporary files)")
	fs.StringVar(&c.json, "json", "", "write the table to this file as JSON, too")
	fs.BoolVar(&c.stage, "stage", false, "the figures of stage-in instead of those of the live realm")
	fs.BoolVar(&c.train, "train", false, "the figures of training with PyTorch; --rounds 1 unless given")
	fs.BoolVar(&c.faults, "faults", false, "the figures of killed daemons, lost nodes and checksums")
	fs.StringVar(&c.soak, "soak", "bin/soak", "with --faults: the compiled tests of integration/soak")
	fs.StringVar(&c.python, "python", "/usr/bin/python3", "with --train: a Python that has PyTorch")
	fs.StringVar(&c.module, "module", "fsclient/python", "with --train: the directory of the Python package")
	fs.BoolVar(&c.veth, "veth", false, "only what goes between nodes that are in network namespaces of their own")
	fs.StringVar(&only, "run", "", "only the figures whose name matches this regular expression")
	fs.StringVar(&arms, "arms", "", "with --train: only the arms whose name matches this regular expression")
	fs.IntVar(&c.rounds, "rounds", 5, "how often every arm of a figure takes its turn")
	fs.BoolVar(&c.quick, "quick", false, "few rounds of little work: shows that it runs, not how fast")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	if fs.NArg() > 0 {
		return c, fmt.Errorf("unknown argument %q", fs.Arg(0))
	}
	given := false
	fs.Visit(func(f *flag.Flag) { given = given || f.Name == "rounds" })
	if c.train && !given {
		c.rounds = 1
	}
	var err error
	if c.module, err = filepath.Abs(c.module); err != nil {
		return c, err
	}
	if c.arms, err = regexp.Compile(arms); err != nil {
		return c, err
	}
	c.only, err = regexp.Compile(only)
	return c, err
}
