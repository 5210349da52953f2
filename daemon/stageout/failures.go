package stageout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// Failures sums up the failures of one stage-out, on one node or on all nodes.
type Failures struct {
	job.StageOut
	Causes []Cause `json:"causes"`
	List   string  `json:"list,omitempty"`  // path of a file with the full list
	Lists  int     `json:"lists,omitempty"` // how many nodes have such a file
	Final  bool    `json:"final,omitempty"` // it is not retried
}

// Cause counts the files, links and other entries that failed for one reason.
type Cause struct {
	Errno  syscall.Errno `json:"errno,omitempty"`
	Reason string        `json:"reason"`
	Files  int64         `json:"files,omitempty"`
	Bytes  int64         `json:"bytes,omitempty"`
	First  string        `json:"first,omitempty"` // the first of them
}

const (
	// maxCauses bounds the causes of one stage-out; further ones count with the last.
	maxCauses = 5
	maxText   = 160 // bytes of a reason or a name
	// maxList bounds the list of a run, in bytes: if the target cannot be written, every file fails.
	maxList = 16 << 20
)

// causeOf returns the cause for err, without files.
func causeOf(err error) Cause {
	c := Cause{Reason: err.Error()}
	switch {
	case errors.As(err, &c.Errno):
	case errors.Is(err, context.DeadlineExceeded):
		c.Errno, c.Reason = syscall.ETIME, "time ran out"
	}
	c.Reason = short(c.Reason)
	return c
}

// short shortens s to fit in a line.
func short(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// add adds c to the cause with the same reason.
func (f *Failures) add(c Cause) {
	i := slices.IndexFunc(f.Causes, func(o Cause) bool { return o.Errno == c.Errno && (c.Errno != 0 || o.Reason == c.Reason) })
	if i < 0 && len(f.Causes) < maxCauses {
		f.Causes = append(f.Causes, c)
		return
	}
	if i < 0 {
		i = len(f.Causes) - 1
	}
	o := &f.Causes[i]
	o.Files, o.Bytes = o.Files+c.Files, o.Bytes+c.Bytes
	o.First = cmp.Or(o.First, c.First)
}

func (f *Failures) addFile(x stageout.Failure) {
	c := causeOf(x.Err)
	c.Files, c.Bytes, c.First = 1, x.Bytes, short(x.Name)
	f.add(c)
}

// Merge sums up the reports of several nodes, per stage-out. Once a node has given up (Final), it ignores failures that
// other nodes still retry.
func Merge(all []Failures) []Failures {
	var sum []Failures
	for _, f := range all {
		i := slices.IndexFunc(sum, func(o Failures) bool { return o.StageOut == f.StageOut })
		switch {
		case i < 0:
			f.Causes = slices.Clone(f.Causes)
			sum = append(sum, f)
		case f.Final && !sum[i].Final:
			f.Causes = slices.Clone(f.Causes)
			sum[i] = f
		case f.Final == sum[i].Final:
			sum[i].merge(f)
		}
	}
	return sum
}

func (f *Failures) merge(o Failures) {
	for _, c := range o.Causes {
		f.add(c)
	}
	f.Lists += o.Lists
	f.List = cmp.Or(f.List, o.List)
}

// line formats f for the job's output: what failed, why, how much, where the list is, and what to do.
func (f *Failures) line() string {
	causes := slices.Clone(f.Causes)
	slices.SortStableFunc(causes, func(a, b Cause) int { return cmp.Compare(b.Files, a.Files) })
	var files, bytes int64
	var why []string
	for _, c := range causes {
		files, bytes = files+c.Files, bytes+c.Bytes
		why = append(why, c.text())
	}
	s := fmt.Sprintf("bivouac: stage-out of %s to %s ", short(f.From), short(f.To))
	switch {
	case !f.Final:
		s += "fails so far: " + strings.Join(why, ", ")
	case files == 0:
		s += "failed: " + strings.Join(why, ", ")
	default:
		s += fmt.Sprintf("failed: not copied, and lost with the job, %s of %s: %s", count(files), metadata.FormatBytes(bytes), strings.Join(why, ", "))
	}
	switch {
	case f.Lists == 1:
		s += "; the list is " + f.List
	case f.Lists > 1:
		s += fmt.Sprintf("; %d nodes have a list, such as %s", f.Lists, f.List)
	}
	if !f.Final {
		return s + "; it is tried again until the job ends: " + causes[0].advice() + "\n"
	}
	return s + "; before the next run, " + causes[0].advice() + "\n"
}

func (c Cause) text() string {
	if c.Files == 0 {
		return c.Reason
	}
	return fmt.Sprintf("%s (%d, such as %q)", c.Reason, c.Files, c.First)
}

// advice returns what the user can do about the cause.
func (c Cause) advice() string {
	switch c.Errno {
	case syscall.ENOSPC, syscall.EDQUOT:
		return "free space there, or ask for a larger quota"
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return "name a directory that you may write to"
	case syscall.ENOENT:
		return "check that the job writes to that directory of scratch"
	case syscall.ENOTDIR, syscall.EISDIR, syscall.EEXIST, syscall.ENOTEMPTY, syscall.ELOOP:
		return "move the file or directory that is in its place"
	case syscall.ETIME:
		return "write and close large files earlier, or ask the administrator for a longer epilog_timeout"
	case syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENOTCONN, syscall.ECONNRESET:
		return "ask the administrators of that filesystem or of the nodes"
	case 0:
		if c.Files == 0 {
			return "look in the job's output for the write, fsync or close that failed"
		}
	}
	return "look at the files that are listed"
}

func count(files int64) string {
	if files == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files", files)
}

// failureList collects all failures of a run of the copy.
type failureList struct {
	path, from string

	mu    sync.Mutex
	lines strings.Builder // guarded by mu
	more  int64           // guarded by mu; failures that are not in lines
	retry bool            // guarded by mu; some failures may be temporary
	sum   Failures        // guarded by mu
}

func (l *failureList) add(f stageout.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retry = l.retry || temporary(f.Err)
	l.sum.addFile(f)
	switch {
	case l.path == "":
	case l.lines.Len() >= maxList:
		l.more++
	default:
		fmt.Fprintf(&l.lines, "%q: %v\n", filepath.Join(l.from, f.Name), f.Err)
	}
}

// end returns the sum of a run that ended with err; nil if it succeeded.
func (l *failureList) end(err error) *Failures {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		return nil
	}
	if len(l.sum.Causes) == 0 || errors.Is(err, context.DeadlineExceeded) {
		l.sum.add(causeOf(err))
	}
	sum := l.sum
	sum.Causes = slices.Clone(sum.Causes) // an abandoned copy may add more
	return &sum
}

func (l *failureList) temporary() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retry
}

// write appends the list to its file; it returns false if the list is empty.
func (l *failureList) write() (bool, error) {
	l.mu.Lock()
	lines := l.lines.String()
	if l.more > 0 {
		lines += fmt.Sprintf("and %d more\n", l.more)
	}
	l.mu.Unlock()
	if lines == "" {
		return false, nil
	}
	err := within(listTime, l.path, func() error {
		f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
		if err == nil {
			_, err = f.WriteString(lines)
			err = errors.Join(err, f.Close())
		}
		return err
	})
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum.List, l.sum.Lists = l.path, 1
	return true, nil
}

// within calls f, which writes to path. If the file system hangs, it abandons the goroutine after patience.
func within(patience time.Duration, path string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return fmt.Errorf("%s: no answer for %v: %w", path, patience, syscall.ETIMEDOUT)
	}
}
