// Package mounts reads the mount table of this namespace. Unlike a stat it
// never asks a mount itself, so a dead one cannot hold who reads. What has to ask
// one, because it is to be mounted in it (Cover, View), is done by a process of its
// own, the helper.
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
//     them, that was replaced leads to nothing that its user could not read anyhow.
//   - The tree is bounded in names and bytes, the helper in time.
//
// Image and connection are mounted in a mount namespace that ends with the helper;
// then the view alone holds them. So whoever takes the view away, or what it lies
// upon, takes all: overlayfs, image, loop device and connection. A helper that fails
// or is killed leaves nothing.
package mounts

import (
	"os"
	"strconv"
	"strings"
)

// Entry is a line of mountinfo; see proc(5).
type Entry struct {
	Dev    string // major:minor
	Path   string
	Shared bool // it propagates to other namespaces
	FSType string
}

// Table is all mounts, the newest last.
func Table() ([]Entry, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	return parse(string(b)), err
}

// parse reads mountinfo. What does not look like a line of it is left out.
func parse(text string) []Entry {
	var table []Entry
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 1 {
			continue
		}
		table = append(table, Entry{
			Dev: l[2], Path: unescape(l[4]), FSType: r[0],
			Shared: strings.Contains(strings.Join(l[6:], " "), "shared:"),
		})
	}
	return table
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// At is the mounts at path, the topmost last.
func At(path string) ([]Entry, error) {
	table, err := Table()
	var at []Entry
	for _, m := range table {
		if m.Path == path {
			at = append(at, m)
		}
	}
	return at, err
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
