package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// kernel checks the release, and the filesystems that make reading fast.
func (d *doctor) kernel() {
	release := d.text("/proc/sys/kernel/osrelease")
	at := func(major, minor int) bool {
		var x, y int
		n, _ := fmt.Sscanf(release, "%d.%d", &x, &y) // another form is old
		return n == 2 && (x > major || x == major && y >= minor)
	}
	has := func(name string) bool {
		return slices.Contains(strings.Fields(d.text("/proc/filesystems")), name) ||
			strings.Contains(d.text("/lib/modules/"+release+"/modules.dep"), "/"+name+".ko")
	}
	d.add("kernel", unless(at(4, 18), Failed), "install Linux 4.18 or newer", "Linux %s", release)
	d.add("passthrough", unless(at(6, 9), Warning), "Linux 6.9 or newer lets the kernel read large local files without the daemon", "Linux %s", release)
	d.add("kernel views", unless(at(6, 5) && has("erofs") && has("overlay"), Warning),
		"Linux 6.5 or newer with erofs and overlay (modprobe erofs overlay) lets the kernel read small local files without the daemon",
		"erofs: %s, overlay with data-only layers: %s", yes(has("erofs")), yes(has("overlay") && at(6, 5)))
	d.add("fuse", unless(has("fuse"), Failed), "load the module: modprobe fuse, and add it to /etc/modules-load.d", "FUSE in the kernel: %s", yes(has("fuse")))
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (d *doctor) fuse(ctx context.Context) {
	err := d.h.OpenFuse()
	remedy := "load the module: modprobe fuse"
	if errors.Is(err, fs.ErrPermission) {
		remedy = "give /dev/fuse mode 0666, as udev does by default"
	}
	d.add("/dev/fuse", unless(err == nil, Failed), remedy, "%s", errText(err, "can be opened"))
	if !d.h.Root() {
		_, err := d.h.Run(ctx, "fusermount3", "--version")
		d.add("fusermount3", unless(err == nil, Warning), "install the package fuse3: bivouac up needs it for users other than root", "%s", errText(err, "works"))
	}
}

// errText is the error, or good for none.
func errText(err error, good string) string {
	if err == nil {
		return good
	}
	return err.Error()
}

const (
	leastFree  = 1 << 30   // bytes of a drive that is worth using
	leastSpeed = 500 << 20 // bytes per second of an NVMe drive
	gib        = 1 << 30
	mib        = 1 << 20
)

func (d *doctor) store() {
	for _, dir := range d.cfg.Store {
		check := "store " + dir
		probe := d.cfg.Probe
		if !d.h.Root() {
			probe = 0
		}
		x, err := d.h.Store(dir, probe)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.add(check, Failed, "install -d -m 755 "+dir+" on the node's NVMe drive, or set store: in /etc/bivouac/bivouac.yaml", "is missing")
		case err != nil:
			d.add(check, Failed, "check that root can read and write there", "%v", err)
		case x.Network:
			d.add(check, Failed, "set store: to a directory on the node's own drive", "is on %s, a network filesystem", x.Kind)
		case x.Free < leastFree:
			d.add(check, Failed, "free space, or set store: to a larger drive", "%s, %.1f GiB free", x.Kind, float64(x.Free)/gib)
		default:
			d.add(check, unless(x.Kind == "xfs" || x.Kind == "ext4", Warning), "use XFS or ext4, which are tested; a filesystem in memory takes memory from jobs",
				"%s, %.1f GiB free", x.Kind, float64(x.Free)/gib)
		}
		switch {
		case err != nil:
		case d.cfg.Probe == 0:
			d.add(check+" speed", Skipped, "run bivouac doctor without --probe 0", "not measured")
		case x.Write == 0:
			d.add(check+" speed", Skipped, "run bivouac doctor as root", "not measured")
		default:
			d.add(check+" speed", unless(min(x.Write, x.Read) >= leastSpeed, Warning), "check that this is the NVMe drive, which should reach 500 MiB/s: jobs read no faster from it than this",
				"write %.0f MiB/s, read %.0f MiB/s", x.Write/mib, x.Read/mib)
		}
	}
}

func (d *doctor) munge(ctx context.Context) {
	if d.cfg.Munge == "off" {
		d.add("munge", Skipped, "", "munge: off in the configuration")
		return
	}
	bad := Warning
	if d.cfg.Munge == "require" {
		bad = Failed
	}
	_, err := d.h.Run(ctx, "sh", "-c", "munge -n | unmunge")
	d.add("munge", unless(err == nil, bad), "start munged with the cluster's key; without munge, the key of a job travels with its submission", "%s", errText(err, "encodes and decodes a credential"))
}

// slurm checks Slurm's settings and the plugin.
func (d *doctor) slurm(ctx context.Context) {
	out, err := d.h.Run(ctx, "scontrol", "show", "config")
	if err != nil {
		d.add("Slurm", Skipped, "on a cluster, run this on a node or a submit host with scontrol", "%v", err)
		return
	}
	conf := settings(out)
	d.add("Slurm", OK, "", "version %s", conf["SLURM_VERSION"])
	flags := strings.Split(conf["PrologFlags"], ",")
	has := func(f string) bool {
		return slices.ContainsFunc(flags, func(x string) bool { return strings.EqualFold(x, f) })
	}
	d.add("PrologFlags", unless(has("Alloc") && has("DeferBatch"), Failed), "set PrologFlags=Alloc,DeferBatch in slurm.conf: jobs must not start before all mounts are there", "%s", conf["PrologFlags"])
	d.add("failed prologs", unless(strings.Contains(conf["SchedulerParameters"], "nohold_on_prolog_fail"), Warning),
		"set SchedulerParameters=nohold_on_prolog_fail in slurm.conf: otherwise, a batch job whose prolog fails is requeued and held until scontrol release",
		"SchedulerParameters=%s", conf["SchedulerParameters"])
	d.plugstack(conf)
	d.timeouts(conf)
	d.add("job_container", unless(!strings.Contains(conf["JobContainerType"], "tmpfs"), Warning),
		"set mount: in bivouac.yaml to a directory that job_container.conf does not make private, and set Shared=true in that file (Slurm 23.02 or later): otherwise jobs do not see what is mounted after a daemon was restarted", "%s", conf["JobContainerType"])
	d.add("cgroups", unless(strings.Contains(conf["ProctrackType"], "cgroup"), Warning), "set ProctrackType=proctrack/cgroup in slurm.conf: it ends all processes of a job before its epilog", "%s", conf["ProctrackType"])
}

// settings reads the lines KEY = VALUE of scontrol.
func settings(out string) map[string]string {
	conf := make(map[string]string)
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(line, "="); ok {
			conf[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	return conf
}

// plugstack checks that Slurm loads the plugin, and that it is made for this Slurm.
func (d *doctor) plugstack(conf map[string]string) {
	path := conf["PlugStackConfig"]
	if path == "" || path == "(null)" {
		path = "/etc/slurm/plugstack.conf"
	}
	loads, required := "", false
	for line := range strings.Lines(d.text(path) + "\n") {
		if f := strings.Fields(line); len(f) >= 2 && strings.HasSuffix(f[1], "bivouac.so") && !strings.HasPrefix(f[0], "#") {
			loads, required = f[1], f[0] == "required"
		}
	}
	switch {
	case loads == "":
		d.add("plugstack", Failed, `add the line "optional bivouac.so" to `+path, "%s does not load bivouac.so", path)
		return
	case required:
		d.add("plugstack", Warning, "write optional instead of required: then a plugin that cannot be loaded does not break sbatch", "required %s", loads)
	default:
		d.add("plugstack", OK, "", "optional %s", loads)
	}
	found := loads
	if !strings.HasPrefix(loads, "/") {
		for _, dir := range strings.Split(conf["PluginDir"], ":") {
			if _, err := d.h.Read(dir + "/" + loads); err == nil {
				found = dir + "/" + loads
			}
		}
	}
	b, err := d.h.Read(found)
	if err != nil {
		d.add("plugin", Failed, "install the package for this Slurm, or copy bin/bivouac.so to its PluginDir, "+conf["PluginDir"], "%s is missing", loads)
		return
	}
	major, minor, err := pluginVersion(b)
	if err != nil {
		d.add("plugin", Failed, "install the package again, or copy bin/bivouac.so again", "%s: %v", found, err)
		return
	}
	want := fmt.Sprintf("%d.%02d", major, minor)
	d.add("plugin", unless(strings.HasPrefix(conf["SLURM_VERSION"], want+"."), Failed), "install the package for this Slurm, or build one with its headers: make dist", "%s is for Slurm %s", found, want)
}

// timeouts checks that Slurm waits longer than Bivouac does.
func (d *doctor) timeouts(conf map[string]string) {
	for _, t := range []struct {
		key  string
		over time.Duration
		of   string
	}{
		{"UnkillableStepTimeout", d.cfg.FailureTimeout, "failure_timeout"},
		{"PrologEpilogTimeout", d.cfg.StartTimeout, "start_timeout"},
	} {
		v, _, _ := strings.Cut(conf[t.key], " ")
		s, err := strconv.Atoi(v)
		if err != nil || s >= 65534 { // not set: no limit
			d.add(t.key, OK, "", "%s", conf[t.key])
			continue
		}
		d.add(t.key, unless(time.Duration(s)*time.Second > t.over, Failed), fmt.Sprintf("set %s in slurm.conf above %s, %v", t.key, t.of, t.over), "%s", conf[t.key])
	}
}

func (d *doctor) security() {
	if d.text("/sys/fs/selinux/enforce") == "1" {
		d.add("SELinux", Warning, "allow slurmd_t to mount FUSE and to run /usr/bin/bivouac, or test in permissive mode", "enforcing")
	}
	cgroup := d.text("/proc/self/cgroup")
	d.add("memory cgroup", unless(cgroup != "", Warning), "mount cgroups: without them, memory: in bivouac.yaml has no effect", "cgroups: %s", yes(cgroup != ""))
}

// network tries the range of ports on another node: a refusal shows that packets arrive.
func (d *doctor) network(ctx context.Context) {
	if d.cfg.Peer == "" {
		d.add("network", Skipped, "run bivouac doctor --peer HOST with another node", "no other node given")
		return
	}
	for _, port := range []int{d.cfg.Port, d.cfg.Port + d.cfg.Ports - 1} {
		ctx, cancel := context.WithTimeout(ctx, dialTime)
		addr := net.JoinHostPort(d.cfg.Peer, strconv.Itoa(port))
		err := d.h.Dial(ctx, addr)
		cancel()
		check := "network " + addr
		switch {
		case err == nil, errors.Is(err, syscall.ECONNREFUSED):
			d.add(check, OK, "", "packets arrive")
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
			d.add(check, Failed, fmt.Sprintf("open the TCP ports %d to %d between the nodes in the firewall", d.cfg.Port, d.cfg.Port+d.cfg.Ports-1), "no answer in %v", dialTime)
		default:
			d.add(check, Failed, "check that this host can resolve the name and has a route", "%v", err)
		}
	}
}

// dialTime bounds a connection.
const dialTime = 2 * time.Second

func (d *doctor) clock() {
	ok, err := d.h.Synchronized()
	if err != nil {
		d.add("clock", Skipped, "run timedatectl", "%v", err)
		return
	}
	d.add("clock", unless(ok, Warning), "run chronyd or systemd-timesyncd: munge refuses credentials of a clock that is minutes off", "synchronized: %s", yes(ok))
}
