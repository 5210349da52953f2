// Package mounts reads the mount table of this namespace. Unlike a stat it
// never asks a mount itself, so a dead one cannot hold who reads. What has to ask
// one, because it is to be mounted in it (Cover, View), is done by a process of its
// own, the helper.
//
// # Screens
//
// Who walks a tree (find, du) goes back up by "..", and ends with ENOENT where that is
// not the directory from which it came down: a cover or a view that is put over a
// directory in use has another st_dev. So they are put where nobody sees them, and shown
// when nobody can notice:
//
//   - A screen, a copy of the mount that is seen, is laid upon it. It is the same
//     filesystem, so that it makes no difference in which of the two somebody is, and
//     ".." leads from one to the other. From then on nobody new gets below the screen.
//   - The new mount is put beneath the screen (MOVE_MOUNT_BENEATH, Linux 6.5).
//   - The screen is lifted when no process has a directory of the dataset open, as its
//     working directory or as its root, but for those that rest (below). /proc says that
//     of what lies below the screen.
//     It is looked at twice, because who walks can escape one look, and then left alone
//     for 49 times as long as a look took. Of the screen itself
//     the kernel knows, if the unmount is a plain one: it fails while somebody is there,
//     in another mount namespace, too.
//   - Files that are open, and mappings of them, do no harm, but keep the screen. So if
//     nothing else does for 12 s, the screen is detached: those files stay open.
//
// Who rests: a script that did cd into the dataset, and all that it runs, would keep the
// new mount away for ever. What is mounted upon his directory does him no harm: "."
// and what is below, also by "..", is what it was, only slower, and ".." of the dataset's
// directory, and his path, are too. So who has no directory open rests in his working
// directory if it has been the same for 10 s, and so does who was started by one that
// rests and is there as well: who walks by chdir is soon elsewhere. There are two limits:
//
//   - From the dataset's own directory nobody may walk down so far that he comes back to it
//     by "..", which then leads to the new mount. GNU find and du have the four
//     directories above them open. So in that of a dataset with more levels (MaxRing)
//     nobody rests.
//   - Who rests in the screen itself would have no path any more if it were detached. So
//     it stays then, and a copy of the new mount is put upon it.
//
// What remains: who enters a directory within the microseconds between the last look and
// that detach or copy, and then goes up above the dataset, or to its directory, by "..",
// is disturbed; opens of the
// dataset's own directory are watched for. Who compares what a path was before and
// after (os.fwalk of Python does for the root of its walk) can meet the change whatever
// is done; and so does who rests, walks by chdir without a directory open, and compares.
// A directory that is only in a message of a socket, or that only a thread with
// descriptors or a directory of its own has, is not seen; nor is one that is among
// descriptors which others open and close all the time, if it escapes 20 readings of
// the list, of several thousand descriptors fewer. Before Linux 6.5 a cover, which
// comes a moment after the dataset, is put over its directory as that is.
//
// A helper ends when its talk does, and with it the wait; the screen stays then and does
// no harm.
//
// # Views
//
// The helper of a view is root and works for a user. What keeps the two apart:
//
//   - The image that is mounted is written by the helper, record for record, of what
//     the user says of the tree (package erofs, which checks all of it). It lies in a
//     file without a name, and is read through a loop device that only root can open,
//     so that nobody can write to what the kernel parses.
//   - Where the data of a file is follows from its inode number alone (ObjectPath), in
//     directories that overlayfs never leaves: it follows no symbolic link in layers of
//     data, and crosses no mount.
//   - Those layers are opened, and the overlayfs is made, by a thread that is the user
//     to all filesystems and has no right that overrules modes (become). Overlayfs
//     keeps these rights, and looks for data with them: an object, or a directory of
//     them, that was replaced leads to nothing that its user could not read anyhow, and
//     to plain files only: of links, devices and FIFOs the file is an error, root's reads
//     included. What it leads to in his own files is what the dataset then says.
//   - The tree is bounded in names and bytes, the helper in time.
//
// Image and connection are mounted in a mount namespace that the helper leaves; then
// the view alone holds them. So whoever takes the view away, or what it lies
// upon, takes all: overlayfs, image, loop device and connection. A helper that fails
// or is killed leaves nothing.
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
	Root   string // what of the filesystem it shows
	Path   string
	Shared bool // it propagates to other namespaces
	FSType string
}

// Table is all mounts.
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
			table = append(table, Entry{
				ID: strconv.Itoa(m.ID), Parent: strconv.Itoa(m.Parent), Dev: fmt.Sprintf("%d:%d", m.Major, m.Minor),
				Root: m.Root, Path: m.Mountpoint, FSType: m.FSType, Shared: strings.Contains(m.Optional, "shared:"),
			})
		}
	}
	return table
}

// At is the mounts at path, the topmost last.
func At(path string) ([]Entry, error) {
	table, err := Table()
	return upon(table, path), err
}

// upon is the mounts at path, each after that upon which it lies. The age of mounts
// does not tell that: one can be put beneath another.
func upon(table []Entry, path string) (at []Entry) {
	there := make(map[string]Entry) // by the mount upon which it lies
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

// Abort has the kernel answer all that waits for the FUSE mounts at path.
// Whose mounts they are may do so, where the control filesystem is mounted.
func Abort(path string) {
	at, err := At(path)
	if err != nil {
		return // then without it
	}
	for _, m := range at {
		if _, minor, ok := strings.Cut(m.Dev, ":"); ok {
			_ = os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0) // best effort
		}
	}
}
