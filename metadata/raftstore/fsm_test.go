package raftstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts anew")

func initialView() cluster.View {
	return cluster.View{Map: cluster.NewMap(42, []string{"a", "b", "c"})}
}

// TestTranscript plays the commands of testdata/fsm.txt, the lines that begin with ">", and compares the replies. It
// plays them to two FSMs, one of which is moved to another by a snapshot after each command: both must agree.
func TestTranscript(t *testing.T) {
	const path = "testdata/fsm.txt"
	file, err := os.ReadFile(path)
	must(t, err)
	one, two := fsm{newBoard(initialView())}, fsm{newBoard(initialView())}
	var got strings.Builder
	for line := range strings.Lines(string(file)) {
		cmd, is := strings.CutPrefix(strings.TrimSpace(line), "> ")
		if !is {
			if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
				got.WriteString(line)
			}
			continue
		}
		before := asJSON(t, one.board.get())
		shared := one.board.get()
		answer := one.Apply(&raft.Log{Index: 7, Data: []byte(cmd)}).(result)
		same := two.Apply(&raft.Log{Index: 7, Data: []byte(cmd)}).(result)
		if asJSON(t, shared) != before {
			t.Fatalf("%s changed the View that others hold", cmd)
		}
		if asJSON(t, answer.view) != asJSON(t, same.view) || fmt.Sprint(answer.err) != fmt.Sprint(same.err) {
			t.Fatalf("%s: two FSMs answer %+v and %+v", cmd, answer, same)
		}
		two = moved(t, two)
		fmt.Fprintf(&got, "> %s\n", cmd)
		if answer.err != nil {
			var no syscall.Errno
			if !errors.As(answer.err, &no) || asJSON(t, answer.view) != before {
				t.Fatalf("%s: error %v is no errno, or changed the View", cmd, answer.err)
			}
			fmt.Fprintf(&got, "error: %v\n", answer.err)
			continue
		}
		fmt.Fprintf(&got, "%s\n", asJSON(t, answer.view))
	}
	if *rewrite {
		must(t, os.WriteFile(path, []byte(got.String()), 0o644))
	}
	if got.String() != string(file) && !*rewrite {
		t.Errorf("the transcript is now\n%s", got.String())
	}
}

func asJSON(t *testing.T, v cluster.View) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

// moved returns a new FSM restored from a snapshot of f.
func moved(t *testing.T, f fsm) fsm {
	t.Helper()
	s, err := f.Snapshot()
	must(t, err)
	k := &memSink{}
	must(t, s.Persist(k))
	n := fsm{newBoard(initialView())}
	must(t, n.Restore(io.NopCloser(&k.Buffer)))
	if !reflect.DeepEqual(n.board.get(), f.board.get()) {
		t.Fatalf("a restored View is %+v, want %+v", n.board.get(), f.board.get())
	}
	return n
}

type memSink struct{ bytes.Buffer }

func (*memSink) ID() string    { return "mem" }
func (*memSink) Cancel() error { return nil }
func (*memSink) Close() error  { return nil }

func TestRestoreFails(t *testing.T) {
	f := fsm{newBoard(initialView())}
	if err := f.Restore(io.NopCloser(strings.NewReader("{"))); err == nil {
		t.Error("half a snapshot is restored")
	}
	if !reflect.DeepEqual(f.board.get(), initialView()) {
		t.Error("a bad snapshot changed the View")
	}
}

func TestTooManyDatasets(t *testing.T) {
	v := initialView()
	v.Datasets = make([]cluster.Dataset, maxDatasets)
	if _, err := Apply(v, Command{Kind: KindAddDataset, Dataset: cluster.Dataset{Name: "x"}}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("one dataset too many = %v, want ENOSPC", err)
	}
}

// TestAttempts: a stage-in restarts, or resumes during the reading phase, and the new coordinator learns which;
// an attempt has one coordinator; commands of another attempt, or of a node that does not coordinate this one,
// are ignored.
func TestAttempts(t *testing.T) {
	v := initialView()
	v.Datasets = []cluster.Dataset{{ID: 1, Name: "x", Coordinator: 1, Phase: cluster.Staging}}
	set := func(d cluster.Dataset) error {
		t.Helper()
		d.ID = 1
		n, err := Apply(v, Command{Kind: KindSetDataset, Dataset: d})
		v = n
		return err
	}
	for _, s := range []struct {
		name    string
		d       cluster.Dataset
		want    error
		attempt int
		by      metadata.NodeID
	}{
		{"another node", cluster.Dataset{Phase: cluster.Staging, Attempt: 1, Coordinator: 2}, nil, 1, 2},
		{"once more, the answer was lost", cluster.Dataset{Phase: cluster.Staging, Attempt: 1, Coordinator: 2}, nil, 1, 2},
		{"a third takes the same attempt", cluster.Dataset{Phase: cluster.Staging, Attempt: 1, Coordinator: 1}, syscall.ESTALE, 1, 2},
		{"it says that it is done", cluster.Dataset{Phase: cluster.Publishing, Attempt: 1, Coordinator: 1, Digest: "old"}, syscall.ESTALE, 1, 2},
		{"the first is done", cluster.Dataset{Phase: cluster.Publishing, Coordinator: 1, Digest: "old"}, syscall.ESTALE, 1, 2},
		{"the first has failed", cluster.Dataset{Phase: cluster.Failed, Coordinator: 1}, syscall.ESTALE, 1, 2},
		{"an attempt is left out", cluster.Dataset{Phase: cluster.Staging, Attempt: 3, Coordinator: 1}, syscall.ESTALE, 1, 2},
		{"an attempt cannot end as it begins", cluster.Dataset{Phase: cluster.Publishing, Attempt: 2, Coordinator: 1}, syscall.ESTALE, 1, 2},
		{"files are read", cluster.Dataset{Phase: cluster.Staging, Attempt: 1, Coordinator: 2, Reading: true}, nil, 1, 2},
		{"anew, not knowing that", cluster.Dataset{Phase: cluster.Staging, Attempt: 2, Coordinator: 1}, syscall.ESTALE, 1, 2},
		{"on with it", cluster.Dataset{Phase: cluster.Staging, Attempt: 2, Coordinator: 1, Reading: true}, nil, 2, 1},
		{"on with it at the same time", cluster.Dataset{Phase: cluster.Staging, Attempt: 2, Coordinator: 2, Reading: true}, syscall.ESTALE, 2, 1},
		{"the one before is done", cluster.Dataset{Phase: cluster.Publishing, Attempt: 1, Coordinator: 2, Digest: "old"}, syscall.ESTALE, 2, 1},
		{"done", cluster.Dataset{Phase: cluster.Publishing, Attempt: 2, Coordinator: 1, Digest: "d"}, nil, 2, 1},
		{"too late", cluster.Dataset{Phase: cluster.Staging, Attempt: 3, Coordinator: 2, Reading: true}, syscall.ESTALE, 2, 1},
	} {
		if err := set(s.d); !errors.Is(err, s.want) {
			t.Errorf("%s: %v, want %v", s.name, err, s.want)
		}
		if d := v.Datasets[0]; d.Attempt != s.attempt || d.Coordinator != s.by {
			t.Errorf("%s: attempt %d by node %d, want %d by %d", s.name, d.Attempt, d.Coordinator, s.attempt, s.by)
		}
	}
	if d := v.Datasets[0]; d.Phase != cluster.Publishing || d.Digest != "d" || !d.Reading {
		t.Errorf("at the end: %+v", d)
	}
}
