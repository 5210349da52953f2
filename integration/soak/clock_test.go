package soak

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// A node's wall clock is this machine's plus an offset. No namespace has its own CLOCK_REALTIME, and the daemon is
// static. So the vDSO, the kernel's page in which a process reads the time, is patched before the daemon starts: its
// new clock_gettime makes the system call and adds the offset stored behind it, in seconds. File times come from the
// kernel, and keep the true time.
var clockGettime = []byte{
	0xb8, 0xe4, 0, 0, 0, // mov eax, 228 (clock_gettime)
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi (CLOCK_REALTIME is 0)
	0x75, 10, // jne to the end
	0x48, 0x8b, 0x0d, 6, 0, 0, 0, // mov rcx, [the offset]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
	0x90, 0x90,
}

// hasClocks reports whether a process's clock can be changed on this machine.
func hasClocks() bool { return runtime.GOARCH == "amd64" }

// startWithClock starts a daemon whose clock has an offset from the start, and returns the address of the offset; 0
// if the clock cannot be changed. The calling thread must be the one that waits for the daemon.
func startWithClock(cmd *exec.Cmd, program string, offset int64) (int64, error) {
	if !hasClocks() {
		return 0, cmd.Start()
	}
	cmd.SysProcAttr.Ptrace = true // stops at each exec
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	var at int64
	err := awaitProgram(pid, program)
	if err == nil {
		at, err = replaceClock(pid, offset)
	}
	if err = errors.Join(err, syscall.PtraceDetach(pid)); err != nil {
		_ = cmd.Process.Kill()
		return 0, fmt.Errorf("the clock of a daemon: %w", err)
	}
	return at, nil
}

// awaitProgram lets a traced process run until it executes program.
func awaitProgram(pid int, program string) error {
	for {
		var st syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &st, 0, nil); err != nil {
			return err
		}
		if !st.Stopped() {
			return fmt.Errorf("status %#x: %w", st, syscall.ECHILD)
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || exe == program {
			return err
		}
		signal := 0
		if s := st.StopSignal(); s != syscall.SIGTRAP {
			signal = int(s)
		}
		if err := syscall.PtraceCont(pid, signal); err != nil {
			return err
		}
	}
}

// replaceClock replaces clock_gettime of a process before its start, and returns the address of the offset.
func replaceClock(pid int, offset int64) (int64, error) {
	base, err := vdso(pid)
	if err != nil {
		return 0, err
	}
	mem, err := os.OpenFile(memory(pid), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	image := make([]byte, 2*os.Getpagesize())
	if n, err := mem.ReadAt(image, base); n < os.Getpagesize() {
		return 0, err
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, err
	}
	code := binary.LittleEndian.AppendUint64(bytes.Clone(clockGettime), uint64(offset))
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" && s.Size >= uint64(len(code)) {
			_, err := mem.WriteAt(code, base+int64(s.Value))
			return base + int64(s.Value) + int64(len(clockGettime)), err
		}
	}
	return 0, fmt.Errorf("the vDSO has no clock_gettime that can be replaced: %w", syscall.ENOSYS)
}

func memory(pid int) string { return fmt.Sprintf("/proc/%d/mem", pid) }

// vdso returns the start address of a process's vDSO.
func vdso(pid int) (int64, error) {
	const sysinfoEHDR = 33
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return 0, err
	}
	for r := bytes.NewReader(b); ; {
		var pair [2]uint64
		if err := binary.Read(r, binary.LittleEndian, &pair); err != nil {
			return 0, errors.Join(io.ErrUnexpectedEOF, err)
		}
		if pair[0] == sysinfoEHDR {
			return int64(pair[1]), nil
		}
	}
}

// clockFile holds the offset of a node's clock, also for its next daemon.
func clockFile(jobFile string) string { return filepath.Join(filepath.Dir(jobFile), "clock") }

// clockOffset returns the offset in seconds; 0 if the clock was never changed.
func clockOffset(jobFile string) (int64, error) {
	b, err := os.ReadFile(clockFile(jobFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(b), 10, 64)
}

// setClock sets a node's clock to the true time plus by; ESRCH if no daemon runs; the next one gets it.
func (x *node) setClock(by time.Duration) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	offset := int64(by / time.Second)
	if err := os.WriteFile(clockFile(x.file), strconv.AppendInt(nil, offset, 10), 0o600); err != nil {
		return err
	}
	if x.pid == 0 {
		return syscall.ESRCH
	}
	mem, err := os.OpenFile(memory(x.pid), os.O_RDWR, 0)
	if err != nil {
		return errors.Join(err, syscall.ESRCH)
	}
	defer mem.Close()
	if _, err := mem.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(offset)), x.clock); err != nil {
		return errors.Join(err, syscall.ESRCH)
	}
	return nil
}
