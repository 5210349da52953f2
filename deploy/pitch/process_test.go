package pitch

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestProcess(t *testing.T) {
	self := processOf(os.Getpid())
	if !self.alive() || (process{}).alive() || (process{self.pid, "1"}).alive() {
		t.Error("this process, no process or another of the same id is not told apart")
	}
	path := filepath.Join(t.TempDir(), "pid")
	if err := self.write(path); err != nil {
		t.Fatal(err)
	}
	if got := readProcess(path); got != self {
		t.Errorf("readProcess = %v, want %v", got, self)
	}
	for _, bad := range []string{"", "x", "1 1", "-5 9", "12"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := readProcess(path); got != (process{}) {
			t.Errorf("readProcess of %q = %v", bad, got)
		}
	}
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip("needs sleep: ", err)
	}
	p := processOf(cmd.Process.Pid)
	if err := p.end(t.Context(), 5*time.Second); err != nil || p.alive() { // a zombie counts as dead
		t.Errorf("end = %v", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("sleep ended by itself")
	}
}
