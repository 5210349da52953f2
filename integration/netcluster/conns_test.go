package netcluster

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	connsReaders                 = 16
	connsSample                  = 110 << 10 // an image of a typical dataset
	connsJob                     = "conns"
	connsNode    metadata.NodeID = 1
)

var connsKey = rpc.Key{1} // for a job of two processes on one machine

// BenchmarkConns measures the processor time, at both ends, of reading a small remote file, for 16 readers and
// several bulk connections. It produced the table in the comment of package rpc.
func BenchmarkConns(b *testing.B) {
	b.Run("loopback", func(b *testing.B) {
		none := func(int) []string { return nil }
		benchmarkConns(b, none, "127.0.0.1")
	})
	b.Run("veth", func(b *testing.B) {
		NeedRoot(b)
		nw, err := NewNetwork(2)
		if err != nil {
			b.Fatal(err)
		}
		defer nw.Close()
		benchmarkConns(b, nw.Wrap, nw.Host(0))
	})
}

func benchmarkConns(b *testing.B, wrap func(int) []string, host string) {
	b.Helper()
	addr := filepath.Join(b.TempDir(), "addr")
	server := connsEnd(wrap(0), "server", host, addr)
	in, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = in.Close() // this ends it
		if err := server.Wait(); err != nil {
			b.Errorf("server: %v", err)
		}
	}()
	to := awaitFile(b, addr)
	for _, conns := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("conns=%d", conns), func(b *testing.B) {
			out, err := connsEnd(wrap(1), "client", to, strconv.Itoa(conns), strconv.Itoa(b.N)).Output()
			if err != nil {
				b.Fatalf("client: %v: %s", err, out)
			}
			line, _, _ := bytes.Cut(out, []byte("\n"))
			cpu, err := time.ParseDuration(string(line))
			if err != nil {
				b.Fatalf("client: %v: %s", err, out)
			}
			b.SetBytes(connsSample)
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}

// connsEnd returns the command for one of the two programs.
func connsEnd(wrap []string, args ...string) *exec.Cmd {
	all := append(append([]string(nil), wrap...), os.Args[0], "-test.run=^TestConnsEnd$", "--")
	all = append(all, args...)
	c := exec.Command(all[0], all[1:]...)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// awaitFile returns the content of a file once it is not empty.
func awaitFile(b *testing.B, path string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if s, err := os.ReadFile(path); err == nil && len(s) > 0 {
			return string(s)
		}
		if !retry.Pause(ctx, 5*time.Millisecond) {
			b.Fatalf("the server did not begin within %v", patience)
		}
	}
}

// TestConnsEnd is not a test but the two programs of BenchmarkConns.
func TestConnsEnd(t *testing.T) {
	args := flag.Args()
	var err error
	switch {
	case len(args) == 3 && args[0] == "server":
		err = connsServer(args[1], args[2])
	case len(args) == 4 && args[0] == "client":
		err = connsClient(args[1], args[2], args[3])
	default:
		t.Skip("run by BenchmarkConns")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func processorTime() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err) // it is always known for this process
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// connsServer sends one file until its input ends, and prints its processor time.
func connsServer(host, addr string) error {
	f, err := os.Create(addr + ".file")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(randomBytes(connsSample)); err != nil {
		return err
	}
	s, err := rpc.NewServer(rpc.ServerConfig{
		Key: connsKey, Job: connsJob, Self: connsNode,
		Handlers: map[wire.Op]rpc.Handler{
			wire.OpRead: func(_ context.Context, _ *rpc.Request, resp *rpc.Response) error {
				resp.File, resp.Len = f, connsSample
				return nil
			},
			wire.OpReport: func(_ context.Context, _ *rpc.Request, resp *rpc.Response) error {
				own := wire.StringResp{S: processorTime().String()}
				resp.Body = &own
				return nil
			},
		},
		InlineWhenIdle: func(op wire.Op) bool { return op == wire.OpRead },
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		return err
	}
	served := make(chan error, 1) // for its end
	go func() { served <- s.Serve(l) }()
	if err := os.WriteFile(addr+".new", []byte(l.Addr().String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(addr+".new", addr); err != nil {
		return err
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is closed
	if err := s.Close(); err != nil {
		return err
	}
	return <-served
}

// connsClient prints the cost of reads at both ends.
func connsClient(to, conns, reads string) error {
	most, err := strconv.Atoi(conns)
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(reads, 10, 64)
	if err != nil {
		return err
	}
	p, err := rpc.NewPeers(rpc.PeersConfig{
		Key: connsKey, Job: connsJob, Self: rpc.NoNode, Conns: most,
		Addrs: func(metadata.NodeID) []string { return []string{to} },
	})
	if err != nil {
		return err
	}
	defer p.Close()
	caller := p.To(connsNode)
	if err := connsRead(caller, 50*connsReaders); err != nil { // to open all connections
		return err
	}
	before, err := bothEnds(caller)
	if err != nil {
		return err
	}
	if err := connsRead(caller, n); err != nil {
		return err
	}
	after, err := bothEnds(caller)
	if err == nil {
		fmt.Println(after - before)
	}
	return err
}

func bothEnds(caller rpc.Caller) (time.Duration, error) {
	var r wire.StringResp
	c := rpc.Call{Op: wire.OpReport, Reply: &r}
	if err := caller.Do(context.Background(), &c); err != nil {
		return 0, err
	}
	far, err := time.ParseDuration(r.S)
	return far + processorTime(), err
}

// connsRead makes n reads, spread over all readers.
func connsRead(caller rpc.Caller, n int64) error {
	var left atomic.Int64
	left.Store(n)
	errs := make(chan error, connsReaders)
	var wg sync.WaitGroup
	for range connsReaders {
		wg.Go(func() {
			into := make([]byte, connsSample)
			body := &wire.ReadReq{Ino: 5, Len: connsSample}
			for left.Add(-1) >= 0 {
				c := rpc.Call{Op: wire.OpRead, Body: body, Into: into}
				if err := caller.Do(context.Background(), &c); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}
