package pitch

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// fakeHelper hands over a descriptor, reports that it has mounted, and runs until its control connection closes.
// Descriptor 3 is the parent's socket, 4 the control connection.
func fakeHelper() int {
	null, err := os.Open(os.DevNull)
	if err == nil {
		err = errors.Join(unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(null.Fd())), nil, 0), unix.Sendmsg(3, []byte{1}, nil, nil, 0))
	}
	if err == nil {
		_, err = io.Copy(io.Discard, os.NewFile(4, "talk"))
	}
	if err != nil {
		return 1
	}
	return 0
}

// TestHelpers: the number of concurrent helpers of a daemon is limited, whatever it requests; when one ends, another
// may start.
func TestHelpers(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	c := &child{k: &keeper{rec: &record{}, program: "/proc/self/exe", log: logrus.NewEntry(log)}, stop: make(chan struct{})}
	var talks []*os.File
	ask := func() error {
		files, err := c.cover("set")
		if err != nil {
			return err
		}
		talks = append(talks, files[1])
		return files[0].Close()
	}
	for range maxHelpers {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		wantErrno(t, "one helper more than may be", ask(), syscall.EAGAIN)
	}
	if err := talks[0].Close(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(time.Minute)
	for err := ask(); err != nil; err = ask() {
		if <-tick.C; time.Now().After(end) {
			t.Fatalf("no helper in the place of one that has ended: %v", err)
		}
	}
	closeFiles(talks[1:]) // the helpers end
	close(c.stop)
	c.wg.Wait()
	if n := c.helpers.Load(); n != 0 {
		t.Errorf("%d helpers are at work when all have ended", n)
	}
}
