package pitch

import (
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
)

// candidates is how many ports are tried before a job is refused, since other programs may use the ports that the job
// hashes to.
const candidates = 8

// meetShare: one part in meetShare of the port range is for the exchange of keys, the rest for the daemons.
const meetShare = 8

// hashOf returns a hash that is the same on every node.
func hashOf(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		fmt.Fprint(h, p, "\x00")
	}
	// The low bits of FNV hashes of similar texts are similar, so mix them.
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// portsOf picks distinct ports of [first, first+n) by the hash h.
func portsOf(h uint64, first, n int) []int {
	start := int(h % uint64(n))
	var ports []int
	for i := range candidates {
		// Quadratic steps separate two jobs that collide at one port.
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

// Addrs returns the host:port candidates of the daemon of each host. They follow from the job alone, so that nodes need
// not exchange them. Two hosts on one machine have different ones.
func Addrs(site Site, jobID string, restart int, hosts []string) [][]string {
	meet := site.Ports / meetShare
	addrs := make([][]string, len(hosts))
	for i, host := range hosts {
		h := hashOf("daemon", jobID, restart, i)
		addrs[i] = join(host, portsOf(h, site.Port+meet, site.Ports-meet))
	}
	return addrs
}

// meetingAddrs returns the addresses at which the first host hands out the job key.
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
