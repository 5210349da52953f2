package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fake is a host without faults; a test breaks it.
type fake struct {
	files  map[string]string
	out    map[string]string // output of programs
	root   bool
	fuse   error
	drive  Drive
	noDir  bool
	dial   error
	nets   error // result of Networks
	synced bool
}

var _ Host = (*fake)(nil)

func (f *fake) Read(path string) ([]byte, error) {
	s, ok := f.files[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}
	}
	return []byte(s), nil
}

func (f *fake) Run(_ context.Context, name string, _ ...string) (string, error) {
	s, ok := f.out[name]
	if !ok {
		return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
	}
	if s == "" {
		return "", errors.New("connection refused")
	}
	return s, nil
}

func (f *fake) Root() bool      { return f.root }
func (f *fake) OpenFuse() error { return f.fuse }
func (f *fake) Store(string, time.Duration) (Drive, error) {
	if f.noDir {
		return Drive{}, &fs.PathError{Op: "statfs", Path: "/s", Err: syscall.ENOENT}
	}
	return f.drive, nil
}
func (f *fake) Dial(context.Context, string) error { return f.dial }
func (f *fake) Synchronized() (bool, error)        { return f.synced, nil }
func (f *fake) Networks([]string) error            { return f.nets }
func (f *fake) Glob(pattern string) (found []string) {
	for p := range f.files {
		if ok, _ := filepath.Match(pattern, p); ok {
			found = append(found, p)
		}
	}
	return found
}

const slurmConf = `SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8
PrologFlags             = Alloc,DeferBatch
PlugStackConfig         = /etc/slurm/plugstack.conf
PluginDir               = /usr/lib/slurm
UnkillableStepTimeout   = 60 sec
PrologEpilogTimeout     = 65534
JobContainerType        = job_container/none
ProctrackType           = proctrack/cgroup
SchedulerParameters     = bf_continue,nohold_on_prolog_fail
`

func healthy() *fake {
	return &fake{
		files: map[string]string{
			"/proc/sys/kernel/osrelease": "6.18.0-amd64\n", "/proc/filesystems": "nodev\tfuse\n\terofs\nnodev\toverlay\n",
			"/sys/fs/cgroup/cgroup.subtree_control": "cpu memory\n", "/etc/slurm/plugstack.conf": "# all\noptional bivouac.so\n",
			"/usr/bin/bivouac": "", "/textfiles": "",
		},
		out:  map[string]string{"sh": "STATUS: Success (0)", "scontrol": slurmConf, "fusermount3": "3.14"},
		root: true, drive: Drive{Mode: fs.ModeDir | 0o755, Kind: "xfs", Free: 1 << 40, Write: 2e9, Read: 3e9}, dial: syscall.ECONNREFUSED, synced: true,
	}
}

func config(h Host) Config {
	return Config{
		Host: h, Path: "/etc/b.yaml", Store: []string{"/s"}, Mount: "/mnt/bivouac", Run: "/run/bivouac", Log: "/var/log/bivouac", Port: 18500, Ports: 4000,
		Munge: "auto", StartTimeout: time.Minute, EpilogTimeout: 5 * time.Minute, FailureTimeout: 15 * time.Second, Memory: 1 << 30,
		Network: []string{"ib0"}, Textfile: "/textfiles", Peer: "n2", Probe: time.Second,
	}
}

func run(cfg Config) map[string]Finding {
	all := make(map[string]Finding)
	for _, f := range Run(context.Background(), cfg) {
		all[f.Check] = f
	}
	return all
}

// TestHealthy: on a healthy node only the plugin is missing, since it is a file of the real machine.
func TestHealthy(t *testing.T) {
	for check, f := range run(config(healthy())) {
		if f.State != OK && check != "plugin" || f.State == OK && f.Remedy != "" {
			t.Errorf("%+v", f)
		}
	}
}

// plugstack replaces plugstack.conf; a file in its directory requires the plugin.
func plugstack(text string) func(*fake) {
	return func(f *fake) {
		f.files["/etc/slurm/plugstack.conf"] = text
		f.files["/etc/slurm/plugstack.conf.d/b.conf"] = "required bivouac.so\n"
	}
}

func scontrol(from, to string) func(*fake) {
	return func(f *fake) { f.out["scontrol"] = strings.Replace(slurmConf, from, to, 1) }
}

// private gives jobs private directories, with job_container.conf.
func private(text string) func(*fake) {
	return func(f *fake) {
		scontrol("job_container/none", "job_container/tmpfs")(f)
		f.files["/etc/slurm/job_container.conf"] = text
	}
}

func armor(profiles string) func(*fake) {
	return func(f *fake) {
		f.files["/sys/module/apparmor/parameters/enabled"] = "Y\n"
		f.files["/sys/kernel/security/apparmor/profiles"] = profiles
	}
}

// TestSubmitHost: a host that runs no jobs needs neither FUSE nor a store, and munge: off is not reported.
func TestSubmitHost(t *testing.T) {
	h := healthy()
	h.fuse, h.noDir, h.nets = os.ErrNotExist, true, os.ErrNotExist
	delete(h.out, "sh")
	h.files["/run/slurm/conf/plugstack.conf"] = "optional bivouac.so" // as sent by slurmctld
	delete(h.files, "/etc/slurm/plugstack.conf")
	cfg := config(h)
	cfg.Submit, cfg.Munge = true, "off"
	for check, f := range run(cfg) {
		if f.State != OK && check != "plugin" {
			t.Errorf("%+v", f)
		}
	}
	cfg.Submit = false
	if f := run(cfg)["store /s"]; f.State != Failed || !strings.Contains(f.Remedy, "--submit") {
		t.Errorf("%+v", f)
	}
}

// TestFindings: every fault is reported, with its remedy.
func TestFindings(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*fake)
		check  string
		state  State
		remedy string
	}{
		"old kernel":        {func(f *fake) { f.files["/proc/sys/kernel/osrelease"] = "5.14.0-el9" }, "passthrough", Warning, "6.9"},
		"very old kernel":   {func(f *fake) { f.files["/proc/sys/kernel/osrelease"] = "3.10.0" }, "kernel", Failed, "4.18"},
		"no erofs":          {func(f *fake) { f.files["/proc/filesystems"] = "nodev fuse\nnodev overlay\n" }, "kernel views", Warning, "modprobe erofs"},
		"no fuse":           {func(f *fake) { f.files["/proc/filesystems"] = "ext4\n" }, "fuse", Failed, "modprobe fuse"},
		"fuse for root":     {func(f *fake) { f.fuse = os.ErrPermission }, "/dev/fuse", Failed, "0666"},
		"no fusermount":     {func(f *fake) { f.root = false; delete(f.out, "fusermount3") }, "fusermount3", Warning, "fuse3"},
		"no store":          {func(f *fake) { f.noDir = true }, "store /s", Failed, "install -d -m 755 /s"},
		"store on lustre":   {func(f *fake) { f.drive.Kind, f.drive.Network = "lustre", true }, "store /s", Failed, "own drive"},
		"store is full":     {func(f *fake) { f.drive.Free = 1 << 20 }, "store /s", Failed, "larger drive"},
		"store is memory":   {func(f *fake) { f.drive.Kind = "tmpfs" }, "store /s", Warning, "XFS or ext4"},
		"store is slow":     {func(f *fake) { f.drive.Write = 90e6 }, "store /s speed", Warning, "NVMe"},
		"by a user":         {func(f *fake) { f.root = false; f.drive.Write = 0 }, "store /s speed", Skipped, "as root"},
		"store is a file":   {func(f *fake) { f.drive.Mode = 0o755 }, "store /s", Failed, "to a directory"},
		"private store":     {func(f *fake) { f.drive.Mode = fs.ModeDir | 0o700 }, "store /s", Failed, "chmod 755 /s"},
		"open store":        {func(f *fake) { f.drive.Mode = fs.ModeDir | 0o777 }, "store /s", Warning, "chmod 755 /s"},
		"user's store":      {func(f *fake) { f.drive.Owner = 7 }, "store /s", Warning, "chown root /s"},
		"no inodes":         {func(f *fake) { f.drive.NoInodes = true }, "store /s", Failed, "inodes"},
		"no controller":     {func(f *fake) { f.out["scontrol"] = "" }, "Slurm", Failed, "slurmctld"},
		"other run":         {plugstack("optional bivouac.so run=/run/b"), "plugstack run", Failed, "run=/run/bivouac"},
		"other log":         {plugstack("optional bivouac.so log=/log"), "plugstack log", Failed, "log=/var/log/bivouac"},
		"other program":     {plugstack("optional bivouac.so bivouac=/opt/bivouac"), "plugstack bivouac", Failed, "bivouac=PATH"},
		"required, below":   {plugstack("include plugstack.conf.d/*.conf"), "plugstack", Warning, "optional"},
		"includes itself":   {plugstack("include /etc/slurm/plugstack.conf"), "plugstack", Failed, "optional bivouac.so"},
		"short epilogs":     {scontrol("65534", "120"), "PrologEpilogTimeout", Warning, "epilog_timeout"},
		"private mnt":       {private("Dirs=/mnt\n"), "job_container", Failed, "mount:"},
		"private but /mnt":  {private("# Dirs=/mnt\nShared=true Dirs=/tmp\n"), "job_container", OK, ""},
		"no memory cgroup":  {func(f *fake) { f.files["/sys/fs/cgroup/cgroup.subtree_control"] = "cpu" }, "memory cgroup", Warning, "+memory"},
		"AppArmor":          {armor("/usr/bin/man (enforce)\n/usr/bin/fusermount3 (enforce)\n"), "AppArmor", Warning, "apparmor.d/local"},
		"AppArmor complain": {armor("/usr/bin/man (enforce)\nfusermount3 (complain)\n"), "AppArmor", OK, ""},
		"no profiles":       {func(f *fake) { f.files["/sys/module/apparmor/parameters/enabled"] = "Y\n" }, "AppArmor", Skipped, "root"},
		"firewalld":         {func(f *fake) { f.dial = syscall.EHOSTUNREACH }, "network n2:18500", Failed, "18500 to 22499"},
		"no address":        {func(f *fake) { f.nets = errors.New("network ib0: no address") }, "network addresses", Failed, "network: in /etc/b.yaml"},
		"no textfiles":      {func(f *fake) { delete(f.files, "/textfiles") }, "metrics_textfile", Warning, "textfile.directory"},
		"no munge":          {func(f *fake) { delete(f.out, "sh") }, "munge", Warning, "munged"},
		"no Slurm":          {func(f *fake) { delete(f.out, "scontrol") }, "Slurm", Skipped, "scontrol"},
		"prolog too early":  {scontrol(",DeferBatch", ""), "PrologFlags", Failed, "DeferBatch"},
		"held jobs":         {scontrol(",nohold_on_prolog_fail", ""), "failed prologs", Warning, "requeued and held"},
		"not loaded":        {func(f *fake) { f.files["/etc/slurm/plugstack.conf"] = "#optional bivouac.so\n" }, "plugstack", Failed, "optional bivouac.so"},
		"required":          {func(f *fake) { f.files["/etc/slurm/plugstack.conf"] = "required bivouac.so" }, "plugstack", Warning, "optional"},
		"no plugin":         {func(*fake) {}, "plugin", Failed, "/usr/lib/slurm"},
		"bad plugin":        {func(f *fake) { f.files["/usr/lib/slurm/bivouac.so"] = "text" }, "plugin", Failed, "again"},
		"impatient Slurm":   {scontrol("60 sec", "10 sec"), "UnkillableStepTimeout", Failed, "failure_timeout"},
		"short prologs":     {scontrol("65534", "30"), "PrologEpilogTimeout", Failed, "start_timeout"},
		"private tmp":       {private(""), "job_container", Warning, "Shared=true"},
		"pgid":              {scontrol("proctrack/cgroup", "proctrack/pgid"), "cgroups", Warning, "proctrack/cgroup"},
		"SELinux":           {func(f *fake) { f.files["/sys/fs/selinux/enforce"] = "1" }, "SELinux", Warning, "permissive"},
		"firewall":          {func(f *fake) { f.dial = context.DeadlineExceeded }, "network n2:18500", Failed, "18500 to 22499"},
		"no such host":      {func(f *fake) { f.dial = errors.New("no such host") }, "network n2:22499", Failed, "resolve"},
		"clock":             {func(f *fake) { f.synced = false }, "clock", Warning, "chronyd"},
	} {
		h := healthy()
		c.spoil(h)
		if f := run(config(h))[c.check]; f.State != c.state || !strings.Contains(f.Remedy, c.remedy) {
			t.Errorf("%s: %+v, want %s and %q in the remedy", name, f, c.state, c.remedy)
		}
	}
}

// TestThis: the checks run on this machine, and the probe leaves no files.
func TestThis(t *testing.T) {
	dir := t.TempDir()
	d, err := This{}.Store(dir, 200*time.Millisecond)
	if err != nil || d.Kind == "" || d.Free <= 0 || d.Network || d.Write <= 0 || d.Read <= 0 {
		t.Errorf("Store = %+v, %v", d, err)
	}
	if es, _ := os.ReadDir(dir); len(es) != 0 {
		t.Errorf("the probe leaves %v", es)
	}
	all := Run(context.Background(), Config{Host: This{}, Store: []string{dir}, Munge: "off"})
	var b strings.Builder
	if err := Write(&b, all); err != nil || !strings.Contains(b.String(), "kernel") {
		t.Errorf("%v:\n%s", err, &b)
	}
	if _, _, err := pluginVersion([]byte("x")); err == nil {
		t.Error("text is a plugin")
	}
}

func TestWorst(t *testing.T) {
	for want, all := range map[State][]Finding{OK: {{State: OK}, {State: Skipped}}, Warning: {{State: Warning}, {State: OK}}, Failed: {{State: Failed}, {State: Warning}}} {
		if got := Worst(all); got != want {
			t.Errorf("Worst(%v) = %v", all, got)
		}
	}
}
