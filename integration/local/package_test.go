//go:build slurm

package local

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/deploy/doctor"
)

// built is the one file that make dist has made for the pattern.
func built(t *testing.T, pattern string) string {
	t.Helper()
	all, err := filepath.Glob("../../bin/" + pattern)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d files bin/%s, want 1: run make dist", len(all), pattern)
	}
	return all[0]
}

// tree is the paths below root that the package manager does not keep for itself.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		switch rel := strings.TrimPrefix(p, root); rel {
		case "/var/lib/dpkg", "/var/lib/rpm":
			return filepath.SkipDir
		case "/var/log/dpkg.log":
		default:
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDeb: the package is installed into a clean root, upgraded while a filesystem of it is up, and purged: nothing is left.
func TestDeb(t *testing.T) {
	t.Parallel()
	needRoot(t)
	deb := built(t, "bivouac_*.deb")
	c := newCamp(t)
	root := c.path("root")
	sh(t, `mkdir -p "$1"/var/lib/dpkg/{info,updates} "$1"/{run,mnt,tmp,etc,usr,var/log,nvme}; touch "$1/var/lib/dpkg/status"`, root)
	dpkg := func(args ...string) (string, error) {
		cmd := exec.Command("dpkg", append([]string{"--root=" + root, "--force-script-chrootless,unsafe-io"}, args...)...)
		out, err := cmd.CombinedOutput() // no standard input: a question would fail
		return string(out), err
	}
	done := func(args ...string) {
		t.Helper()
		if out, err := dpkg(args...); err != nil {
			t.Fatalf("dpkg %q: %v\n%s", args, err, out)
		}
	}
	before := tree(t, root)
	done("-i", deb)
	checkInstalled(t, root)

	// The site sets its store, and looks whether jobs can run.
	site := filepath.Join(root, "etc/bivouac/bivouac.yaml")
	sh(t, `sed -i "s,^store: .*,store: [$1/nvme]," "$2"`, root, site)
	c.bin = filepath.Join(root, "usr/bin/bivouac")
	var found []doctor.Finding
	r := c.run("doctor", "--config", site, "--probe", "0", "--json")
	if err := json.Unmarshal([]byte(r.out), &found); err != nil {
		t.Fatalf("doctor: %v: %s", err, r.err)
	}
	for _, f := range found {
		if f.State == doctor.Failed && f.Check != "plugstack" && f.Check != "plugin" { // nothing but the package is installed
			t.Errorf("doctor: %s: %s", f.Check, f.Found)
		}
	}

	c.ok("up", "--nodes", "2", "--dir", c.dir)
	write(t, c.path("set.tar"), archive(t))
	c.stageIn(c.path("set.tar"))
	done("-i", newer(t, c, deb))
	if n := c.state().Nodes[0]; !strings.HasSuffix(readlink(t, fmt.Sprint("/proc/", n.PID, "/exe")), " (deleted)") {
		t.Error("the upgrade has not replaced the program")
	}
	if s := c.ok("config", "show", site); !strings.Contains(s, "- "+root+"/nvme\n") {
		t.Errorf("after the upgrade the configuration is\n%s", s)
	}
	write(t, c.path("late.tar"), archive(t))
	c.stageIn(c.path("late.tar")) // the new program talks to the old daemons
	sh(t, `diff -r "$1" "$2"`, c.node("0", "data", "set"), c.node("1", "data", "late"))
	c.ok("down", "--dir", c.dir)

	// A job needs the program for its end.
	job := filepath.Join(root, "run/bivouac/7")
	sh(t, `mkdir "$1"; echo "$2 0" > "$1/keeper.pid"`, job, fmt.Sprint(os.Getpid()))
	if out, err := dpkg("-P", "bivouac"); err == nil || !strings.Contains(out, "job 7 runs on this node") {
		t.Errorf("removed while a job runs: %v\n%s", err, out)
	}
	sh(t, `rm -r "$1"; touch "$2/var/log/bivouac/6.log"`, job, root)
	done("-P", "bivouac")
	for _, p := range tree(t, root) {
		if !slices.Contains(before, p) {
			t.Errorf("%s is left", p)
		}
	}
	c.bin = newCamp(t).bin // for the end of this camp
}

func readlink(t *testing.T, path string) string {
	t.Helper()
	s, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newer is the package with a higher version.
func newer(t *testing.T, c *camp, deb string) string {
	t.Helper()
	sh(t, `dpkg-deb -R "$1" "$2"; sed -i "s/^Version: /Version: 9/" "$2/DEBIAN/control"; dpkg-deb -Znone -b "$2" "$2.deb"; rm -r "$2"`, deb, c.path("newer"))
	return c.path("newer.deb")
}

// checkInstalled checks what lies beside the program.
func checkInstalled(t *testing.T, root string) {
	t.Helper()
	sh(t, `cd "$1"; usr/bin/bivouac config check etc/bivouac/bivouac.yaml; bash -n usr/share/bash-completion/completions/bivouac
		test "$(stat -c %a run/bivouac var/log/bivouac)" = $'755\n755'
		for f in bivouac bivouac-stage-in bivouac-prolog; do gzip -cd usr/share/man/man1/$f.1.gz | grep -q '^\.TH'; done
		nm -D usr/lib/*/slurm-wlm/bivouac.so | grep -q slurm_spank_init
		PYTHONPATH=$(echo "$PWD"/usr/share/bivouac/*.whl) python3 -c 'import bivouac; assert ".whl" in bivouac.__file__'
		! command -v logrotate || logrotate -d etc/logrotate.d/bivouac 2>&1 | (! grep -i error)
		cd usr/share/doc/bivouac; test -s copyright -a -s examples/plugstack.conf
		for f in $(grep -ohE '\]\([a-zA-Z/.-]+' README.md | cut -c3-); do test -s $f; done`, root)
}

// TestRPM: the package has the same files as that of Debian, and what it installs it removes.
func TestRPM(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("needs rpm")
	}
	pkg, deb := built(t, "bivouac-*.rpm"), built(t, "bivouac_*.deb")
	sh(t, `diff <(rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$1" | sed -n 's/^-[^ ]* //p' | sed 's,/lib64/slurm/,/lib/slurm/,; s,/site-functions/,/completions/,' | sort) \
		<(dpkg-deb -c "$2" | awk '$6 !~ /\/$/ {print substr($6, 2)}' | sed -E 's,/lib/[^/]*/slurm-wlm/,/lib/slurm/,; s,/vendor-completions/_,/completions/_,' | sort)
		rpm -qcp "$1" | grep -q ^/etc/bivouac/bivouac.yaml`, pkg, deb)
	root := t.TempDir()
	sh(t, `rpm --root "$1" --nodeps --noscripts -i "$2"; cmp "$1/usr/bin/bivouac" ../../bin/bivouac`, root, pkg)
	// The scripts of an erase, as rpm runs them.
	sh(t, `mkdir -p "$1/run/bivouac" "$1/var/log/bivouac"; export DPKG_ROOT=$1; ../../deploy/package/preremove 0; rpm --root "$1" --noscripts -e bivouac; ../../deploy/package/postremove 0`, root)
	for _, p := range tree(t, root) {
		if strings.Contains(p, "bivouac") {
			t.Errorf("%s is left", p)
		}
	}
}
