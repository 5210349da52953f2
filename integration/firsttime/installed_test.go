//go:build slurm

package firsttime

import (
	"bufio"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// built returns the one file that make dist made for the pattern.
func built(t *testing.T, pattern string) string {
	t.Helper()
	all, err := filepath.Glob("../../bin/" + pattern)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d files bin/%s, want 1: run make dist", len(all), pattern)
	}
	return all[0]
}

// sh runs a script on this machine and returns its output.
func sh(t *testing.T, script string, args ...string) string {
	t.Helper()
	out, err := exec.Command("bash", append([]string{"-euc", script, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// machine is a clean machine, set up by testdata/root. The newcomer's home has the package, and a newer one.
type machine struct {
	*walk
	admin, alice []string // prefixes of their commands
}

// newMachine starts a machine.
func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	w := newWalk(t)
	w.sources()
	sh(t, `cp "$1" "$2/bivouac.deb"; dpkg-deb -R "$1" "$2/newer"; sed -i "s/^Version: /Version: 9/" "$2/newer/DEBIAN/control"
		dpkg-deb -Znone -b "$2/newer" "$2/newer.deb"; rm -r "$2/newer"`, built(t, "bivouac_*.deb"), w.home)
	unshare := exec.Command("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", "testdata/root", t.TempDir(), w.home)
	unshare.Stderr = os.Stderr
	out, err := unshare.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := unshare.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unshare.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	init := strings.TrimSpace(sh(t, `cat "/proc/$1/task/$1/children"`, strconv.Itoa(unshare.Process.Pid)))
	pid, perr := strconv.Atoi(init)
	if err != nil || perr != nil || line != "booted\n" {
		t.Fatalf("the machine does not start: %q, %v, %v", line, err, perr)
	}
	t.Cleanup(func() {
		w.camp = "" // dies with the machine
		_ = syscall.Kill(pid, syscall.SIGTERM)
	})
	enter := []string{"nsenter", "-t", init, "-m", "-u", "-p", "-r", "--"}
	env := []string{"env", "-i", "-C", w.home, "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	m := &machine{walk: w, admin: slices.Concat(enter, env), alice: slices.Concat(enter, []string{"runuser", "-u", "alice", "--"}, env, []string{"HOME=/home/alice"})}
	w.bin, w.enter = "bivouac", m.admin // in PATH
	return m
}

// root runs a script as the administrator.
func (m *machine) root(script string) (out string, status int) {
	m.t.Helper()
	before := m.enter
	m.enter = m.admin
	defer func() { m.enter = before }()
	out, errs, status := m.command("bash", "-euc", script)
	return out + errs, status
}

// do is like root, for a script that must not fail.
func (m *machine) do(script string) string {
	m.t.Helper()
	out, status := m.root(script)
	if status != 0 {
		m.t.Fatalf("%s: status %d\n%s", script, status, out)
	}
	return out
}

// changes returns differences from the machine's image, except dpkg's own files: a type and a path per line.
func (m *machine) changes() []string {
	return strings.Split(m.do(`find /changes /run /tmp /var/tmp /dev/shm /mnt -xdev \( -path /changes/var/lib/dpkg -o -path /changes/var/cache \) -prune -o ! -path /changes/var/log/dpkg.log -printf '%y %p\n'`), "\n")
}

// TestInstalled is the walk with only the package, through its life cycle: the administrator installs it and runs
// doctor; an unprivileged user trains; meanwhile the package is upgraded, and finally purged. Nothing is left.
func TestInstalled(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if out, status := m.root("command -v bivouac"); status == 0 {
		t.Fatalf("the machine is not clean: it has %s", out)
	}
	before := m.changes()
	m.do("dpkg -i bivouac.deb")
	m.checkInstalled()
	m.doctor("/etc/bivouac/bivouac.yaml", "/var/lib/bivouac")
	m.do("sed -i 's,^keep: .*,keep: 30m,' /etc/bivouac/bivouac.yaml")

	m.enter = m.alice
	exports := m.up()
	m.stageIn()
	m.do("dpkg -i newer.deb < /dev/null") // a question would fail
	m.says(m.do("ls -l /proc/*/exe"), "/usr/bin/bivouac (deleted)")
	m.says(m.do("bivouac config show"), "keep: 30m")
	m.train(exports)
	m.look() // the new program, and the daemons of the old one
	m.report()
	m.end()

	// A running job needs the program for its end.
	m.do("mkdir /run/bivouac/7; echo 1 0 > /run/bivouac/7/keeper.pid")
	out, status := m.root("dpkg -P bivouac")
	if m.says(out, "job 7 runs on this node"); status == 0 {
		t.Error("removed while a job runs")
	}
	m.do("rm -r /run/bivouac/7; rm -r /home/alice/.cache; touch /var/log/bivouac/6.log; dpkg -P bivouac")
	for _, left := range m.changes() {
		dir, isDir := strings.CutPrefix(left, "d /changes")
		if _, err := os.Lstat(dir); !slices.Contains(before, left) && (!isDir || err != nil) { // a directory of the image is no change
			t.Errorf("left: %s", left)
		}
	}
}

// checkInstalled checks the files installed beside the program.
func (m *machine) checkInstalled() {
	m.t.Helper()
	m.do(`test "$(bivouac config check)" = "/etc/bivouac/bivouac.yaml: valid"; bash -n /usr/share/bash-completion/completions/bivouac
		test "$(stat -c %a /run/bivouac /var/log/bivouac)" = $'755\n755'
		for f in bivouac bivouac-stage-in bivouac-prolog; do gzip -cd /usr/share/man/man1/$f.1.gz | grep -q '^\.TH'; done
		nm -D /usr/lib/*/slurm-wlm/bivouac.so | grep -q slurm_spank_init
		PYTHONPATH=$(echo /usr/share/bivouac/*.whl) python3 -B -c 'import bivouac; assert ".whl" in bivouac.__file__'
		logrotate -d /etc/logrotate.d/bivouac 2>&1 | (! grep -i error)
		cd /usr/share/doc/bivouac; test -s copyright
		for f in plugstack.conf train.sbatch alerts.yaml dashboard.json; do test -s examples/$f; done
		for f in index admin-guide user-guide reference; do test -s html/$f.html; done`)
}

// TestRPM: the package has the same files as Debian's, and removes everything it installs.
func TestRPM(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to install")
	}
	pkg, deb := built(t, "bivouac-*.rpm"), built(t, "bivouac_*.deb")
	sh(t, `diff <(rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$1" | sed -n 's/^-[^ ]* //p' | sed 's,/lib64/slurm/,/lib/slurm/,; s,/site-functions/,/completions/,' | sort) \
		<(dpkg-deb -c "$2" | awk '$6 !~ /\/$/ {print substr($6, 2)}' | sed -E 's,/lib/[^/]*/slurm-wlm/,/lib/slurm/,; s,/vendor-completions/_,/completions/_,' | sort)
		rpm -qcp "$1" | grep -q ^/etc/bivouac/bivouac.yaml`, pkg, deb)
	root := t.TempDir()
	sh(t, `rpm --root "$1" --nodeps --noscripts -i "$2"; cmp "$1/usr/bin/bivouac" ../../bin/bivouac`, root, pkg)
	// Runs the scripts of an erase, as rpm does.
	sh(t, `mkdir -p "$1/run/bivouac" "$1/var/log/bivouac"; export DPKG_ROOT=$1; ../../deploy/package/preremove 0; rpm --root "$1" --noscripts -e bivouac; ../../deploy/package/postremove 0`, root)
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if strings.Contains(strings.TrimPrefix(p, root), "bivouac") {
			t.Errorf("%s is left", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
