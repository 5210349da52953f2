package netcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// Network is n namespaces joined by a bridge in one more.
type Network struct {
	holders []holder // each keeps a namespace alive; the last has the bridge
}

const port = "7100"

// NewNetwork makes a network, which needs root. It ends with Close, or with this process.
func NewNetwork(n int) (*Network, error) {
	nw := &Network{}
	err := nw.make(n)
	if err != nil {
		nw.Close()
		return nil, fmt.Errorf("network of %d namespaces: %w", n, err)
	}
	return nw, nil
}

func (nw *Network) make(n int) error {
	for range n + 1 {
		h, err := hold()
		if err != nil {
			return err
		}
		nw.holders = append(nw.holders, h)
	}
	err := errors.Join(nw.run(n, "ip", "link", "add", "br0", "type", "bridge"), nw.run(n, "ip", "link", "set", "br0", "up"))
	for i := range n {
		v := "v" + strconv.Itoa(i)
		err = errors.Join(err,
			nw.run(n, "ip", "link", "add", v, "type", "veth", "peer", "name", "eth0", "netns", nw.pid(i)),
			nw.run(n, "ip", "link", "set", v, "master", "br0", "up"),
			nw.run(i, "ip", "link", "set", "lo", "up"),
			nw.run(i, "ip", "addr", "add", nw.Host(i)+"/24", "dev", "eth0"),
			nw.run(i, "ip", "link", "set", "eth0", "up"))
	}
	return err
}

// SecondRail adds a bridge with a link to each namespace, with addresses on it.
func (nw *Network) SecondRail() error {
	n := len(nw.holders) - 1
	err := errors.Join(nw.run(n, "ip", "link", "add", "br1", "type", "bridge"), nw.run(n, "ip", "link", "set", "br1", "up"))
	for i := range n {
		v := "w" + strconv.Itoa(i)
		err = errors.Join(err,
			nw.run(n, "ip", "link", "add", v, "type", "veth", "peer", "name", "eth1", "netns", nw.pid(i)),
			nw.run(n, "ip", "link", "set", v, "master", "br1", "up"),
			nw.run(i, "ip", "addr", "add", nw.SecondHost(i)+"/24", "dev", "eth1"),
			nw.run(i, "ip", "link", "set", "eth1", "up"))
	}
	return err
}

// SecondHost returns a namespace's address on the second rail.
func (nw *Network) SecondHost(i int) string { return "10.92.0." + strconv.Itoa(10+i) }

// Close removes the namespaces without other processes.
func (nw *Network) Close() {
	for _, h := range nw.holders {
		h.end()
	}
	nw.holders = nil
}

// Host returns the address of a namespace.
func (nw *Network) Host(i int) string { return "10.91.0." + strconv.Itoa(10+i) }

// Addrs returns the addresses where the daemons listen.
func (nw *Network) Addrs() (all [][]string) {
	for i := range len(nw.holders) - 1 {
		all = append(all, []string{nw.Host(i) + ":" + port})
	}
	return all
}

// Wrap returns the prefix of a command that must run in a namespace.
func (nw *Network) Wrap(i int) []string {
	return []string{"nsenter", "--net=/proc/" + nw.pid(i) + "/ns/net", "--"}
}

func (nw *Network) pid(i int) string { return strconv.Itoa(nw.holders[i].cmd.Process.Pid) }

func (nw *Network) link(i int, state string) error {
	return nw.run(len(nw.holders)-1, "ip", "link", "set", "v"+strconv.Itoa(i), state)
}

// Cut takes the namespace i off the network; Mend puts it back.
func (nw *Network) Cut(i int) error { return nw.link(i, "down") }

// Mend undoes Cut.
func (nw *Network) Mend(i int) error { return nw.link(i, "up") }

// CutTo drops packets from namespace i to namespace k, but not the reverse; MendTo undoes it.
func (nw *Network) CutTo(i, k int) error {
	return nw.run(i, "ip", "route", "add", "blackhole", nw.Host(k)+"/32")
}

// MendTo undoes CutTo.
func (nw *Network) MendTo(i, k int) error {
	return nw.run(i, "ip", "route", "del", "blackhole", nw.Host(k)+"/32")
}

// Limit bounds each direction of a namespace's link to rate bytes per second, until the next call. The kernel needs
// its token bucket filter (sch_tbf).
func (nw *Network) Limit(i int, rate int64) error {
	at := func(in int, dev string) error {
		return nw.run(in, "tc", "qdisc", "replace", "dev", dev, "root", "tbf", "rate", strconv.FormatInt(8*rate, 10)+"bit", "burst", "128kb", "latency", "200ms")
	}
	return errors.Join(at(i, "eth0"), at(len(nw.holders)-1, "v"+strconv.Itoa(i)))
}

// Sent returns the bytes that a namespace's interface has sent, as counted by the kernel.
func (nw *Network) Sent(i int) (int64, error) {
	out, err := nw.output(i, "ip", "-s", "-j", "link", "show", "dev", "eth0")
	if err != nil {
		return 0, err
	}
	var links []struct {
		Stats struct {
			TX struct{ Bytes int64 }
		} `json:"stats64"`
	}
	if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
		return 0, fmt.Errorf("counters of eth0: %w: %s", errors.Join(err, syscall.EIO), out)
	}
	return links[0].Stats.TX.Bytes, nil
}

func (nw *Network) run(i int, args ...string) error {
	_, err := nw.output(i, args...)
	return err
}

func (nw *Network) output(i int, args ...string) ([]byte, error) {
	args = append(nw.Wrap(i), args...)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return out, nil
}

// holder is a process that holds a network namespace. It is cat, which ends when our end of its pipe closes, also if
// we are killed. Pdeathsig would end it with the thread that started it.
type holder struct {
	cmd *exec.Cmd
	in  io.Closer
}

func (h holder) end() {
	_ = h.in.Close()
	_ = h.cmd.Wait() // it was meant to end
}

// hold starts a holder, and returns when its namespace exists.
func hold() (holder, error) {
	c := exec.Command("unshare", "--net", "cat")
	in, err := c.StdinPipe()
	if err != nil {
		return holder{}, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return holder{}, err
	}
	if err := c.Start(); err != nil {
		return holder{}, err
	}
	h := holder{c, in}
	if _, err = fmt.Fprintln(in); err == nil {
		_, err = out.Read(make([]byte, 1))
	}
	if err != nil {
		h.end()
		return holder{}, fmt.Errorf("a namespace: %w", err)
	}
	return h, nil
}
