//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// keeps sets how long the site keeps datasets, and resets it at the end of the test; an epilog then removes kept
// datasets, as on a site that runs bivouac epilog after every job.
func (c cluster) keeps(t *testing.T, keep string) {
	t.Helper()
	site, err := os.ReadFile(c.config)
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(c.dir, "etc/bivouac/bivouac.yaml") // shared by all nodes
	if err := os.WriteFile(here, append(site, "\nkeep: "+keep+"\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(here, site, 0o644); err != nil {
			t.Error(err)
		}
		for _, node := range []string{"node1", "node2"} {
			c.on(t, node, "SLURM_JOB_ID=1 bivouac epilog")
		}
	})
}

// kept returns the entries of a node's store.
func (c cluster) kept(t *testing.T, node string) string {
	t.Helper()
	return c.on(t, node, "ls -A /var/lib/bivouac")
}

// onTheSame returns the options for a job on node1 and node2 with a directory of 40 files.
func (c cluster) onTheSame(t *testing.T) []string {
	t.Helper()
	c.as(t, "alice", "mkdir -p forty && for i in $(seq 40); do echo $i > forty/$i; done")
	return []string{"--nodes=2", "--nodelist=node[1-2]", "--bivouac-stage-in=" + far("alice", "forty"), "--bivouac-opts=wait=all"}
}

var (
	allRead    = regexp.MustCompile(`source bytes read +(\d+) \(.*\) of (\d+)\n`)
	allAdopted = regexp.MustCompile(`source bytes read +0 \(0 B\) of \d+\n.*\n +adopted files, bytes +40, `)
)

// readAll reports whether, by its report, a job has read the whole source and adopted nothing.
func readAll(report string) bool {
	m := allRead.FindStringSubmatch(report)
	return m != nil && m[1] == m[2] && !strings.Contains(report, "adopted")
}

// TestKept: with keep, a task of an array adopts the files that its predecessor left on its nodes, and reads nothing
// from the source. Another user's job adopts none of them, and removes them. The next epilog removes expired files.
func TestKept(t *testing.T) {
	c := begin(t)
	c.keeps(t, "30m")
	options := c.onTheSame(t)
	c.submit(t, "alice", "bivouac report\n", append(options, "--array=1-2%1", "--output=kept.%a.out")...)
	eventually(t, soon, "the end of the array", func() bool { return c.do(t, "exec", "ctl", "squeue", "-h") == "" })
	first, second := c.as(t, "alice", "cat kept.1.out"), c.as(t, "alice", "cat kept.2.out")
	if !readAll(first) || !allAdopted.MatchString(second) {
		t.Errorf("the first task has to read all files, the second to adopt them; they report\n%s\n%s", first, second)
	}
	for _, node := range []string{"node1", "node2"} {
		eventually(t, soon, "datasets are kept on "+node, func() bool { return strings.HasPrefix(c.kept(t, node), ".kept.5001.") })
	}
	set := "/var/lib/bivouac/" + c.kept(t, "node1")
	if out, err := c.try("as", "bob", "node1", "ls", set); err == nil {
		t.Errorf("bob lists %s: %s", set, out)
	}
	if left := c.on(t, "node1", "grep -rl secret "+set+" || true"); left != "" {
		t.Errorf("scratch is kept: %s", left)
	}

	c.keeps(t, "2s")
	other := c.as(t, "bob", "srun "+strings.Join(options, " ")+` bash -c '[ $SLURM_PROCID != 0 ] || bivouac report' 2>/dev/null`)
	if !readAll(other + "\n") {
		t.Errorf("bob's job has to read all files, it reports\n%s", other)
	}
	for _, node := range []string{"node1", "node2"} {
		eventually(t, soon, "what was kept on "+node+" expires", func() bool {
			c.on(t, node, "SLURM_JOB_ID=1 bivouac epilog")
			return c.kept(t, node) == ""
		})
	}
}
