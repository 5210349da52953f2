package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func goodJob() *Job {
	return &Job{
		Version: JobVersion, ID: "7", Hosts: []string{"a", "b"}, Addrs: [][]string{{"a:1"}, {"b:1", "b:2"}},
		Dirs: Dirs{Store: []string{"/s"}, Run: "/r", Mount: "/m"},
	}
}

func TestJobFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.json")
	if err := goodJob().Write(path); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", st.Mode(), err)
	}
	j, err := ReadJob(path)
	if err != nil || j.Name() != "7.0" || j.CtlSocket() != "/r/ctl.sock" {
		t.Errorf("ReadJob = %+v, %v", j, err)
	}
}

func TestJobComplaints(t *testing.T) {
	for want, break_ := range map[string]func(*Job){
		"version is 9":       func(j *Job) { j.Version = 9 },
		"id is empty":        func(j *Job) { j.ID = "" },
		"0 hosts":            func(j *Job) { j.Hosts = nil },
		"self is 2 of 2":     func(j *Job) { j.Self = 2 },
		"host 1 has no addr": func(j *Job) { j.Addrs[1] = nil },
		"is not absolute":    func(j *Job) { j.Dirs.Mount = "m" },
		"capacity is neg":    func(j *Job) { j.Capacity = -1 },
		"a bound is neg":     func(j *Job) { j.ServeRate = -1 },
		`two datasets are named "set": give one another name`: func(j *Job) {
			s := DatasetSpec{Source: "/a", Name: "set"}
			j.Datasets = []DatasetSpec{s, s}
		},
	} {
		j := goodJob()
		break_(j)
		if err := j.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q", err, want)
		}
	}
}

func TestJobFileRefused(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{"version":1,"nonsense":2}`, `{"version":1}`} {
		path := filepath.Join(t.TempDir(), "job.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadJob(path); err == nil {
			t.Errorf("ReadJob of %q: no error", text)
		}
	}
}

func TestLeash(t *testing.T) {
	a, b := net.Pipe()
	keeper, d := NewLeash(a), NewLeash(b)
	sent := make(chan error, 1)
	go func() { sent <- keeper.Send(Start{Key: "00", Fuse: true}) }()
	var s Start
	if err := d.Receive(&s); err != nil || !s.Fuse || s.Key != "00" {
		t.Fatalf("Receive = %+v, %v", s, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = a.Write([]byte("nonsense\n")); sent <- keeper.Close() }()
	if err := d.Receive(&s); err == nil {
		t.Error("nonsense was received without an error")
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if err := d.Receive(&s); err != io.EOF {
		t.Errorf("a cut leash gives %v, want EOF", err)
	}
}

// TestErrnoText: a user reads what is wrong, not that the message was bad.
func TestErrnoText(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{syscall.EBADMSG, "bad message"},
		{fmt.Errorf("read: %w", syscall.EIO), "read: input/output error"},
		{fmt.Errorf("a.tar: it is truncated: copy it again: %w", syscall.EBADMSG), "a.tar: it is truncated: copy it again"},
		{fmt.Errorf("f: %w", fmt.Errorf("was changed: %w", syscall.ESTALE)), "f: was changed"},
		{fmt.Errorf("%w; the last member is x", syscall.EBADMSG), "bad message; the last member is x"},
		{errors.New("plain"), "plain"},
	} {
		if got := errnoText(c.err); got != c.want {
			t.Errorf("errnoText(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}
