package local

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// recipes holds the code of a page.
type recipes struct {
	files    map[string]string // the blocks whose first line is a comment with a name
	programs []string          // the Python programs, in the order of the page
	stageIn  []string          // the values of --bivouac-stage-in
	stageOut []string
}

// readRecipes reads the code blocks of recipes.md.
func readRecipes(t *testing.T) recipes {
	t.Helper()
	b, err := os.ReadFile("../../deploy/docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	r := recipes{files: make(map[string]string)}
	for i, block := range strings.Split(string(b), "\n```") {
		if i%2 == 0 {
			continue // between blocks
		}
		_, code, _ := strings.Cut(block, "\n")
		code += "\n"
		first, _, _ := strings.Cut(code, "\n")
		if name, ok := strings.CutPrefix(first, "# "); ok {
			if r.files[name] = code; strings.HasSuffix(name, ".py") {
				r.programs = append(r.programs, name)
			}
		}
		for line := range strings.Lines(code) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "#SBATCH --bivouac-stage-in="); ok {
				r.stageIn = append(r.stageIn, v)
			}
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "#SBATCH --bivouac-stage-out="); ok {
				r.stageOut = append(r.stageOut, v)
			}
		}
	}
	return r
}

// TestRecipes runs the recipes page on one job of two nodes: it stages the sources as the page says, runs the
// programs under torchrun, and stages out.
func TestRecipes(t *testing.T) {
	needTorch(t)
	t.Parallel()
	r := readRecipes(t)
	c := pitch(t, "2")
	lustre := c.recipeSources(r)
	here := func(v string) string { return strings.ReplaceAll(v, "/lustre/me", lustre) }
	if len(r.stageIn) != 5 || len(r.stageOut) != 2 {
		t.Errorf("the page stages in %q and out %q, want five and two", r.stageIn, r.stageOut)
	}
	for _, v := range r.stageIn {
		c.ok("stage-in", here(v), "--dir", c.dir)
	}
	dir := mkdir(t, c.path("programs"))
	for name, code := range r.files {
		write(t, filepath.Join(dir, name), []byte(code))
	}
	driver, err := filepath.Abs("testdata/recipes.py")
	if err != nil {
		t.Fatal(err)
	}
	c.torchrun(2, slices.Concat([]string{driver, dir}, r.programs)...)
	want := map[string][2]string{
		"imagefolder.py": {"epoch 0: 79 samples\nepoch 1: 79 samples\n", "epoch 0: 79 samples\nepoch 1: 79 samples\n"},
		"webdataset.py":  {"24 samples\n", "24 samples\n"},
		"hdf5.py":        {"50 rows\n", "50 rows\n"},
		"tfrecord.py":    {"200 records, 9900 bytes\n", "100 records, 4950 bytes\n"},
		"checkpoint.py":  {"step 100: weights 1.0\n", "step 100: weights 2.0\n"},
		"events.py":      {"", ""},
	}
	if got := slices.Sorted(slices.Values(r.programs)); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Errorf("the page has the programs %q", got)
	}
	for name, out := range want {
		for rank := range out {
			wantFile(t, filepath.Join(dir, fmt.Sprintf("%s.%d", name, rank)), out[rank])
		}
	}
	if out := c.ok("plan", "show", "images", "--dir", c.dir); !strings.Contains(out, "seed:42") {
		t.Errorf("the plan of images is %q, want seed:42", out)
	}
	for rank := range 2 {
		c.wantEvents(rank)
	}
	c.runEnvironment()
	for _, v := range r.stageOut {
		c.ok("stage-out", here(v), "--dir", c.dir)
	}
	wantFile(t, filepath.Join(lustre, "run7", "latest"), "100")
	if got := names(t, filepath.Join(lustre, "run7", "100")); !slices.Equal(got, []string{"0.pt", "1.pt"}) {
		t.Errorf("the checkpoint has %q, want the parts of two ranks", got)
	}
	if got := names(t, filepath.Join(lustre, "run7-logs")); !slices.Equal(got, []string{"rank0", "rank1"}) {
		t.Errorf("the logs are %q, want those of two ranks", got)
	}
}

// recipeSources makes the sources that the page stages.
func (c *camp) recipeSources(r recipes) string {
	c.t.Helper()
	lustre := c.path("lustre")
	run := func(dir, name string, args ...string) {
		c.t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	abs, err := filepath.Abs(programs + "data.py")
	if err != nil {
		c.t.Fatal(err)
	}
	run(c.home, python, "-B", abs, lustre)
	run(lustre, "tar", "-cf", "images.tar", "-C", "images", ".")
	run(lustre, "mv", "table/table.h5", ".")
	mkdir(c.t, filepath.Join(lustre, "records"))
	for i := range 3 {
		var b bytes.Buffer
		for n := range 100 {
			b.Write(tfrecord(make([]byte, n)))
		}
		write(c.t, filepath.Join(lustre, "records", fmt.Sprintf("%d.tfrecord", i)), b.Bytes())
	}
	run(lustre, python, "-m", "venv", "--without-pip", "env")
	site, err := filepath.Glob(filepath.Join(lustre, "env/lib/python3*/site-packages"))
	if err != nil || len(site) != 1 {
		c.t.Fatalf("the environment has %q (%v)", site, err)
	}
	write(c.t, filepath.Join(site[0], "packed.py"), []byte("import sys\nprint(sys.prefix, __file__.startswith(sys.prefix))\n"))
	run(lustre, "bash", "-ec", r.files["pack.sh"])
	return lustre
}

// runEnvironment starts many processes of the packed Python concurrently on each node, where all its files are local.
func (c *camp) runEnvironment() {
	c.t.Helper()
	for i := range 2 {
		eventually(c.t, "each node has a copy", func() bool {
			nodes, _, _ := strings.Cut(c.ok("locate", c.node(fmt.Sprint(i), "data", "env", "pyvenv.cfg")), "\t")
			return strings.Contains(nodes, "node0") && strings.Contains(nodes, "node1")
		})
	}
	var wg sync.WaitGroup
	for rank := range 16 {
		env := c.node(fmt.Sprint(rank%2), "data", "env")
		wg.Go(func() {
			out, err := exec.Command(filepath.Join(env, "bin", "python"), "-Bm", "packed").CombinedOutput()
			if want := env + " True\n"; err != nil || string(out) != want {
				c.t.Errorf("rank %d: %q, %v, want %q", rank, out, err, want)
			}
		})
	}
	wg.Wait()
}

// wantEvents checks that the event file of a rank, as seen by the other node, has whole records.
func (c *camp) wantEvents(rank int) {
	c.t.Helper()
	b, err := os.ReadFile(c.node(fmt.Sprint(1-rank), "scratch", "logs", fmt.Sprintf("rank%d", rank), "events.out.tfevents.0"))
	if err != nil {
		c.t.Fatal(err)
	}
	n := 0
	for r := bytes.NewReader(b); r.Len() > 0; n++ {
		var size uint64
		head := make([]byte, 12)
		if _, err := io.ReadFull(r, head); err != nil {
			c.t.Fatalf("rank %d, record %d: %v", rank, n, err)
		}
		size = binary.LittleEndian.Uint64(head)
		body := make([]byte, min(size, uint64(len(b))))
		if _, err := io.ReadFull(r, body); err != nil {
			c.t.Fatalf("rank %d, record %d: %v", rank, n, err)
		}
		end := make([]byte, 4)
		if _, err := io.ReadFull(r, end); err != nil || !bytes.Equal(slices.Concat(head, body, end), tfrecord(body)) {
			c.t.Fatalf("rank %d, record %d is damaged (%v)", rank, n, err)
		}
	}
	if n != 201 {
		c.t.Errorf("rank %d has written %d events, want 201", rank, n)
	}
}

// tfrecord frames a record: its length and the data, each with a masked CRC-32C.
func tfrecord(data []byte) []byte {
	masked := func(b []byte) uint32 {
		crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return (crc>>15 | crc<<17) + 0xa282ead8
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	return binary.LittleEndian.AppendUint32(append(b, data...), masked(data))
}
