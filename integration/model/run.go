package model

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// System is a system under test, which is compared with the model.
type System interface {
	Do(o Op) Result
	// Tree returns the whole tree, as seen through one mount.
	Tree(mount int) (Tree, error)
	// Close closes all open files.
	Close() error
}

// Config configures the comparison.
type Config struct {
	Mounts  int
	Every   int // steps between comparisons of the whole tree; 0 is only at the end
	NoAtime bool
	// Lag bounds the age of the attributes of a directory that was changed through another mount.
	Lag time.Duration
	// LooseAppend allows a wrong position of a handle after an append; the runner corrects it with lseek.
	LooseAppend bool
	// Together is set if others use the mounts concurrently.
	Together bool
	Known    []Deviation
}

// Deviation is a known difference of the system from the model.
type Deviation struct {
	Name, Reason string
	// Avoid reports that the step must not run in this state; nil is never.
	Avoid func(f *FS, o Op) bool
	// Refused reports that this result is a refusal without any change, except that a refused open closes the file in
	// its slot; nil is never.
	Refused func(o Op, got Result) bool
}

// Failure is a script whose last step, or the tree after it, is wrong.
type Failure struct {
	Script []Op
	What   string
}

// String returns the script in a form that can be run again.
func (f *Failure) String() string {
	return fmt.Sprintf("# %s\n%s", strings.ReplaceAll(f.What, "\n", "\n# "), Format(f.Script))
}

// Runner runs steps in the model and in the system in parallel.
type Runner struct {
	cfg  Config
	fs   *FS
	sys  System
	done []Op
	inos map[uint64]uint64 // model inode to system inode number
	// Met counts the deviations met, by name.
	Met map[string]int
}

// NewRunner starts with sys as an empty directory.
func NewRunner(sys System, cfg Config) *Runner {
	fs := NewFS()
	fs.Umask = Umask()
	return &Runner{cfg: cfg, fs: fs, sys: sys, inos: make(map[uint64]uint64), Met: make(map[string]int)}
}

// FS returns the current model.
func (r *Runner) FS() *FS { return r.fs }

// Run runs a script in sys and compares the tree at its end.
func Run(sys System, script []Op, cfg Config) *Failure {
	r := NewRunner(sys, cfg)
	for _, o := range script {
		if f := r.Step(o); f != nil {
			return f
		}
	}
	return r.Finish()
}

// Step runs one step, and compares the tree if it is due.
func (r *Runner) Step(o Op) *Failure {
	if r.avoided(o) {
		return nil
	}
	r.done = append(r.done, o)
	if what := r.do(o); what != "" {
		return &Failure{Script: r.done, What: fmt.Sprintf("%v: %s", o, what)}
	}
	if r.cfg.Every > 0 && len(r.done)%r.cfg.Every == 0 {
		return r.Compare()
	}
	return nil
}

// Finish compares the tree and closes all files.
func (r *Runner) Finish() *Failure {
	if f := r.Compare(); f != nil {
		return f
	}
	if err := r.sys.Close(); err != nil {
		return &Failure{Script: r.done, What: fmt.Sprintf("close: %v", err)}
	}
	return nil
}

func (r *Runner) avoided(o Op) bool {
	if o.Kind == "open" {
		if i, no := r.fs.find(o.Path, true); no == 0 && i.kind() == unix.S_IFIFO {
			return true // it would block
		}
	}
	for _, d := range r.cfg.Known {
		if d.Avoid != nil && d.Avoid(r.fs, o) {
			r.Met[d.Name]++
			return true
		}
	}
	return false
}

func (r *Runner) do(o Op) string {
	if what := r.publish(r.fs.looksAt(o), o.through(r.fs)); what != "" {
		return what
	}
	var got Result
	if late := r.fs.dirAttr(o); late == nil {
		got = r.sys.Do(o)
	} else {
		r.within(func() bool {
			got = r.sys.Do(o)
			return got.Err != 0 || got.Attr == nil || late.matches(*got.Attr)
		})
	}
	for _, d := range r.cfg.Known {
		if d.Refused != nil && d.Refused(o, got) {
			r.Met[d.Name]++
			if o.Kind == "open" {
				delete(r.fs.handles, o.H)
			}
			return ""
		}
	}
	want := r.fs.Do(o)
	if r.cfg.NoAtime && want.Attr != nil {
		want.Attr.Atime = 0
	}
	if what := differ(want, got); what != "" {
		return what
	}
	if h := r.fs.handles[o.H]; r.cfg.LooseAppend && o.Kind == "write" && h != nil && h.flags&unix.O_APPEND != 0 {
		r.sys.Do(Op{Mount: h.mount, Kind: "lseek", H: o.H, Off: h.pos})
	}
	if want.Attr == nil || got.Attr == nil {
		return ""
	}
	if ino, ok := r.inos[want.Attr.Ino]; ok && ino != got.Attr.Ino {
		return fmt.Sprintf("inode number %d, before %d", got.Attr.Ino, ino)
	}
	r.inos[want.Attr.Ino] = got.Attr.Ino
	return ""
}

// dirAttr returns the directory attributes that the step will return, or nil.
func (f *FS) dirAttr(o Op) *Attr {
	if o.Kind != "stat" && o.Kind != "lstat" && o.Kind != "fstat" {
		return nil
	}
	a := f.Do(o).Attr
	if a == nil || a.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	return a
}

// within polls until good returns true, or the lag has passed.
func (r *Runner) within(good func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(r.cfg.Lag); !good() && time.Now().Before(end); <-tick.C {
	}
}

// through returns the mount that a step uses.
func (o Op) through(f *FS) int {
	if h := f.handles[o.H]; h != nil && onHandle[o.Kind] != nil {
		return h.mount
	}
	return o.Mount
}

// looksAt returns the inode whose bytes, size or times a step reads, or nil.
func (f *FS) looksAt(o Op) *inode {
	switch o.Kind {
	case "read", "pread", "write", "pwrite", "lseek", "ftruncate", "fallocate", "fstat", "futimens", "copyrange":
		if h := f.handles[o.H]; h != nil {
			return h.inode
		}
	case "open", "truncate", "stat", "utimens":
		i, _ := f.find(o.Path, true)
		return i
	case "lstat":
		i, _ := f.find(o.Path, false)
		return i
	}
	return nil
}

// publish calls fsync on the data of i that other mounts have written.
func (r *Runner) publish(i *inode, mount int) string {
	for slot, h := range r.fs.handles {
		if !h.wrote || i != nil && h.inode != i || h.mount == mount || i == nil && mount >= 0 {
			continue
		}
		if got := r.sys.Do(Op{Mount: h.mount, Kind: "fsync", H: slot}); got.Err != 0 {
			return fmt.Sprintf("fsync of %d: %v", slot, got)
		}
		h.wrote = false
	}
	return ""
}

// settled returns the tree as seen through a mount. An entry that was moved there is ESTALE while another worker's
// rename runs here, so it is read again.
func (r *Runner) settled(mount int) (t Tree, err error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-tick.C {
		if t, err = r.sys.Tree(mount); !r.cfg.Together || !errors.Is(err, syscall.ESTALE) {
			break
		}
	}
	return t, err
}

const everyMount = -1

// Compare compares the whole tree through every mount.
func (r *Runner) Compare() *Failure {
	if what := r.publish(nil, everyMount); what != "" {
		return &Failure{Script: r.done, What: what}
	}
	want := r.fs.Tree()
	for m := range r.cfg.Mounts {
		var diff []string
		r.within(func() bool {
			got, err := r.settled(m)
			if diff = want.differences(got); err != nil {
				diff = append(diff, err.Error())
			}
			return diff == nil
		})
		if diff != nil {
			return &Failure{Script: r.done, What: fmt.Sprintf("the tree through m%d:\n%s", m, strings.Join(diff, "\n"))}
		}
	}
	return nil
}
