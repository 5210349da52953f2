package firsttime

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// elsewhereRun are the commands of the pages that TestPages does not run: a prefix, and the test that runs the command in another form.
var elsewhereRun = [][2]string{
	{"bin/bivouac ", "integration/firsttime TestReadme"},
	{"ls /tmp/camp/", "integration/firsttime TestReadme"},
	{"bivouac doctor", "integration/firsttime TestFirstTime"},
	{"bivouac cancel ", "integration/local TestCancel"},
	{"bivouac skipped ", "integration/local TestSkipStatus"},
	{"scontrol update ", "integration/slurm TestNormalEnd"},
	{"scontrol resume", "integration/slurm TestSuspend"},
	{"bwrap ", "integration/slurm TestContainer"},
	{"ch-run ", "integration/slurm TestContainer"},
	{"srun bash -c \"torchrun ", "integration/local TestRecipes"},
	{"srun $BIVOUAC_DATA/env/", "integration/local TestRecipes"},
	{"head=$(scontrol ", "integration/local TestRecipes"},
	{"tar --create --file env.tar ", "integration/local TestRecipes"},
	{"bivouac plan show images", "integration/local TestRecipes"},
	{"install -d ", "integration/firsttime TestInstalled"},
	{"pip install", "integration/firsttime TestInstalled"},
	{"dpkg -P ", "integration/firsttime TestInstalled"},
	{"rpm -e ", "integration/firsttime TestRPM"},
	{"spack ", "integration TestSpack"},
	{"go test -bench ", "datapath/rpc BenchmarkProtection"},
	{"go test ./deploy/bivouac -run TestReference", "deploy/bivouac TestReference"},
	{"srun python train.py ", "integration/slurm TestNormalEnd"},
}

// notRun lists commands that, as the pages say, no test runs.
var notRun = []string{"podman run ", "srun apptainer ", "srun --container-image="}

// names lists commands that appear alone in a sentence, and need arguments or Slurm: only their help is run.
var names = []string{"up", "stage-in", "locate", "skipped", "simulate", "plan set", "prolog", "epilog"}

// programs matches the beginning of a code span in a sentence that is a command.
var programs = regexp.MustCompile(`^(bivouac|make|pip|install|spack|scontrol|dpkg|rpm|curl|go|tar -C|setfattr|getfattr) .`)

// commandsOf returns each command that a page shows, once: the lines of its shell blocks and those in sentences.
func commandsOf(t *testing.T, page string) (all []string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(b), "\n```") {
		language, code, _ := strings.Cut(part, "\n")
		switch {
		case i%2 == 0:
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(part, -1) {
				if s := strings.ReplaceAll(strings.ReplaceAll(m[1], "\n", " "), `\|`, "|"); programs.MatchString(s) {
					all = append(all, s)
				}
			}
		case language == "bash":
			for line := range strings.Lines(strings.ReplaceAll(code, "\\\n", " ")) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					all = append(all, line)
				}
			}
		}
	}
	return all
}

// placeholders replaces text that the pages leave to the reader, or that is too large for a test.
var placeholders = strings.NewReplacer(
	" NAME", " images", "--html FILE", "--html page.html", "FILE…", "$BIVOUAC_DATA/images/train/dark/00.png", "stage-in SRC", "stage-in more",
	"FROM:TO", "ckpt:results", "--first N", "--first 3", "--nodes N", "--nodes 2", "--dir D", "--dir second", "shards.txt", "order.txt",
	"/run/bivouac/<jobid>/d/ctl.sock", `"$(cat $BIVOUAC/.bivouac/control)"`, "--files 1281167", "--files 3000", "config check|show", "config show",
)

// inJob is the shell of a job: commands need no --dir there. Make targets are looked up, but not made.
const inJob = `bivouac() {
	case $1 in
	simulate|locate|config|up|down|help|version) "$BIN" "$@" ;;
	*) [[ " $* " = *" --help "* ]] && "$BIN" "$@" || "$BIN" "$@" --dir "$CAMP" ;;
	esac
}
make() { MAKEFLAGS= command make -C "$REPO" --dry-run "$@" >/dev/null; }
`

// TestPages runs the commands of all pages in one job, in page order. It runs new commands without a change here.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	w.sources()
	w.run(0, "up", "--nodes", "2", "--dir", w.camp)
	w.stageImages()
	scratch := filepath.Join(w.camp, "node0", "scratch")
	for _, dir := range []string{filepath.Join(w.home, "more"), filepath.Join(w.home, "imagenet"), filepath.Join(scratch, "ckpt"), filepath.Join(scratch, "big")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(scratch, "ckpt", "model.pt"), []byte("weights"), 0o644); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../deploy/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	ran := 0
	for _, page := range append(pages, "../../README.md", "../../fsclient/python/README.md") {
		for _, c := range commandsOf(t, page) {
			if known[c] {
				continue
			}
			if known[c] = true; w.isRun(c) {
				ran++
				w.shown(filepath.Base(page), c)
			}
		}
	}
	if ran < 30 {
		t.Errorf("%d commands of the pages are run", ran)
	}
	for _, x := range elsewhereRun {
		pkg, test, _ := strings.Cut(x[1], " ")
		if !anyHasPrefix(known, x[0]) || !hasTest(t, pkg, test) {
			t.Errorf("the exception %q is of no page, or there is no %s", x[0], x[1])
		}
	}
}

// isRun reports whether a command is not an exception.
func (w *walk) isRun(command string) bool {
	return !slices.ContainsFunc(notRun, func(p string) bool { return strings.HasPrefix(command, p) }) &&
		!slices.ContainsFunc(elsewhereRun, func(x [2]string) bool { return strings.HasPrefix(command, x[0]) })
}

func anyHasPrefix(all map[string]bool, prefix string) bool {
	for s := range all {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

// hasTest reports whether a package has a test or a benchmark.
func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}

// stageImages stages the dataset that the commands name, and waits until all nodes can read it.
func (w *walk) stageImages() {
	w.t.Helper()
	w.run(0, "stage-in", "images.tar,order=list:order.txt", "--dir", w.camp)
}

// shown runs a command from a page.
func (w *walk) shown(page, command string) {
	w.t.Helper()
	line := placeholders.Replace(command)
	if slices.Contains(names, strings.TrimPrefix(command, "bivouac ")) {
		line += " --help"
	}
	repo, err := filepath.Abs("../..")
	if err != nil {
		w.t.Fatal(err)
	}
	node := filepath.Join(w.camp, "node0")
	out, errs, status := w.command("env", "BIN="+w.bin, "CAMP="+w.camp, "REPO="+repo,
		"BIVOUAC="+node, "BIVOUAC_DATA="+node+"/data", "BIVOUAC_SCRATCH="+node+"/scratch", "bash", "-ec", inJob+line)
	if status != 0 {
		w.t.Errorf("%s: %s: status %d of %s:\n%s%s", page, command, status, line, out, errs)
	}
	if strings.Contains(line, "bivouac remove") {
		w.stageImages()
	}
}
