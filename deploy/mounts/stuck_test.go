package mounts

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/leaktest"
)

// TestMain lets the test binary act as a helper that hangs in its own mount.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "stuck" {
		os.Exit(stuckHelper())
	}
	leaktest.Main(m)
}

// stuckHelper sends a request on its connection that is never answered.
func stuckHelper() int {
	m, dev, err := (&Cover{}).connection()
	if err != nil {
		return 1
	}
	_ = answers(m, dev)
	return 2
}

const (
	fuseInit    = 26
	fuseGetattr = 3
	fuseStatx   = 52
)

// takeUp reads from a connection until the helper's request arrives. It answers only the initialization.
func takeUp(dev *os.File) error {
	b := make([]byte, 1<<20)
	for {
		n, err := dev.Read(b)
		if err != nil || n < 40 {
			return errors.Join(err, unix.EPROTO)
		}
		switch binary.NativeEndian.Uint32(b[4:]) {
		case fuseGetattr, fuseStatx:
			return nil
		case fuseInit:
			out := make([]byte, 16+64)
			binary.NativeEndian.PutUint32(out, uint32(len(out)))
			copy(out[8:16], b[8:16])                    // unique
			binary.NativeEndian.PutUint32(out[16:], 7)  // version 7.31
			binary.NativeEndian.PutUint32(out[20:], 31) //
			binary.NativeEndian.PutUint32(out[36:], 1<<16)
			if _, err := dev.Write(out); err != nil {
				return err
			}
		}
	}
}

// TestHelperIsStuck: the wait for a helper that hangs in its mount, and cannot even be killed, is bounded, and the
// error names the process.
func TestHelperIsStuck(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := helper{program: "/proc/self/exe", args: []string{"stuck"}, limit: time.Minute}
	m, err := h.start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Talk.Close()
	if err := takeUp(m.Dev); err != nil {
		t.Fatal(err)
	}
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.End() }()
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.EBUSY) {
			t.Fatalf("the end of a hanging helper is %v, want EBUSY", err)
		}
		_, pid, _ := strings.Cut(err.Error(), "process ")
		pid, _, _ = strings.Cut(pid, ",")
		if n, e := strconv.Atoi(pid); e != nil || unix.Kill(n, 0) != nil {
			t.Errorf("%v names no running process", err)
		}
	case <-time.After(time.Minute):
		t.Error("still waiting for the helper")
	}
	if err := m.Dev.Close(); err != nil { // ends the connection
		t.Error(err)
	}
	if err := m.End(); err != nil {
		t.Errorf("after the connection has ended: %v", err)
	}
}
