// Package mounts reads the mount table of this namespace and mounts over datasets.
//
// Reading the table never asks a mount itself, unlike stat(2), so a dead mount cannot block
// the reader. A process of its own, the helper, does what has to ask one: mounting a Cover
// or a View.
//
// # When a mount is attached
//
// Covers and views are mounted upon a dataset's directory while a job uses it. Processes
// that are below the directory stay in the mount in which they are: open files, working
// directories and their paths go on as before, and every new path lookup finds the new mount.
//
// One thing breaks: a tree walk that goes up by "..". GNU find and du compare the
// directory with the one from which they came down, and end with ENOENT if it is another,
// as it is if a mount was attached meanwhile. So the helper attaches a mount when no
// process walks the dataset (directories, attachIdle):
//
//   - No process has a directory of the dataset open, in two looks at /proc in a row. One
//     look is not enough, because a walk opens and closes directories all the time.
//   - No directory was opened in the dataset's top directory since the last look began;
//     inotify tells.
//   - If the dataset is deeper than MaxRing levels, no process works in its top directory.
//     find and du keep the MaxRing directories above them open and need ".." only
//     beyond those; a later walk from a working directory below the new mount would fail.
//
// Looking takes at most a fiftieth of a processor, because a pause is 49 times as long as the
// look before it. A helper gives up when its talk with the daemon ends.
//
// What remains: a walk that enters within microseconds after the last look; a walk by
// chdir(2) without an open directory that compares; a directory that is only in a message of
// a socket, or that only a thread with its own descriptor table has.
//
// # Views
//
// The helper of a view is root and works for a user. These rules keep the two apart:
//
//   - The helper writes the EROFS image itself, record by record, from the user's
//     description of the tree, which package erofs checks. The image is a file without a
//     name, and is read through a loop device that only root can open: the user cannot write
//     to what the kernel parses.
//   - The path of a file's data follows from its inode number alone (ObjectPath), in
//     directories that overlayfs never leaves: in data layers it follows no symbolic link and
//     crosses no mount.
//   - A thread with the user's credentials, and no capability that overrides file modes
//     (dropCredentials), opens those layers and makes the overlayfs, which keeps the
//     credentials for its own lookups. A replaced object leads only to plain files
//     that the user could read anyway; a link, device or FIFO is an error, for root too.
//   - Names and bytes of the tree are bounded, and so is the helper's time.
//
// Image and connection are mounted in a mount namespace that the helper leaves; after that
// only the view holds them. So unmounting the view, or what it lies upon, removes all:
// overlayfs, image, loop device and connection. A helper that fails or is killed leaves nothing.
package mounts

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Entry is a line of mountinfo; see proc(5).
type Entry struct {
	ID     string
	Parent string // the ID of the mount in which it is
	Dev    string // major:minor
	Root   string // directory of the filesystem that is mounted
	Path   string
	Shared bool // it propagates to other namespaces
	FSType string
}

// Table returns all mounts.
func Table() ([]Entry, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	return parse(string(b)), err
}

// parse reads mountinfo. A line that does not parse, such as the last one of a process that is ending, is left out.
func parse(text string) []Entry {
	var table []Entry
	for line := range strings.Lines(text) {
		all, err := mountinfo.GetMountsFromReader(strings.NewReader(line), nil)
		if err != nil {
			continue
		}
		for _, m := range all {
			if m.Mountpoint == "" {
				continue // no mount of the kernel's
			}
			table = append(table, Entry{
				ID: strconv.Itoa(m.ID), Parent: strconv.Itoa(m.Parent), Dev: fmt.Sprintf("%d:%d", m.Major, m.Minor),
				Root: m.Root, Path: m.Mountpoint, FSType: m.FSType, Shared: strings.Contains(m.Optional, "shared:"),
			})
		}
	}
	return table
}

// At returns the mounts at path, the topmost last.
func At(path string) ([]Entry, error) {
	table, err := Table()
	return upon(table, path), err
}

// upon returns the mounts at path, each after the one upon which it lies. The age of mounts
// does not tell the order: a mount can be put beneath another.
func upon(table []Entry, path string) (at []Entry) {
	there := make(map[string]Entry) // by the mount below
	ids := make(map[string]bool)
	for _, m := range table {
		if m.Path == path {
			there[m.Parent], ids[m.ID] = m, true
		}
	}
	for parent, m := range there {
		if ids[parent] {
			continue
		}
		for ok := true; ok && len(at) < len(there); m, ok = there[m.ID] {
			at = append(at, m)
		}
	}
	return at
}

// Abort has the kernel fail all requests to the FUSE mounts at path. Their owner may do that
// where the FUSE control filesystem is mounted.
func Abort(path string) {
	at, err := At(path)
	if err != nil {
		return // it is only a shortcut
	}
	for _, m := range at {
		if _, minor, ok := strings.Cut(m.Dev, ":"); ok {
			_ = os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0) // best effort
		}
	}
}
