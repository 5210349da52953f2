// Command slowpfs serves a directory as a slow parallel filesystem would (see
// package slowpfs), until it gets a signal or its standard input ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/bivouacfs/bivouac/integration/slowpfs"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "slowpfs:", err)
		os.Exit(1)
	}
}

func run() error {
	var cfg slowpfs.Config
	flag.StringVar(&cfg.Under, "under", "", "the directory that is served")
	flag.StringVar(&cfg.Socket, "socket", "", "answer GET /stats and POST /limits on this Unix socket")
	flag.DurationVar(&cfg.Limits.Latency, "latency", 0, "of every request")
	flag.Int64Var(&cfg.Limits.Bandwidth, "bandwidth", 0, "bytes per second, all mounts together (default no limit)")
	flag.Int64Var(&cfg.Limits.IOPS, "iops", 0, "requests per second, all mounts together (default no limit)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "slowpfs --under DIR [--latency 1ms] [--bandwidth 200000000] [--iops 5000] MOUNTPOINT...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if cfg.Mounts = flag.Args(); cfg.Under == "" || len(cfg.Mounts) == 0 {
		flag.Usage()
		return syscall.EINVAL
	}
	s, err := slowpfs.Serve(cfg)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // waits for its end
		stop()
	}()
	<-ctx.Done()
	return s.Close()
}
