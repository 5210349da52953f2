package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// loopTries bounds the attempts to take a free loop device before another process does.
const loopTries = 100

// loop attaches a file as a read-only block device. The kernel removes the device after its last use, so the caller
// closes it once it is mounted.
func loop(image *os.File) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("no free loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(image.Fd()), Size: 4096}
		c.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
		copy(c.Info.File_name[:], "bivouac")
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
		if err == nil {
			return dev, nil
		}
		_ = dev.Close() // it was not configured
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("%s: %w", dev.Name(), err)
		}
	}
	return nil, fmt.Errorf("no free loop device: %w", unix.EBUSY)
}
