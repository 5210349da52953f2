package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// slurm checks Slurm's settings and the plugin.
func (d *doctor) slurm(ctx context.Context) {
	out, err := d.h.Run(ctx, "scontrol", "show", "config")
	if errors.Is(err, exec.ErrNotFound) {
		d.add("Slurm", Skipped, "on a cluster, run this on a node or a submit host with scontrol", "%v", err)
		return
	}
	if err != nil {
		d.add("Slurm", Failed, "start slurmctld, or check that this host reaches it: scontrol show config must succeed", "%v", err)
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
	d.privateDirs(conf)
	d.add("cgroups", unless(strings.Contains(conf["ProctrackType"], "cgroup"), Warning), "set ProctrackType=proctrack/cgroup in slurm.conf: it ends all processes of a job before its epilog", "%s", conf["ProctrackType"])
}

// settings parses the lines KEY = VALUE of scontrol.
func settings(out string) map[string]string {
	conf := make(map[string]string)
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(line, "="); ok {
			conf[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	return conf
}

// slurmFile returns the path of a file next to slurm.conf; a node without configuration files gets it from slurmctld.
func (d *doctor) slurmFile(conf map[string]string, name string) string {
	dir := filepath.Dir(cmp.Or(conf["SLURM_CONF"], "/etc/slurm/slurm.conf"))
	for _, dir := range []string{dir, "/run/slurm/conf", "/var/spool/slurmd/conf-cache"} {
		if _, err := d.h.Read(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	return filepath.Join(dir, name)
}

// plugin returns the words of the line of plugstack.conf that loads the plugin, or none. It follows include lines up to
// depth.
func (d *doctor) plugin(path string, depth int) (found []string) {
	for line := range strings.Lines(d.text(path) + "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) < 2 || strings.HasPrefix(f[0], "#"):
		case f[0] == "include" && depth > 0:
			if !filepath.IsAbs(f[1]) {
				f[1] = filepath.Join(filepath.Dir(path), f[1])
			}
			for _, p := range d.h.Glob(f[1]) {
				found = append(found, d.plugin(p, depth-1)...)
			}
		case strings.HasSuffix(f[1], "bivouac.so"):
			found = f
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// plugstack checks that Slurm loads the plugin, with the arguments that the site's configuration needs.
func (d *doctor) plugstack(conf map[string]string) {
	path := conf["PlugStackConfig"]
	if _, err := d.h.Read(path); err != nil {
		path = d.slurmFile(conf, "plugstack.conf")
	}
	line := d.plugin(path, 4)
	if line == nil {
		d.add("plugstack", Failed, `add the line "optional bivouac.so" to `+path, "%s does not load bivouac.so", path)
		return
	}
	if line[0] == "required" {
		d.add("plugstack", Warning, "write optional instead of required: then a plugin that cannot be loaded does not break sbatch", "required %s", line[1])
	} else {
		d.add("plugstack", OK, "", "%s %s", line[0], line[1])
	}
	args := map[string]string{"bivouac": "/usr/bin/bivouac", "run": "/run/bivouac", "log": "/var/log/bivouac"}
	for _, a := range line[2:] {
		k, v, _ := strings.Cut(a, "=")
		args[k] = v
	}
	for _, x := range [][2]string{{"run", d.cfg.Run}, {"log", d.cfg.Log}} {
		if key, dir := x[0], x[1]; args[key] != dir {
			d.add("plugstack "+key, Failed, fmt.Sprintf("write %s=%s after bivouac.so in plugstack.conf", key, dir), "the plugin uses %s, and %s: in %s is %s", args[key], key, d.cfg.Path, dir)
		}
	}
	if len(d.h.Glob(args["bivouac"])) == 0 {
		d.add("plugstack bivouac", Failed, "install the package, or write bivouac=PATH after bivouac.so in plugstack.conf", "the plugin runs %s, which is missing", args["bivouac"])
	}
	d.release(conf, line[1])
}

// release checks that the plugin was built for this Slurm.
func (d *doctor) release(conf map[string]string, loads string) {
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
	limit := func(key string) time.Duration {
		v, _, _ := strings.Cut(conf[key], " ")
		s, err := strconv.Atoi(v)
		if err != nil || s >= 65534 { // not set
			return math.MaxInt64
		}
		return time.Duration(s) * time.Second
	}
	d.add("UnkillableStepTimeout", unless(limit("UnkillableStepTimeout") > d.cfg.FailureTimeout, Failed),
		fmt.Sprintf("set UnkillableStepTimeout in slurm.conf above failure_timeout, %v", d.cfg.FailureTimeout), "%s", conf["UnkillableStepTimeout"])
	const key = "PrologEpilogTimeout"
	if limit(key) <= d.cfg.StartTimeout {
		d.add(key, Failed, fmt.Sprintf("set %s in slurm.conf above start_timeout, %v, and above the end of a job, %v", key, d.cfg.StartTimeout, d.cfg.EpilogTimeout), "%s", conf[key])
		return
	}
	d.add(key, unless(limit(key) > d.cfg.EpilogTimeout, Warning),
		fmt.Sprintf("set %s in slurm.conf above %v, the time limit for the end of a job with stage-out (epilog_timeout), or a smaller epilog_timeout: Slurm cuts the stage-out off and drains the node", key, d.cfg.EpilogTimeout), "%s", conf[key])
}

// privateDirs checks that jobs with private directories can see the mounts of Bivouac.
func (d *doctor) privateDirs(conf map[string]string) {
	kind := cmp.Or(conf["NamespaceType"], conf["JobContainerType"]) // newer Slurm, older Slurm
	if !strings.Contains(kind, "tmpfs") {
		d.add("job_container", OK, "", "%s", kind)
		return
	}
	dirs, shared := []string{"/tmp", "/dev/shm"}, false
	for line := range strings.Lines(d.text(d.slurmFile(conf, "job_container.conf"))) {
		line, _, _ = strings.Cut(line, "#")
		for _, f := range strings.Fields(line) {
			switch k, v, _ := strings.Cut(f, "="); strings.ToLower(k) {
			case "dirs":
				dirs = strings.Split(v, ",")
			case "shared":
				shared = strings.EqualFold(v, "true")
			}
		}
	}
	for _, dir := range dirs {
		if d.cfg.Mount == dir || strings.HasPrefix(d.cfg.Mount, dir+"/") {
			d.add("job_container", Failed, "set mount: in "+d.cfg.Path+" to a directory that job_container.conf does not make private", "mount: is %s, and jobs have a %s of their own", d.cfg.Mount, dir)
			return
		}
	}
	d.add("job_container", unless(shared, Warning), "set Shared=true in job_container.conf (Slurm 23.02 or later): otherwise jobs do not see mounts made after a daemon restart", "%s", kind)
}
