package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/training"
	keeper "github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// TestOneNodeEpochs: in a one-node job the kernel serves all reads of a dataset with a kernel view. Status, report
// and metrics still show epochs, the position of the rank and the samples, also after the daemon was killed.
func TestOneNodeEpochs(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	src, err := os.MkdirTemp("", "src")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(src) })
	if err := os.Chmod(src, 0o755); err != nil {
		t.Fatal(err)
	}
	bytes := int64(0)
	for i := range planned {
		dir := mkdir(t, filepath.Join(src, fmt.Sprintf("%02d", i/100)))
		write(t, filepath.Join(dir, plannedName(i)), []byte(plannedText(i)))
		bytes += int64(len(plannedText(i)))
	}
	k := newKeptJob(t, keeper.Spec{StageIn: []job.Dataset{{Source: src, Name: "set"}}})
	set := filepath.Join(k.dir, "mnt", keptID, "data/set")
	awaitView := func(n int) {
		t.Helper()
		eventually(t, "the dataset has a view", func() bool {
			log, err := os.ReadFile(filepath.Join(k.dir, "log", keptID+".log"))
			return err == nil && strings.Count(string(log), "the dataset has a kernel view") == n
		})
	}
	awaitView(1)
	j := job.File{Dirs: job.Dirs{Run: filepath.Join(k.dir, "run", keptID, "d")}}
	ctl := daemon.NewCtl(j.CtlSocket())
	plan := accessplan.Plan{Kind: accessplan.Torch, Dataset: "set", Seed: 7, Shuffle: true, Ranks: 1}
	var files []string
	for i := range planned {
		files = append(files, filepath.Join(set, fmt.Sprintf("%02d", i/100), plannedName(i)))
	}
	read := func(epoch int) {
		e, err := plan.Epoch(epoch, planned)
		k.must(err)
		for pos := range e.Len(0) {
			i := e.At(0, pos)
			b, err := os.ReadFile(files[i])
			if err != nil || string(b) != plannedText(i) {
				t.Fatalf("%s: %d bytes, %v", files[i], len(b), err)
			}
		}
	}
	status := func() (s daemon.TrainingStatus) {
		all, err := ctl.TrainingStatus(t.Context())
		if err == nil && len(all.Datasets) > 0 && all.Datasets[0].Training != nil {
			s = *all.Datasets[0].Training
		}
		return s
	}
	for i := range files { // before a plan exists, so that caches do not matter
		_, err := os.ReadFile(files[i])
		k.must(err)
	}
	samples := func(want int64) {
		t.Helper()
		var last training.Places
		eventually(t, fmt.Sprintf("%d samples", want), func() bool {
			last = training.Places{}
			for _, e := range status().Epochs {
				last.Add(e.Places, 1)
			}
			return last.Local.Samples == want
		})
		if want := (training.Places{Local: training.Count{Samples: want, Bytes: want / planned * bytes}}); last != want {
			t.Errorf("samples by place: %+v, want %+v", last, want)
		}
	}
	samples(planned) // so that the plan sees none of these opens
	_, err = ctl.SetPlan(t.Context(), plan)
	k.must(err)
	eventually(t, "the node has the plan", func() bool { return status().Plan != nil })
	at := func(epoch int) {
		t.Helper()
		var s *accessplan.State
		defer func() {
			if t.Failed() {
				t.Logf("the last state: %+v", s)
			}
		}()
		eventually(t, fmt.Sprintf("the rank is at the end of epoch %d", epoch), func() bool {
			s = status().State
			return s != nil && s.Phase == accessplan.Following && len(s.Ranks) == 1 &&
				(s.Ranks[0].Epoch == epoch && s.Ranks[0].Position >= planned-2*8 || s.Ranks[0].Epoch == epoch+1 && s.Ranks[0].Position == 0)
		})
	}
	for epoch := range 3 {
		read(epoch)
		at(epoch)
		samples(int64(epoch+2) * planned)
	}
	if s := status(); s.Epochs[len(s.Epochs)-1].Epoch < 2 {
		t.Errorf("the epochs are %+v", s.Epochs)
	}

	k.kill()
	awaitView(2)
	eventually(t, "the node has the plan", func() bool { return status().Plan != nil })
	count := func() (n int64) {
		for _, e := range status().Epochs {
			n += e.Local.Samples
		}
		return n
	}
	before := count()
	read(3)
	at(3)
	eventually(t, "the samples of the restarted daemon", func() bool { return count() == before+planned })
}
