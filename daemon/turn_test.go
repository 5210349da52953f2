package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
)

// lateTurn is an intake of turn 3, on a node that knows of turn, and has heir's files
// of that one.
func lateTurn(t *testing.T, turn int) (in *intake, files map[string][]byte) {
	t.Helper()
	d := &Daemon{job: &job.File{Hosts: []string{"n0", "n1"}, Self: 1, Dirs: job.Dirs{Store: []string{t.TempDir()}}}, log: logrus.NewEntry(logrus.New())}
	d.log.Logger.SetOutput(t.Output())
	ds := cluster.Dataset{ID: 7, Turn: 3, Name: "set", Coordinator: 1, Phase: cluster.Staging}
	in = d.newIntake(ds, stagein.Request{Options: stagein.Options{OnError: stagein.OnErrorSkip}})
	ds.Turn = turn
	d.view.Datasets = []cluster.Dataset{ds}
	dir := d.stageDir(ds.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	files = make(map[string][]byte)
	for _, name := range []string{originsFile, orderFile, manifestFile, allSkips, passFile, recordsFile(0), skipsFile(0)} {
		files[name] = []byte("inherited")
		if err := os.WriteFile(filepath.Join(dir, name), files[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return in, files
}

// nothing is a file of a part in which there is nothing.
func nothing(t *testing.T, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	if name == recordsFile(0) {
		if err := manifest.NewWriter(&b).Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestLateTurn: a turn that comes late writes over nothing that this node has from who
// leads a later one; the same turn, when nobody else does, puts all in its place.
func TestLateTurn(t *testing.T) {
	for _, turn := range []int{3, 4} {
		in, files := lateTurn(t, turn)
		late := turn > in.ds.Turn
		if err := in.begin(); err != nil {
			t.Fatal(err)
		}
		in.plan = &stagein.Plan{Dataset: 7, Parts: []stagein.Part{{Node: 0}}}
		in.initParts(1)
		for _, name := range []string{recordsFile(0), skipsFile(0)} { // brought from node 0
			if err := os.WriteFile(filepath.Join(in.dir(), name), nothing(t, name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for what, err := range map[string]error{
			"origins": in.keepOrigins(stagein.Origins{Since: 9}), "pass": in.save(), "manifest and skips": in.build(context.Background()),
		} {
			if late != (err != nil) || err != nil && !errors.Is(err, syscall.ESTALE) {
				t.Errorf("turn 3 in turn %d: %s: %v", turn, what, err)
			}
		}
		for name, was := range files {
			now, err := os.ReadFile(filepath.Join(in.d.stageDir(7), name))
			brought := name == recordsFile(0) || name == skipsFile(0) // nobody else wants them
			if same := err == nil && bytes.Equal(now, was); same != (late || brought) {
				t.Errorf("turn 3 in turn %d: %s is %q, %v", turn, name, now, err)
			}
		}
		if err := in.giveWay(); !errors.Is(err, syscall.ECANCELED) {
			t.Error(err)
		}
		if _, err := os.Stat(in.dir()); !os.IsNotExist(err) {
			t.Errorf("of the turn there is something left: %v", err)
		}
	}
}
