package stageout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// fakeJob is n nodes that copy ckpt to /target, and a directory for the lists of failures.
type fakeJob struct {
	copiers  []*Copier
	registry *nodetest.Registry
	net      *nodetest.Network
	work     string
}

func startJob(t *testing.T, n int) *fakeJob {
	t.Helper()
	f := &fakeJob{registry: nodetest.NewRegistry(nodetest.View(n)), net: nodetest.NewNetwork(), work: t.TempDir()}
	for i := range n {
		x := nodetest.Join(t, metadata.NodeID(i), f.registry, f.net)
		run := tasks.New(x, time.Minute)
		j := &job.File{
			ID: "7", Self: metadata.NodeID(i), Hosts: nodetest.Hosts(n), WorkDir: f.work,
			StageOut: []job.StageOut{{From: "ckpt", To: "/target"}},
		}
		f.copiers = append(f.copiers, New(Config{
			Node: x, Tasks: run, Job: j, Every: time.Millisecond, Settle: 3 * time.Second, Ready: func() bool { return true },
		}))
		x.Serve(run.Handlers())
	}
	return f
}

// noPiece fails to copy any piece.
func noPiece(context.Context, stageout.Piece) error { return syscall.ENOTSUP }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// TestMemories: a copier keeps its memory of copies for the job's own targets and for the last other target only. Its
// job's names differ from those of another job of bivouac up with the same ID.
func TestMemories(t *testing.T) {
	c := startJob(t, 1).copiers[0]
	var got Share
	c.SetCopy(func(_ context.Context, s Share) (stageout.Result, error) { got = s; return stageout.Result{}, nil }, noPiece)
	memory := func(to string) *stageout.Memory {
		t.Helper()
		s := Share{StageOut: job.StageOut{From: "ckpt", To: to}}
		c.place(&s, []metadata.NodeID{0})
		if _, err := c.copyShare(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		return got.Memory
	}
	own, a := memory("/target"), memory("/a")
	if memory("/a/") != a || memory("/target/") != own {
		t.Error("what was copied is forgotten")
	}
	memory("/b")
	if memory("/a") == a {
		t.Error("the memory of /a is kept beside that of /b")
	}
	writer := got.Writer
	c = New(Config{Node: c.cfg.Node, Tasks: tasks.New(c.cfg.Node, time.Minute), Job: &job.File{ID: "7", Hosts: nodetest.Hosts(1), Dirs: job.Dirs{Mount: "/other/node0"}}})
	if c.place(&got, []metadata.NodeID{0}); got.Writer == writer {
		t.Errorf("jobs below other directories write as %q, too", writer)
	}
}

// TestBackground: scans count the files they copied, and report a failure from the second time on.
func TestBackground(t *testing.T) {
	f := startJob(t, 2)
	c := f.copiers[1]
	var fails, scans atomic.Int64
	c.SetCopy(func(_ context.Context, s Share) (stageout.Result, error) {
		if s.Self != 1 || s.N != 2 || s.Settle != 3*time.Second || !s.Trust || s.Memory == nil {
			t.Errorf("share %+v", s)
		}
		scans.Add(1)
		r := stageout.Result{Files: 1, Bytes: 10, Unsettled: 2}
		if fails.Load() > 0 {
			fails.Add(1)
			s.Failed(stageout.Failure{Name: "big", Bytes: 5, Err: syscall.ENOSPC})
			r.Failed, r.Errors = 1, []string{"big: no space left on device"}
		}
		return r, r.Err()
	}, noPiece)
	c.Start()
	eventually(t, "three scans", func() bool { return scans.Load() >= 3 })
	if st := c.Status()[0]; st.Files < 2 || st.Bytes != 10*st.Files || st.Unsettled != 2 || st.Error != "" {
		t.Errorf("status %+v", st)
	}
	if all := c.Failures(); all != nil {
		t.Errorf("failures %+v, want none", all)
	}
	fails.Store(1)
	eventually(t, "a failure", func() bool { return len(c.Failures()) == 1 })
	if fails.Load() < 3 {
		t.Errorf("a failure is reported after the first scan")
	}
	x := c.Failures()[0]
	if x.Final || x.Causes[0].Errno != syscall.ENOSPC || x.Causes[0].First != "big" {
		t.Errorf("failures %+v", x)
	}
	c.Stop()
	if all := c.Failures(); all != nil {
		t.Errorf("failures %+v after the end of the background scans", all)
	}
	n := scans.Load()
	time.Sleep(10 * time.Millisecond)
	if scans.Load() != n {
		t.Error("scans go on after Stop")
	}
}

// TestBackgroundWaits: a node copies nothing before the mount is ready or while it is down; a directory that does not
// exist yet is not a failure.
func TestBackgroundWaits(t *testing.T) {
	f := startJob(t, 2)
	c := f.copiers[0]
	var ready atomic.Bool
	var scans atomic.Int64
	c.cfg.Ready = ready.Load
	c.SetCopy(func(context.Context, Share) (stageout.Result, error) {
		scans.Add(1)
		return stageout.Result{}, fmt.Errorf("ckpt: %w", syscall.ENOENT)
	}, noPiece)
	share := Share{StageOut: c.cfg.Job.StageOut[0]}
	c.scan(t.Context(), 0, share)
	ready.Store(true)
	f.registry.SetState(0, cluster.Down)
	c.scan(t.Context(), 0, share)
	if scans.Load() != 0 {
		t.Errorf("%d scans before the node serves", scans.Load())
	}
	f.registry.SetState(0, cluster.Up)
	c.scan(t.Context(), 0, share)
	if st := c.Status()[0]; scans.Load() != 1 || st.Error != "" || st.At != 0 {
		t.Errorf("%d scans, status %+v", scans.Load(), st)
	}
}

// TestFinalRetries: temporary failures are retried while there is time, other failures are listed.
func TestFinalRetries(t *testing.T) {
	f := startJob(t, 1)
	c := f.copiers[0]
	var tries int
	c.SetCopy(func(_ context.Context, s Share) (stageout.Result, error) {
		tries++
		s.Failed(stageout.Failure{Name: "pipe", Err: syscall.ENOTSUP})
		r := stageout.Result{Failed: 1, Errors: []string{"pipe: operation not supported"}}
		if tries < 3 {
			s.Failed(stageout.Failure{Name: "f", Bytes: 1, Err: syscall.ENOSPC})
			r.Failed++
		}
		return r, r.Err()
	}, noPiece)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	err := c.Final(ctx, f.registry.View().Map)
	if tries != 3 || err == nil || !strings.Contains(err.Error(), "pipe") || !strings.Contains(err.Error(), "stage-out of ckpt to /target") {
		t.Errorf("after %d tries: %v", tries, err)
	}
	path := filepath.Join(f.work, "bivouac-7-node0.not-copied")
	list, _ := os.ReadFile(path)
	if string(list) != "\"ckpt/pipe\": operation not supported\n" {
		t.Errorf("the list is %q", list)
	}
	all := c.Failures()
	if len(all) != 1 || !all[0].Final || all[0].List != path || all[0].Lists != 1 {
		t.Errorf("failures %+v", all)
	}
}

// TestFinalRetriesTheWhole: a share that could not start, because a node or the mount did not answer, is also retried.
func TestFinalRetriesTheWhole(t *testing.T) {
	f := startJob(t, 1)
	c := f.copiers[0]
	why := []error{fmt.Errorf("stage-out to /target: %w", syscall.EHOSTDOWN), syscall.EAGAIN, syscall.EACCES}
	tries := 0
	c.SetCopy(func(context.Context, Share) (stageout.Result, error) {
		tries++
		return stageout.Result{}, why[tries-1]
	}, noPiece)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if err := c.Final(ctx, f.registry.View().Map); tries != 3 || !errors.Is(err, syscall.EACCES) {
		t.Errorf("after %d tries: %v, want EACCES after 3", tries, err)
	}
}

// TestTargetHangs: a target that does not answer delays neither the end of the scans nor the end of the job, and files
// that were not copied are reported.
func TestTargetHangs(t *testing.T) {
	t.Parallel()
	f := startJob(t, 1)
	c := f.copiers[0]
	hang, begun := make(chan struct{}), make(chan struct{}, 1)
	defer close(hang)
	c.SetCopy(func(_ context.Context, s Share) (stageout.Result, error) {
		begun <- struct{}{}
		<-hang
		s.Failed(stageout.Failure{Name: "late", Err: syscall.EIO})
		return stageout.Result{}, syscall.EIO
	}, noPiece)
	c.Start()
	<-begun
	c.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := c.Final(ctx, f.registry.View().Map); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Final = %v, want that time ran out", err)
	}
	if all := c.Failures(); len(all) != 1 || !all[0].Final || all[0].Causes[0].Errno != syscall.ETIME {
		t.Errorf("failures %+v, want one for lack of time", all)
	}
}

// TestPieceAfterRestart: a helper that has a record of pieces from a node's earlier daemon still copies pieces for the
// next daemon, even if the request must be repeated.
func TestPieceAfterRestart(t *testing.T) {
	f := startJob(t, 2)
	var copied atomic.Int64
	for _, c := range f.copiers {
		c.SetCopy(nil, func(context.Context, stageout.Piece) error { copied.Add(1); return nil })
	}
	nodes := []metadata.NodeID{0, 1}
	for want := range 2 {
		c := f.copiers[0]
		again := New(c.cfg)
		help, asked := again.helpOf(nodes), len(f.net.Calls())
		f.net.Cut(1, syscall.ECONNREFUSED)
		done := make(chan error, 1)
		go func() { done <- help(t.Context(), 1, stageout.Piece{To: "/target", Tmp: "f.tmp"}) }()
		eventually(t, "a request that is lost", func() bool { return len(f.net.Calls()) > asked })
		f.net.Cut(1, nil)
		if err := <-done; err != nil || copied.Load() != int64(want)+1 {
			t.Errorf("daemon %d: %v after %d pieces were copied, want %d", want, err, copied.Load(), want+1)
		}
	}
}

// TestHelperIsGivenUp: a helper that failed, or refused, has stopped writing; a lost one may still write.
func TestHelperIsGivenUp(t *testing.T) {
	f := startJob(t, 2)
	begun, hang := make(chan struct{}), make(chan struct{})
	help := func() error {
		return f.copiers[0].helpOf([]metadata.NodeID{0, 1})(t.Context(), 1, stageout.Piece{To: "/target", Tmp: "f.tmp"})
	}
	for name, piece := range map[string]PieceFunc{
		"refuses": nil,
		"fails":   func(context.Context, stageout.Piece) error { return syscall.EIO },
	} {
		f.copiers[1].SetCopy(nil, piece)
		if err := help(); err == nil || errors.Is(err, stageout.ErrUnfinished) {
			t.Errorf("a helper that %s: %v", name, err)
		}
	}
	f.copiers[1].SetCopy(nil, func(context.Context, stageout.Piece) error { close(begun); <-hang; return nil })
	defer close(hang)
	done := make(chan error, 1)
	go func() { done <- help() }()
	<-begun
	f.net.Cut(1, syscall.ECONNREFUSED)
	f.registry.SetState(1, cluster.Down)
	if err := <-done; !errors.Is(err, stageout.ErrUnfinished) {
		t.Errorf("a helper that is lost: %v, want that it may be writing", err)
	}
}

// TestUnwritten: writes that finally failed are reported to the user, however much could be copied.
func TestUnwritten(t *testing.T) {
	f := startJob(t, 1)
	c := f.copiers[0]
	c.SetUnwritten(fmt.Errorf("inode 5: %w", syscall.EIO))
	c.SetCopy(func(context.Context, Share) (stageout.Result, error) { return stageout.Result{}, nil }, noPiece)
	if err := c.Final(t.Context(), f.registry.View().Map); err != nil {
		t.Error(err)
	}
	all := Merge(c.Failures())
	if len(all) != 1 || !all[0].Final {
		t.Fatalf("failures %+v", all)
	}
	want := "bivouac: stage-out of ckpt to /target failed: the copy may lack recent writes on node0: inode 5: input/output error; before the next run, look in the job's output"
	if got := all[0].line(); !strings.HasPrefix(got, want) {
		t.Errorf("the line is %q, want %q", got, want)
	}
	c.setFailures(0, &Failures{StageOut: c.cfg.Job.StageOut[0], Final: true, Causes: []Cause{{Errno: syscall.ENOSPC, Reason: "full", Files: 2}}})
	for range 2 {
		if all = c.Failures(); len(all) != 1 || len(all[0].Causes) != 2 {
			t.Errorf("failures %+v, want two causes", all)
		}
	}
}

// TestFinalGivesUp: without a deadline there are no retries, and a share that failed as a whole is also a failure.
func TestFinalGivesUp(t *testing.T) {
	f := startJob(t, 2)
	c := f.copiers[0]
	if err := c.Final(t.Context(), f.registry.View().Map); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("without a mount: %v, want EAGAIN", err)
	}
	c.SetCopy(func(context.Context, Share) (stageout.Result, error) {
		return stageout.Result{}, context.DeadlineExceeded
	}, noPiece)
	if err := c.Final(t.Context(), f.registry.View().Map); err == nil {
		t.Error("a share that ran out of time: no error")
	}
	if all := c.Failures(); len(all) != 1 || all[0].Causes[0].Errno != syscall.ETIME {
		t.Errorf("failures %+v", all)
	}
	f.registry.SetState(0, cluster.Down)
	if err := c.Final(t.Context(), f.registry.View().Map); err != nil {
		t.Errorf("a node that was declared down: %v", err)
	}
	c.cfg.Job.WorkDir = ""
	if p := c.listPath(); p != "" {
		t.Errorf("a list at %q for a job without a directory", p)
	}
}

// TestAll: every node copies its own share, and pieces of large files for other nodes.
func TestAll(t *testing.T) {
	f := startJob(t, 3)
	f.registry.SetState(1, cluster.Down)
	var mu sync.Mutex
	pieces := make(map[metadata.NodeID]int)
	for i, c := range f.copiers {
		c.SetCopy(func(ctx context.Context, s Share) (stageout.Result, error) {
			if s.N != 2 {
				t.Errorf("share of %d nodes, want 2", s.N)
			}
			for k := range s.N {
				if err := s.Help(ctx, k, stageout.Piece{To: "/target", Tmp: "f.tmp"}); err != nil {
					t.Errorf("node %d asks node %d: %v", i, k, err)
				}
			}
			if err := s.Help(ctx, 2, stageout.Piece{}); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("help of a node that is not there: %v", err)
			}
			return stageout.Result{Files: int64(i) + 1}, nil
		}, func(context.Context, stageout.Piece) error {
			mu.Lock()
			defer mu.Unlock()
			pieces[metadata.NodeID(i)]++
			return nil
		})
	}
	r, err := f.copiers[0].All(t.Context(), f.copiers[0].cfg.Job.StageOut[0])
	if err != nil || r.Files != 4 {
		t.Errorf("All = %+v, %v, want 4 files", r, err)
	}
	if pieces[0] != 2 || pieces[1] != 0 || pieces[2] != 2 {
		t.Errorf("pieces by node %v, want 2 by 0 and 2", pieces)
	}
	f.copiers[2].SetCopy(func(context.Context, Share) (stageout.Result, error) {
		return stageout.Result{}, syscall.EIO
	}, func(context.Context, stageout.Piece) error { return nil })
	if _, err = f.copiers[0].All(t.Context(), f.copiers[0].cfg.Job.StageOut[0]); err == nil || !strings.HasPrefix(err.Error(), "node2: ") {
		t.Errorf("All with a node that fails: %v", err)
	}
}

// TestRequestsAreChecked: requests from peers are validated.
func TestRequestsAreChecked(t *testing.T) {
	f := startJob(t, 2)
	x := nodetest.Join(t, 1, f.registry, f.net)
	for name, q := range map[string]tasks.Request{
		"relative target": {ID: "a", Kind: kindShare, Body: []byte(`{"from":"a","to":"b","nodes":[0]}`)},
		"escapes":         {ID: "a", Kind: kindShare, Body: []byte(`{"from":"../a","to":"/b","nodes":[0]}`)},
		"not asked":       {ID: "a", Kind: kindShare, Body: []byte(`{"from":"a","to":"/b","nodes":[1]}`)},
		"too many nodes":  {ID: "a", Kind: kindShare, Body: []byte(`{"from":"a","to":"/b","nodes":[0,1,2]}`)},
		"no mount":        {ID: "a", Kind: kindPiece, Body: []byte(`{"to":"/b","tmp":"x"}`)},
	} {
		if err := x.Call(t.Context(), 0, wire.OpTask, q, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", name, err)
		}
	}
	f.copiers[0].SetCopy(nil, noPiece)
	for name, body := range map[string]string{"relative": `{"to":"b","tmp":"x"}`, "escapes": `{"to":"/b","tmp":"../x"}`} {
		if err := x.Call(t.Context(), 0, wire.OpTask, tasks.Request{ID: "a", Kind: kindPiece, Body: []byte(body)}, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("piece, %s: %v, want EINVAL", name, err)
		}
	}
}

// TestOneCopyForEachTarget: copies to the same directory do not overlap.
func TestOneCopyForEachTarget(t *testing.T) {
	c := startJob(t, 1).copiers[0]
	var busy, most atomic.Int64
	c.SetCopy(func(context.Context, Share) (stageout.Result, error) {
		most.Store(max(most.Load(), busy.Add(1)))
		time.Sleep(time.Millisecond)
		busy.Add(-1)
		return stageout.Result{}, nil
	}, noPiece)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			to := "/target" + strings.Repeat("/", i)
			if _, err := c.copyShare(t.Context(), Share{StageOut: job.StageOut{From: "a", To: to}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d copies at a time, want 1", most.Load())
	}
	c.copy.Store(ptr(CopyFunc(func(ctx context.Context, _ Share) (stageout.Result, error) {
		<-ctx.Done()
		return stageout.Result{}, ctx.Err()
	})))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	wg.Go(func() { _, _ = c.copyShare(ctx, Share{StageOut: job.StageOut{To: "/x"}}) })
	if _, err := c.copyShare(ctx, Share{StageOut: job.StageOut{To: "/x"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a copy that waits too long: %v", err)
	}
	wg.Wait()
}

func ptr[T any](v T) *T { return &v }

// TestNotifierRemembers: a restarted daemon finds the job's output.
func TestNotifierRemembers(t *testing.T) {
	f, path := openOutput(t, os.O_APPEND)
	o, _ := OutputOf(f)
	j := &job.File{Dirs: job.Dirs{Run: t.TempDir()}}
	x := NewNotifier(nodetest.NewProcess(t), j)
	if x.HasOutput() {
		t.Error("an output that was never set")
	}
	if err := x.SetOutput(Output{Path: "relative"}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a relative path: %v", err)
	}
	if err := x.SetOutput(o); err != nil {
		t.Fatal(err)
	}
	x = NewNotifier(nodetest.NewProcess(t), j)
	if !x.HasOutput() {
		t.Fatal("the output is forgotten")
	}
	x.Hear([]Failures{failures(false, syscall.ENOSPC)})
	eventually(t, "a line", func() bool { b, _ := os.ReadFile(path); return strings.Contains(string(b), "fails so far") })
	x.Final([]Failures{failures(true, syscall.ENOSPC)})
	if b, _ := os.ReadFile(path); !strings.Contains(string(b), "lost with the job") {
		t.Errorf("the output is %q", b)
	}
	if err := os.WriteFile(filepath.Join(j.Dirs.Run, "output.json"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if NewNotifier(nodetest.NewProcess(t), j).HasOutput() {
		t.Error("nonsense is an output")
	}
}
