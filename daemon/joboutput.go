package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
)

// JobOutput is the file that the job's output goes to, as its batch script
// finds it. The user's daemon adds to it what the user should know; nobody else
// touches it.
type JobOutput struct {
	Path string `json:"path"`
	Dev  uint64 `json:"dev"` // with Ino: what has the path later may be another file
	Ino  uint64 `json:"ino"`
	// Append says that who writes it appends: a line that is added meanwhile
	// stays.
	Append bool `json:"append,omitempty"`
}

// OutputOf is the file that f is open on; false if that is no regular file with
// a name, such as a terminal or a pipe.
func OutputOf(f *os.File) (JobOutput, bool) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil || !filepath.IsAbs(path) {
		return JobOutput{}, false
	}
	var open, there unix.Stat_t
	if unix.Fstat(int(f.Fd()), &open) != nil || unix.Lstat(path, &there) != nil {
		return JobOutput{}, false
	}
	if open.Mode&unix.S_IFMT != unix.S_IFREG || open.Dev != there.Dev || open.Ino != there.Ino {
		return JobOutput{}, false
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return JobOutput{Path: path, Dev: open.Dev, Ino: open.Ino, Append: err == nil && flags&unix.O_APPEND != 0}, true
}

// validate says what is wrong with o before it is used.
func (o JobOutput) validate() error {
	if !filepath.IsAbs(o.Path) {
		return fmt.Errorf("job output %.200q: not an absolute path: %w", o.Path, syscall.EINVAL)
	}
	return nil
}

// ownOutput is the file in which the user is told what no output of the job can have:
// that of salloc goes to a terminal, and one may go to a pipe. It is made when there is
// something to tell.
func ownOutput(job *job.File) *JobOutput {
	if job.WorkDir == "" {
		return nil
	}
	return &JobOutput{Path: filepath.Join(job.WorkDir, fmt.Sprintf("bivouac-%s.out", job.ID)), Append: true}
}

// add appends text, if the file is still the one that it was, regular, and this
// process's user's own.
func (o JobOutput) add(text string) error {
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
		return fmt.Errorf("%s is not the file any more that the job's output went to: %w", o.Path, syscall.ESTALE)
	}
	_, err = f.WriteString(text)
	return err
}

// teller tells the user, in the job's output, what did not make it.
type teller struct {
	add      func(JobOutput, string) error // JobOutput.add, but in tests
	patience time.Duration                 // with the file system of the output
	own      *JobOutput                    // where it is told if no node has the job's output; nil is nowhere

	mu    sync.Mutex
	to    *JobOutput            // guarded by mu; nil: the output is not on this node, or no file
	told  map[job.StageOut]bool // guarded by mu; whose trouble was told while the job runs
	heard []outTrouble          // guarded by mu; of all nodes, as the leader last said
}

// tellTime is how long the job's output may take to be written to.
const tellTime = 4 * time.Second

func newTeller(own *JobOutput) *teller {
	return &teller{add: JobOutput.add, patience: tellTime, own: own, told: make(map[job.StageOut]bool)}
}

func (t *teller) output() (JobOutput, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to == nil {
		return JobOutput{}, false
	}
	return *t.to, true
}

// place is where this node tells; nil is nowhere. mu is held.
func (t *teller) place() *JobOutput {
	if t.to == nil {
		return t.own
	}
	return t.to
}

func (t *teller) set(o JobOutput) {
	t.mu.Lock()
	t.to = &o
	t.mu.Unlock()
}

// hear takes what all nodes have to tell, if this one is to tell it, and returns what of
// it is news while the job runs: what fails for the first time.
func (t *teller) hear(all []outTrouble) (news []outTrouble) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard = all
	o := t.place()
	for _, x := range all {
		if !x.Final && !t.told[x.StageOut] && o != nil && o.Append {
			t.told[x.StageOut] = true
			news = append(news, x)
		}
	}
	return news
}

// finals is what did not make it in the end; own is what this node knows, in
// case the leader could not be heard: who has the job's output tells that, then.
func (t *teller) finals(own []outTrouble) []outTrouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to == nil {
		own = nil
	}
	var last []outTrouble
	for _, all := range [][]outTrouble{t.heard, own} {
		for _, x := range all {
			if x.Final && len(x.Kinds) > 0 {
				last = append(last, x)
			}
		}
		if len(last) > 0 {
			return last
		}
	}
	return nil
}

// tell adds a line for each trouble. A file system that does not answer is not
// waited for: the goroutine stays behind with it.
func (t *teller) tell(all []outTrouble) error {
	t.mu.Lock()
	o := t.place()
	t.mu.Unlock()
	text := ""
	for _, x := range all {
		if len(x.Kinds) > 0 {
			text += x.line()
		}
	}
	if o == nil || text == "" {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- t.add(*o, text) }()
	select {
	case err := <-done:
		return err
	case <-time.After(t.patience):
		return fmt.Errorf("%s: no answer for %v: %w", o.Path, t.patience, syscall.ETIMEDOUT)
	}
}

// outputFile is where a daemon that starts again finds the job's output.
func (d *Daemon) outputFile() string { return filepath.Join(d.job.Dirs.Run, "output.json") }

// recallOutput reads what setOutput wrote.
func (d *Daemon) recallOutput() {
	b, err := os.ReadFile(d.outputFile())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var o JobOutput
	if err == nil {
		err = errors.Join(json.Unmarshal(b, &o), o.validate())
	}
	if err != nil {
		d.log.WithError(err).Warn("where the job's output goes is not known any more")
		return
	}
	d.teller.set(o)
}

// setOutput notes where the job's output goes.
func (d *Daemon) setOutput(o JobOutput) error {
	if err := o.validate(); err != nil {
		return err
	}
	d.teller.set(o)
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return os.WriteFile(d.outputFile(), b, 0o600)
}

// heardOut takes what the leader says of all nodes' stage-outs.
func (d *Daemon) heardOut(all []outTrouble) {
	if news := d.teller.hear(all); len(news) > 0 {
		d.Spawn(func(context.Context) { d.tell(news) })
	}
}

func (d *Daemon) tell(all []outTrouble) {
	if err := d.teller.tell(all); err != nil {
		d.log.WithError(err).Warn("what was not copied out is not in the job's output")
	}
}
