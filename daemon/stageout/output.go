package stageout

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
)

// Output identifies the file of the job's output, as the batch script has it open. The daemon of the job's user appends
// messages for the user to it.
type Output struct {
	Path   string `json:"path"`
	Dev    uint64 `json:"dev"` // with Ino, identifies the file: the path may become another file
	Ino    uint64 `json:"ino"`
	Append bool   `json:"append,omitempty"` // the job opens it for appending, so added lines stay
}

// OutputOf returns the file that f has open; false if it is not a regular file with a name, such as a terminal or a
// pipe.
func OutputOf(f *os.File) (Output, bool) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil || !filepath.IsAbs(path) {
		return Output{}, false
	}
	var open, there unix.Stat_t
	if unix.Fstat(int(f.Fd()), &open) != nil || unix.Lstat(path, &there) != nil {
		return Output{}, false
	}
	if open.Mode&unix.S_IFMT != unix.S_IFREG || open.Dev != there.Dev || open.Ino != there.Ino {
		return Output{}, false
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return Output{Path: path, Dev: open.Dev, Ino: open.Ino, Append: err == nil && flags&unix.O_APPEND != 0}, true
}

func (o Output) validate() error {
	if !filepath.IsAbs(o.Path) {
		return fmt.Errorf("job output %.200q: not an absolute path: %w", o.Path, syscall.EINVAL)
	}
	return nil
}

// ownOutput returns the file that is used if no node has the job's output: salloc's goes to a terminal, others to a
// pipe. It is created when there is something to write.
func ownOutput(j *job.File) *Output {
	if j.WorkDir == "" {
		return nil
	}
	return &Output{Path: filepath.Join(j.WorkDir, fmt.Sprintf("bivouac-%s.out", j.ID)), Append: true}
}

// add appends text if the file is still the same, regular, and owned by this process's user.
func (o Output) add(text string) error {
	flags := unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_NONBLOCK
	own := o.Ino == 0 // see ownOutput
	if own {
		flags |= unix.O_CREAT
	}
	f, err := os.OpenFile(o.Path, flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%s: %w", o.Path, err)
	}
	same := own || st.Dev == o.Dev && st.Ino == o.Ino
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !same || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is no longer the file of the job's output: %w", o.Path, syscall.ESTALE)
	}
	_, err = f.WriteString(text)
	return err
}
