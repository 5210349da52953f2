// Package rails chooses the networks that the daemons of a job use: where a daemon listens, and at which addresses it
// reaches another. Each chosen network is a rail. Its one idea is that nodes need not exchange addresses: the address
// of a node on a rail is one to which its name resolves or, where the name resolves to another network, the rail's
// prefix with the host part of that address, as in clusters that number their networks in parallel. A wrong guess is
// harmless: the handshake of a connection refuses another node. The package opens no sockets.
package rails

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Separator stands between the networks of the option network=.
const Separator = "+"

const (
	maxRails = 8
	maxName  = 15 // of an interface; the limit of Linux
)

// Parse parses the value of the option network=: names of interfaces or CIDRs; an empty value means all networks.
func Parse(v string) ([]string, error) {
	if v == "" {
		return nil, nil
	}
	all := strings.Split(v, Separator)
	return all, Check(all)
}

// Check refuses names that cannot be a network.
func Check(networks []string) error {
	if len(networks) > maxRails {
		return fmt.Errorf("%d networks, at most %d", len(networks), maxRails)
	}
	for i, n := range networks {
		_, err := netip.ParsePrefix(n)
		if err != nil && (n == "" || len(n) > maxName || strings.ContainsAny(n, "/ \t\n:")) {
			return fmt.Errorf("%.40q is neither an interface nor a network: write ib0 or 10.1.0.0/16, several with %s between them", n, Separator)
		}
		if slices.Contains(networks[:i], n) {
			return fmt.Errorf("%s is given twice", n)
		}
	}
	return nil
}

// Rail is a network of this node.
type Rail struct {
	Prefix netip.Prefix
	Own    netip.Addr // this node's address
}

// Interface is a network interface with its addresses.
type Interface struct {
	Name  string
	Addrs []netip.Prefix
}

// Interfaces returns the interfaces of this machine that are up.
func Interfaces() ([]Interface, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []Interface
	for _, x := range ifs {
		if x.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := x.Addrs()
		if err != nil {
			return nil, err
		}
		one := Interface{Name: x.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				one.Addrs = append(one.Addrs, p)
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// Choose returns the rails of a node with these interfaces.
func Choose(networks []string, interfaces []Interface) ([]Rail, error) {
	var all []Rail
	var errs []error
	for _, n := range networks {
		r, ok := find(n, interfaces)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("network %s: this node has no address there: compare it with ip address", n))
		case slices.Contains(all, r):
			errs = append(errs, fmt.Errorf("network %s: the same address %v as another", n, r.Own))
		}
		all = append(all, r)
	}
	return all, errors.Join(errs...)
}

// find prefers IPv4, and never returns a link-local address: it is meaningless without its interface.
func find(network string, interfaces []Interface) (best Rail, ok bool) {
	prefix, err := netip.ParsePrefix(network)
	for _, x := range interfaces {
		for _, a := range x.Addrs {
			r := Rail{Prefix: a.Masked(), Own: a.Addr()}
			if err == nil {
				r.Prefix = prefix.Masked()
			}
			here := x.Name == network
			if err == nil {
				here = prefix.Contains(a.Addr())
			}
			if here && !a.Addr().IsLinkLocalUnicast() && (!ok || best.Own.Is6() && r.Own.Is4()) {
				best, ok = r, true
			}
		}
	}
	return best, ok
}

// Of returns the address on this rail of a node whose name resolves to known.
func (r Rail) Of(known []netip.Addr) (netip.Addr, bool) {
	for _, a := range known {
		if a = a.Unmap(); r.Prefix.Contains(a) {
			return a, true
		}
	}
	for _, a := range known {
		if a = a.Unmap(); a.BitLen() == r.Prefix.Addr().BitLen() {
			return r.mapped(a), true
		}
	}
	return netip.Addr{}, false
}

// mapped returns the rail's prefix with the host part of a.
func (r Rail) mapped(a netip.Addr) netip.Addr {
	net, host := r.Prefix.Addr().AsSlice(), a.AsSlice()
	bits := r.Prefix.Bits()
	for i := range net {
		keep := byte(0xff)
		if b := bits - 8*i; b <= 0 {
			keep = 0
		} else if b < 8 {
			keep = byte(0xff << (8 - b))
		}
		net[i] = net[i]&keep | host[i]&^keep
	}
	m, _ := netip.AddrFromSlice(net) // it has the length of an address
	return m
}
