package mounts

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// viewCaps are the capabilities for mounting a view: to mount, and to enter a namespace afterwards. None of them
// overrides file modes.
const viewCaps = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT

// dropCredentials gives this thread, which must be locked, the user's filesystem IDs, one
// group and viewCaps. restore undoes all but the groups.
func dropCredentials(uid, gid uint32) (restore func() error, err error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var was [2]unix.CapUserData
	if err := unix.Capget(&head, &was[0]); err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	only := was
	only[0].Effective, only[1].Effective = was[0].Effective&viewCaps, 0
	list := gid
	if _, _, no := unix.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&list)), 0); no != 0 {
		return nil, fmt.Errorf("groups: %w", no)
	}
	restore = func() error { return errors.Join(setFS(0, 0), unix.Capset(&head, &was[0])) }
	if err := errors.Join(setFS(uid, gid), unix.Capset(&head, &only[0])); err != nil {
		return nil, errors.Join(fmt.Errorf("credentials of user %d: %w", uid, err), restore())
	}
	return restore, nil
}

// setFS sets the thread's filesystem user and group. The calls return only the previous
// IDs, so a second round checks the first.
func setFS(uid, gid uint32) error {
	for range 2 {
		u, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
		g, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
		if uint32(u) == uid && uint32(g) == gid {
			return nil
		}
	}
	return unix.EPERM
}
