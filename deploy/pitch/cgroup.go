package pitch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// cgroupRoots is where a memory group can be made, with the name of the file
// that bounds it: cgroup v2, then v1.
var cgroupRoots = [][2]string{
	{"/sys/fs/cgroup", "memory.max"},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
}

func cgroupDir(root string, p place) string { return filepath.Join(root, "bivouac-"+p.job) }

// enterCgroup moves a daemon into a group with the site's bound of memory. It
// is best effort: without it the daemon is only not bounded.
func enterCgroup(p place, pid int) error {
	if p.site.Memory == 0 {
		return nil
	}
	var errs []error
	for _, root := range cgroupRoots {
		dir := cgroupDir(root[0], p)
		err := os.Mkdir(dir, 0o755)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = os.WriteFile(filepath.Join(dir, root[1]), []byte(strconv.FormatInt(int64(p.site.Memory), 10)), 0)
		}
		if err == nil {
			return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		}
		_ = os.Remove(dir) // it is of no use
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// leaveCgroup removes the group; the daemon in it is dead.
func leaveCgroup(p place) {
	for _, root := range cgroupRoots {
		_ = os.Remove(cgroupDir(root[0], p)) // usually there is none
	}
}
