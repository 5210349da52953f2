package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readList is worker code: it opens, reads and closes each file of a list.
func readList(list string) error {
	b, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	paths := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	buf := make([]byte, 4<<20)
	return timed(func() error {
		for _, p := range paths {
			if err := readWhole(p, buf); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		return nil
	})
}

// readWhole reads until the end, like a program that does not know the size. Its system calls are raw, to exclude
// Go's scheduler, which handles all calls that take more than 20 µs, from the measurement.
func readWhole(path string, buf []byte) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	at := unix.AT_FDCWD
	fd, _, no := syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(p)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if no != 0 {
		return no
	}
	for {
		n, _, no := syscall.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		if n == 0 || no != 0 {
			_, _, cno := syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
			return errors.Join(errnoOrNil(no), errnoOrNil(cno))
		}
	}
}

func errnoOrNil(no syscall.Errno) error {
	if no == 0 {
		return nil
	}
	return no
}

// readAll has this many processes read the files, each a part, and returns the cost.
func (b *bench) readAll(paths []string, processes int) (usage, error) {
	cs, err := spawnAll(processes, func(i int) ([]string, error) {
		list, err := b.list(paths[i*len(paths)/processes : (i+1)*len(paths)/processes])
		return []string{"read", list}, err
	})
	if err != nil {
		return usage{}, err
	}
	return together(cs)
}

// list writes lines to a new file.
func (b *bench) list(lines []string) (string, error) {
	b.lists++
	path := filepath.Join(b.home, "list"+strconv.Itoa(b.lists))
	return path, writeLines(path, lines)
}

func writeLines(path string, lines []string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	for _, l := range lines {
		_, _ = w.WriteString(l + "\n") // Flush returns the error
	}
	return errors.Join(w.Flush(), f.Close())
}

// cost is a usage with the processor time of servers.
type cost struct {
	usage
	servers time.Duration
}

// charged runs work and adds the processor time that the processes pids used meanwhile.
func charged(pids []int, work func() (usage, error)) (cost, error) {
	before, err := processTimes(pids)
	if err != nil {
		return cost{}, err
	}
	u, err := work()
	if err != nil {
		return cost{}, err
	}
	after, err := processTimes(pids)
	return cost{u, after - before}, err
}

func processTimes(pids []int) (total time.Duration, err error) {
	for _, p := range pids {
		t, err := processTime(p)
		if err != nil {
			return 0, err
		}
		total += t
	}
	return total, nil
}

// micros returns the processor time of servers and readers per operation, in microseconds.
func (c cost) micros(n int) float64 { return float64((c.cpu + c.servers).Microseconds()) / float64(n) }

// rate returns the operations per second.
func (c cost) rate(n int) float64 { return float64(n) / c.wall.Seconds() }
