package pitch

import (
	"fmt"
	"strings"
)

// ParseSize reads a size as options have it: 400G, 1.5T, 1048576. Nothing is 0.
func ParseSize(v string) (int64, error) {
	if strings.TrimSpace(v) == "" {
		return 0, nil
	}
	return parseSize(v)
}

// RunDir is the directory of the control socket of a job on this node.
func RunDir(site Site, job string) (string, error) {
	if !jobName.MatchString(job) {
		return "", fmt.Errorf("%q is not the number of a Slurm job", job)
	}
	return place{site, job}.ctl(), nil
}
