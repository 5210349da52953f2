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
	Parent string // the ID of the parent mount
	Dev    string // major:minor
	Path   string
	Shared bool // it propagates to other namespaces
	FSType string
}

// Table returns all mounts.
func Table() ([]Entry, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	return parse(string(b)), err
}

// parse parses mountinfo. It skips lines that do not parse, such as the last one of a process that is ending.
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
				Path: m.Mountpoint, FSType: m.FSType, Shared: strings.Contains(m.Optional, "shared:"),
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

// upon returns the mounts at path, each after the one upon which it lies. The age of mounts does not give the order: a
// mount can be put beneath another.
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

// Abort makes the kernel fail all requests to the FUSE mounts at path. Their owner may do that where the FUSE control
// filesystem is mounted.
func Abort(path string) {
	at, err := At(path)
	if err != nil {
		return // best effort
	}
	for _, m := range at {
		if _, minor, ok := strings.Cut(m.Dev, ":"); ok {
			_ = os.WriteFile("/sys/fs/fuse/connections/"+minor+"/abort", []byte("1"), 0) // best effort
		}
	}
}
