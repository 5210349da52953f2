package pitch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// cgroupRoots are the parents for a memory cgroup, each with its limit file: v2, then v1.
var cgroupRoots = [][2]string{
	{"/sys/fs/cgroup", "memory.max"},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
}

func cgroupDir(root string, p place) string { return filepath.Join(root, "bivouac-"+p.job) }

// enterCgroup moves a daemon into a cgroup with the site's memory limit. If that fails, the daemon runs without a
// limit.
func enterCgroup(p place, pid int) error {
	if p.site.Memory == 0 {
		return nil
	}
	var errs []error
	for _, root := range cgroupRoots {
		dir := cgroupDir(root[0], p)
		err := os.Mkdir(dir, 0o755)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = tell(filepath.Join(dir, root[1]), int64(p.site.Memory))
		}
		if err == nil {
			return tell(filepath.Join(dir, "cgroup.procs"), int64(pid))
		}
		_ = os.Remove(dir) // it is unusable
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tell writes to a kernel file. It must not create one: with cgroup v1 the first root is an
// ordinary filesystem.
func tell(path string, v int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(v, 10))
	return errors.Join(err, f.Close())
}

// leaveCgroup removes the cgroup of a dead daemon.
func leaveCgroup(p place) {
	for _, root := range cgroupRoots {
		_ = os.Remove(cgroupDir(root[0], p)) // usually there is none
	}
}
