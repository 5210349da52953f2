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
		n, _ := fmt.Sscanf(release, "%d.%d", &x, &y) // another format means an old kernel
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

// errText returns the text of err, or good if err is nil.
func errText(err error, good string) string {
	if err == nil {
		return good
	}
	return err.Error()
}

const (
	leastFree  = 1 << 30   // least free bytes of a useful drive
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
		found := fmt.Sprintf("%s, %.1f GiB free", x.Kind, float64(x.Free)/gib)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.add(check, Failed, "install -d -m 755 "+dir+" on the node's NVMe drive, or set store: in "+d.cfg.Path+"; on a submit host, run bivouac doctor --submit", "is missing")
		case err != nil:
			d.add(check, Failed, "check that root can read and write there", "%v", err)
		case !x.Mode.IsDir():
			d.add(check, Failed, "set store: to a directory", "is not a directory")
		case x.Mode&0o001 == 0:
			d.add(check, Failed, "chmod 755 "+dir+": daemons run as the users of jobs, and need to reach their directories in it", "has mode %04o", x.Mode.Perm())
		case x.Network:
			d.add(check, Failed, "set store: to a directory on the node's own drive", "is on %s, a network filesystem", x.Kind)
		case x.Free < leastFree:
			d.add(check, Failed, "free space, or set store: to a larger drive", "%s", found)
		case x.NoInodes:
			d.add(check, Failed, "remove files from the drive, or make its filesystem with more inodes", "%s, but no free inode", found)
		case x.Owner != 0 || x.Mode&0o002 != 0:
			d.add(check, Warning, "chown root "+dir+"; chmod 755 "+dir+": otherwise users can keep jobs of others from starting", "has mode %04o and belongs to uid %d", x.Mode.Perm(), x.Owner)
		default:
			d.add(check, unless(x.Kind == "xfs" || x.Kind == "ext4", Warning), "use XFS or ext4, which are tested; a filesystem in memory takes memory from jobs", "%s", found)
		}
		switch {
		case err != nil || x.Network:
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
		d.add("munge", OK, "", "off in the configuration: the key of a job travels with its submission")
		return
	}
	bad := Warning
	if d.cfg.Munge == "require" {
		bad = Failed
	}
	munge := "munge -n | unmunge"
	if s := d.cfg.MungeSocket; s != "" {
		munge = fmt.Sprintf("munge -n -S '%s' | unmunge -S '%s'", s, s)
	}
	_, err := d.h.Run(ctx, "sh", "-c", munge)
	d.add("munge", unless(err == nil, bad), "install munge and start munged with the cluster's key; without munge, the key of a job travels with its submission", "%s", errText(err, "encodes and decodes a credential"))
}

func (d *doctor) security() {
	if d.text("/sys/fs/selinux/enforce") == "1" {
		d.add("SELinux", Warning, "allow slurmd_t to mount FUSE and to run /usr/bin/bivouac, or test in permissive mode", "enforcing")
	}
	if d.text("/sys/module/apparmor/parameters/enabled") == "Y" {
		d.appArmor()
	}
	if d.cfg.Memory > 0 {
		_, err := d.h.Read("/sys/fs/cgroup/memory/memory.limit_in_bytes") // v1
		good := err == nil || slices.Contains(strings.Fields(d.text("/sys/fs/cgroup/cgroup.subtree_control")), "memory")
		d.add("memory cgroup", unless(good, Warning), "enable the memory controller of cgroups (echo +memory > /sys/fs/cgroup/cgroup.subtree_control): without it, memory: in "+d.cfg.Path+" has no effect",
			"memory controller: %s", yes(good))
	}
}

// appArmor looks for enforced profiles of programs that mount.
func (d *doctor) appArmor() {
	b, err := d.h.Read("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		d.add("AppArmor", Skipped, "run bivouac doctor as root", "enabled; its profiles cannot be read")
		return
	}
	var bad []string
	for line := range strings.Lines(string(b)) {
		name, mode, _ := strings.Cut(strings.TrimSpace(line), " ")
		if base := name[strings.LastIndex(name, "/")+1:]; mode == "(enforce)" && slices.Contains([]string{"slurmd", "bivouac", "fusermount3"}, base) {
			bad = append(bad, name)
		}
	}
	if len(bad) > 0 {
		d.add("AppArmor", Warning, "allow these programs to mount FUSE filesystems where jobs and bivouac up need them, in /etc/apparmor.d/local", "enforces profiles of %s", strings.Join(bad, ", "))
		return
	}
	d.add("AppArmor", OK, "", "no profile of slurmd, bivouac or fusermount3")
}

// networks checks that this node has an address on each network of the configuration.
func (d *doctor) networks() {
	if len(d.cfg.Network) == 0 {
		return
	}
	err := d.h.Networks(d.cfg.Network)
	d.add("network addresses", unless(err == nil, Failed), "give this node an address there, or correct network: in "+d.cfg.Path, "%s", errText(err, "on "+strings.Join(d.cfg.Network, ", ")))
}

// network probes the range of ports on another node: a refusal shows that packets arrive, unless a firewall sends it.
func (d *doctor) network(ctx context.Context) {
	if d.cfg.Peer == "" {
		d.add("network", Skipped, "run bivouac doctor --peer HOST with another node", "no other node given")
		return
	}
	firewall := fmt.Sprintf("open the TCP ports %d to %d between the nodes in the firewall", d.cfg.Port, d.cfg.Port+d.cfg.Ports-1)
	for _, port := range []int{d.cfg.Port, d.cfg.Port + d.cfg.Ports - 1} {
		ctx, cancel := context.WithTimeout(ctx, dialTime)
		addr := net.JoinHostPort(d.cfg.Peer, strconv.Itoa(port))
		err := d.h.Dial(ctx, addr)
		cancel()
		check := "network " + addr
		switch {
		case err == nil:
			d.add(check, OK, "", "connected")
		case errors.Is(err, syscall.ECONNREFUSED):
			d.add(check, OK, "", "the host answers that the port is not in use (a firewall can also answer so)")
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
			d.add(check, Failed, firewall, "no answer in %v", dialTime)
		case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			d.add(check, Failed, firewall+"; or there is no route to the host", "%v", err)
		default:
			d.add(check, Failed, "check that this host can resolve the name and has a route", "%v", err)
		}
	}
}

// dialTime bounds an attempt to connect.
const dialTime = 2 * time.Second

// textfile checks node_exporter's directory.
func (d *doctor) textfile() {
	if dir := d.cfg.Textfile; dir != "" {
		d.add("metrics_textfile", unless(len(d.h.Glob(dir)) > 0, Warning), "make the directory that node_exporter reads (--collector.textfile.directory), or correct metrics_textfile: in "+d.cfg.Path, "%s", dir)
	}
}

func (d *doctor) clock() {
	ok, err := d.h.Synchronized()
	if err != nil {
		d.add("clock", Skipped, "run timedatectl", "%v", err)
		return
	}
	d.add("clock", unless(ok, Warning), "run chronyd or systemd-timesyncd: munge refuses credentials of a clock that is minutes off", "synchronized: %s", yes(ok))
}
