package soak

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/integration/netcluster"
)

// networkOf makes this program the process that holds the network: its value is the number of nodes. Commands that
// cut and mend links run there, because a process that forks with files of a mount open waits for their flushes,
// which a cut link delays: the command that mends it would wait for itself.
const networkOf = "BIVOUAC_TEST_NETWORK"

// network is the client of that process.
type network struct {
	in    io.WriteCloser
	out   *bufio.Scanner
	cmd   *exec.Cmd
	Addrs [][]string // of the nodes
	Wraps [][]string // command prefix for a node's namespace
}

// startNetwork starts a network, which ends with the test.
func startNetwork(t *testing.T, n int) *network {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	nw := &network{cmd: exec.Command(exe)}
	nw.cmd.Env = append(os.Environ(), networkOf+"="+strconv.Itoa(n))
	nw.cmd.Stderr = os.Stderr
	if nw.in, err = nw.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := nw.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := nw.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = nw.in.Close() // this ends it
		if err := nw.cmd.Wait(); err != nil {
			t.Errorf("network: %v", err)
		}
	})
	nw.out = bufio.NewScanner(out)
	if !nw.out.Scan() {
		t.Fatalf("network: no answer: %v", nw.out.Err())
	}
	if err := json.Unmarshal(nw.out.Bytes(), nw); err != nil {
		t.Fatalf("network: %q: %v", nw.out.Text(), err)
	}
	return nw
}

// do runs a command of serveNetwork.
func (nw *network) do(args ...any) error {
	if _, err := fmt.Fprintln(nw.in, args...); err != nil {
		return err
	}
	if !nw.out.Scan() {
		return errors.Join(io.ErrUnexpectedEOF, nw.out.Err())
	}
	if s := nw.out.Text(); s != "done" {
		return fmt.Errorf("%v: %s: %w", args, s, syscall.EIO)
	}
	return nil
}

// serveNetwork makes a network of n namespaces, prints its addresses, and runs command lines until stdin ends.
func serveNetwork(nodes string) error {
	runtime.LockOSThread()                         // the namespaces end with this thread
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM) // standard input is closed then
	n, err := strconv.Atoi(nodes)
	if err != nil {
		return err
	}
	nw, err := netcluster.NewNetwork(n)
	if err != nil {
		return err
	}
	defer nw.Close()
	reached := struct{ Addrs, Wraps [][]string }{Addrs: nw.Addrs()}
	for i := range n {
		reached.Wraps = append(reached.Wraps, nw.Wrap(i))
	}
	if err := json.NewEncoder(os.Stdout).Encode(reached); err != nil {
		return err
	}
	for r := bufio.NewScanner(os.Stdin); r.Scan(); {
		var what string
		var i, k int
		if _, err := fmt.Sscan(r.Text()+" 0 0", &what, &i, &k); err != nil {
			return fmt.Errorf("%q: %w", r.Text(), err)
		}
		err := map[string]func() error{
			"cut": func() error { return nw.Cut(i) }, "mend": func() error { return nw.Mend(i) },
			"cut-to": func() error { return nw.CutTo(i, k) }, "mend-to": func() error { return nw.MendTo(i, k) },
		}[what]()
		if err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("done")
		}
	}
	return nil
}
