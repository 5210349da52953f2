package mounts

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// viewCaps is what a view is mounted with: the right to mount, and to enter a
// namespace afterwards. None of those that overrule the modes of files is among
// them.
const viewCaps = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT

// become makes this thread, which is locked, the user to all filesystems, but for
// viewCaps. restore undoes it but for the groups.
func become(uid, gid uint32) (restore func() error, err error) {
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
		return nil, errors.Join(fmt.Errorf("rights of user %d: %w", uid, err), restore())
	}
	return restore, nil
}

// setFS makes this thread a user to all filesystems. The calls say only who it was
// before, so they are asked once more.
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
