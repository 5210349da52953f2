package local

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ownFuse gives a namespace its own /dev/fuse that every user may open, as udev makes it.
const ownFuse = "mount -t tmpfs -o mode=755 none /mnt && mknod /mnt/fuse c 10 229 && chmod 666 /mnt/fuse && mount --bind /mnt/fuse /dev/fuse"

// enter makes all commands of the camp run in a new mount namespace in which script has been run. The namespace ends
// with the test.
func (c *camp) enter(script string) {
	c.t.Helper()
	needRoot(c.t)
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script+" && echo ready && exec cat")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Skipf("needs unshare, of the package util-linux: %v", err)
	}
	prefix, mounts := c.prefix, c.mounts
	c.t.Cleanup(func() {
		c.down()
		c.prefix, c.mounts = prefix, mounts
		_ = in.Close() // cat ends
		_ = cmd.Wait() // it was meant to end
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil && err != io.EOF || line != "ready\n" {
		c.t.Fatalf("no namespace: %q, %v", line, err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	c.prefix = []string{"nsenter", "--mount=/proc/" + pid + "/ns/mnt", "--"}
	c.mounts = "/proc/" + pid + "/mountinfo"
}

// nobody runs all commands of the camp as a normal user, who owns its home.
func (c *camp) nobody() {
	c.t.Helper()
	needRoot(c.t)
	info, err := os.Stat("/usr/bin/fusermount3")
	if err != nil || info.Mode()&os.ModeSetuid == 0 {
		c.t.Skip("needs a setuid fusermount3, of the package fuse3")
	}
	if err := os.Chown(c.home, 65534, 65534); err != nil {
		c.t.Fatal(err)
	}
	c.bin = c.copyBinary() // the original may be readable only by root
	c.prefix = slices.Concat(c.prefix, []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--",
		"env", "HOME=" + c.home})
}

func (c *camp) copyBinary() string {
	c.t.Helper()
	b, err := os.ReadFile(c.bin)
	if err != nil {
		c.t.Fatal(err)
	}
	bin := c.path("bivouac")
	if err := os.WriteFile(bin, b, 0o755); err != nil {
		c.t.Fatal(err)
	}
	return bin
}

// sh runs a shell line as the user of the camp, and returns all its output.
func (c *camp) sh(line string) string {
	c.t.Helper()
	args := slices.Concat(c.prefix, []string{"sh", "-c", line})
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v\n", out, err)
	}
	return string(out)
}

// TestNormalUser: an unprivileged user runs a job from up to down.
func TestNormalUser(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	c.enter(ownFuse)
	c.nobody()
	c.ok("up", "--nodes", "2", "--dir", c.dir)
	for line, want := range map[string]string{
		"echo hi > $HOME/job/node0/scratch/f && cat $HOME/job/node1/scratch/f": "hi\n",
		"stat -c '%u %g %a' $HOME/job/node1/scratch":                           "65534 65534 700\n",
		"mkdir $HOME/set && echo x > $HOME/set/f && chmod 640 $HOME/set/f":     "",
	} {
		if got := c.sh(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	c.stageIn(c.path("set"))
	if got, want := c.sh("cd $HOME/job/node1/data && cat set/f && stat -c '%u %a' set/f"), "x\n65534 640\n"; got != want {
		t.Errorf("the dataset: %q, want %q", got, want)
	}
	c.noRights()
	c.ok("stage-out", ".:"+c.path("out"), "--dir", c.dir)
	wantFile(t, c.path("out", "f"), "hi\n")
	for _, n := range c.state().Nodes[:1] { // a dead mount is removed without root, too
		c.sh("kill -9 " + strconv.Itoa(n.PID))
	}
	c.ok("down", "--dir", c.dir)
	c.gone(c.dir)
}

// noRights tries operations that the user may not do.
func (c *camp) noRights() {
	c.t.Helper()
	secret := mkdir(c.t, c.path("secret"))
	write(c.t, secret+"/f", nil)
	if out, err := exec.Command("tar", "-C", secret, "-cf", c.path("secret.tar"), "f").CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	for _, err := range []error{os.Chmod(secret, 0o700), os.Chmod(c.path("secret.tar"), 0o600)} {
		if err != nil {
			c.t.Fatal(err)
		}
	}
	for _, src := range []string{secret, c.path("secret.tar")} {
		c.fails([]string{src, "permission denied"}, "stage-in", src, "--dir", c.dir)
	}
	write(c.t, c.path("set", "hidden"), []byte("x"))
	if err := os.Chmod(c.path("set", "hidden"), 0); err != nil {
		c.t.Fatal(err)
	}
	// A file that cannot be read does not affect the others.
	if r := c.run("stage-in", c.path("set")+":again", "--dir", c.dir); r.status != 3 ||
		!strings.Contains(r.err, c.path("set", "hidden")) || !strings.Contains(r.err, "permission denied") {
		c.t.Errorf("status %d, errors:\n%s\nwant status 3, and the file named with its cause", r.status, r.err)
	}
	if got := c.sh("cat $HOME/job/node0/data/again/f; cat $HOME/job/node0/data/again/hidden"); !strings.HasPrefix(got, "x\n") || !strings.Contains(got, "Permission denied") {
		c.t.Errorf("the files of the dataset: %q, want x and a refusal", got)
	}
	c.fails([]string{secret, "permission denied"}, "stage-out", ".:"+secret+"/out", "--dir", c.dir)
	if got := c.sh("ls $HOME/job/node0/data"); got != "again\nset\n" {
		c.t.Errorf("data has %q, want only what could be read", got)
	}
	c.fails([]string{"permission denied"}, "up", "--dir", secret+"/job")
}

// TestOthersJob: commands of another user report the filesystem's owner, and do not change it.
func TestOthersJob(t *testing.T) {
	t.Parallel()
	c := pitch(t, "1")
	prefix, bin := c.prefix, c.bin
	for _, dir := range []string{c.home, c.dir} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.bin = c.copyBinary()
	c.prefix = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}
	for _, args := range [][]string{{"status"}, {"stage-in", "/etc/hostname"}, {"down"}} {
		c.fails([]string{c.dir, "belongs to another user"}, append(args, "--dir", c.dir)...)
	}
	c.prefix, c.bin = prefix, bin
	c.ok("status", "--dir", c.dir)
}
