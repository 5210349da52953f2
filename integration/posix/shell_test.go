package posix

import "os/exec"

// shell runs a script in a directory, and returns its output.
func shell(dir, script string) (string, error) {
	out, err := exec.Command("sh", "-c", "set -e; cd \"$1\"; "+script, "sh", dir).CombinedOutput()
	return string(out), err
}
