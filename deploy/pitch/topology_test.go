package pitch

import (
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/bivouacfs/bivouac/metadata"
)

const topologyConf = `# two racks
SwitchName=leaf1 Nodes=node[1-2],gpu01 # the first
switchname=leaf2 LinkSpeed=1000 \
  nodes=node[3-4]
BlockName=block7 Nodes=node[07-08]
SwitchName=broken Nodes=node[5-
SwitchName= Nodes=node6
SwitchName=top Switches=leaf[1-2]
SwitchName=late Nodes=node1,node9
`

// TestLeafOf: a node is behind the first switch whose line names it.
func TestLeafOf(t *testing.T) {
	for node, want := range map[string]string{"node1": "leaf1", "gpu01": "leaf1", "node4": "leaf2", "node08": "block7", "node9": "late",
		"node5": "", "node6": "", "leaf1": "", "node": "", "": ""} {
		if got := leafOf(topologyConf, node); got != want {
			t.Errorf("%s is behind %q, want %q", node, got, want)
		}
	}
}

func FuzzLeafOf(f *testing.F) {
	f.Add(topologyConf, "node3")
	f.Fuzz(func(t *testing.T, text, node string) {
		if got := leafOf(text, node); len(got) > metadata.MaxName || !utf8.ValidString(got) {
			t.Errorf("the switch is %q", got)
		}
	})
}

// TestLeafOfJob: the prolog finds the topology file beside slurm.conf; without that file, no switch is known.
func TestLeafOfJob(t *testing.T) {
	dir := t.TempDir()
	vars := map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1", "SLURM_JOB_GID": "1", "SLURM_JOB_NODELIST": "node[1-4]", "SLURMD_NODENAME": "node3",
		"SLURM_CONF": filepath.Join(dir, "slurm.conf")}
	env := Env{Getenv: func(name string) string { return vars[name] }}
	for _, want := range []string{"", "leaf2"} {
		if j, err := env.job(); err != nil || j.leaf != want {
			t.Errorf("the switch is %q, %v, want %q", j.leaf, err, want)
		}
		if err := os.WriteFile(filepath.Join(dir, "topology.conf"), []byte(topologyConf), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
