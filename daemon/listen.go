package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rails"
	"github.com/bivouacfs/bivouac/metadata"
)

// listen binds the first address whose port is free, on all networks or only on the rails.
func listen(addrs []string, on []rails.Rail) ([]net.Listener, error) {
	hosts := []string{""}
	if len(on) > 0 {
		hosts = nil
	}
	for _, r := range on {
		hosts = append(hosts, r.Own.String())
	}
	var errs []error
	for _, a := range addrs {
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", a, err)
		}
		ls, err := listenAll(hosts, port)
		if err == nil {
			return ls, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no port of this job is free on this node: %w: widen ports= in the site's configuration", errors.Join(errs...))
}

// listenAll binds a port on all of several hosts, or on none.
func listenAll(hosts []string, port string) (ls []net.Listener, err error) {
	for _, h := range hosts {
		l, err := net.Listen("tcp", net.JoinHostPort(h, port))
		if err != nil {
			closeAll(ls)
			return nil, err
		}
		ls = append(ls, l)
	}
	return ls, nil
}

func closeAll(ls []net.Listener) {
	for _, l := range ls {
		_ = l.Close() // unused
	}
}

// network holds the rails of this node, and the addresses of the other nodes on them.
type network struct {
	rails []rails.Rail // none: all networks, by name

	mu    sync.Mutex
	known map[metadata.NodeID][]netip.Addr // guarded by mu: addresses to which a node's name resolves
	next  map[metadata.NodeID]int          // guarded by mu: the rail of the next connection
}

// openRails returns the network of a job on this node.
func openRails(networks []string) (*network, error) {
	n := &network{known: make(map[metadata.NodeID][]netip.Addr), next: make(map[metadata.NodeID]int)}
	if len(networks) == 0 {
		return n, nil
	}
	ifs, err := rails.Interfaces()
	if err == nil {
		n.rails, err = rails.Choose(networks, ifs)
	}
	return n, err
}

// resolveTimeout bounds a name lookup.
const resolveTimeout = 5 * time.Second

// spread returns the addresses of a node on the rails, in the order in which the next connection tries them. Each
// connection starts with another rail.
func (n *network) spread(id metadata.NodeID, addrs []string) []string {
	if len(n.rails) == 0 || len(addrs) == 0 {
		return addrs
	}
	known := n.resolve(id, addrs[0])
	n.mu.Lock()
	first := n.next[id]
	n.next[id] = (first + 1) % len(n.rails)
	n.mu.Unlock()
	var out []string
	for i := range n.rails {
		ip, ok := n.rails[(first+i)%len(n.rails)].Of(known)
		if !ok {
			continue
		}
		for _, a := range addrs {
			if _, port, err := net.SplitHostPort(a); err == nil {
				out = append(out, net.JoinHostPort(ip.String(), port))
			}
		}
	}
	return out
}

// resolve returns the addresses of a node's name; a failed lookup is retried at the next call.
func (n *network) resolve(id metadata.NodeID, addr string) []netip.Addr {
	n.mu.Lock()
	known := n.known[id]
	n.mu.Unlock()
	if known != nil {
		return known
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	known, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	n.mu.Lock()
	n.known[id] = known
	n.mu.Unlock()
	return known
}
