package pitch

import (
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
)

// candidates is how many ports are tried before a job is refused: so many
// other programs may have a port that is this job's by its number.
const candidates = 8

// meetShare is which part of the port range is for the exchange of keys; the
// rest is the daemons'.
const meetShare = 8

// hashOf is the same on every node.
func hashOf(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		fmt.Fprint(h, p, "\x00")
	}
	// The low bits of FNV of similar texts are similar: mix.
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// portsOf picks distinct ports of [first, first+n) by h.
func portsOf(h uint64, first, n int) []int {
	start := int(h % uint64(n))
	var ports []int
	for i := range candidates {
		// Quadratic steps part the ways of two jobs that meet at one port.
		p := first + (start+i*(1+int(h>>40)%7)+i*(i-1)/2*8)%n
		for k := 0; k < len(ports); k++ {
			if ports[k] == p {
				p, k = first+(p-first+1)%n, -1
			}
		}
		ports = append(ports, p)
	}
	return ports
}

// Addrs is, for each host, the host:port candidates of its daemon. They follow
// from the job alone, so that nodes need not tell each other. Two hosts that
// are one machine have different ones.
func Addrs(site Site, jobID string, restart int, hosts []string) [][]string {
	meet := site.Ports / meetShare
	addrs := make([][]string, len(hosts))
	for i, host := range hosts {
		h := hashOf("daemon", jobID, restart, i)
		addrs[i] = join(host, portsOf(h, site.Port+meet, site.Ports-meet))
	}
	return addrs
}

// meetingAddrs is where the first host hands out the job key.
func meetingAddrs(site Site, jobID string, restart int, host string) []string {
	return join(host, portsOf(hashOf("meet", jobID, restart), site.Port, site.Ports/meetShare))
}

func join(host string, ports []int) []string {
	var addrs []string
	for _, p := range ports {
		addrs = append(addrs, net.JoinHostPort(host, strconv.Itoa(p)))
	}
	return addrs
}
