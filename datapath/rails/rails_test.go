package rails

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func prefixes(all ...string) (p []netip.Prefix) {
	for _, a := range all {
		p = append(p, netip.MustParsePrefix(a))
	}
	return p
}

func addrs(all ...string) (p []netip.Addr) {
	for _, a := range all {
		p = append(p, netip.MustParseAddr(a))
	}
	return p
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		v    string
		want []string
		bad  bool
	}{
		{"", nil, false}, {"ib0", []string{"ib0"}, false}, {"ib0+10.2.0.0/16", []string{"ib0", "10.2.0.0/16"}, false},
		{"fd00::/64", []string{"fd00::/64"}, false}, {"ib0+ib0", nil, true}, {"ib0+", nil, true}, {"10.2.0.0/99", nil, true},
		{"a name that is too long", nil, true}, {"1+2+3+4+5+6+7+8+9", nil, true},
	} {
		got, err := Parse(c.v)
		if (err != nil) != c.bad || err == nil && !slices.Equal(got, c.want) {
			t.Errorf("Parse(%q) = %q, %v, want %q", c.v, got, err, c.want)
		}
	}
}

func TestChoose(t *testing.T) {
	ifs := []Interface{
		{"lo", prefixes("127.0.0.1/8", "::1/128")}, {"eth0", prefixes("fe80::5/64", "10.1.0.17/24")},
		{"ib0", prefixes("fd00::17/64", "10.2.0.17/16")}, {"ib1", prefixes("fe80::6/64")},
	}
	for _, c := range []struct{ networks, want, err string }{
		{"eth0", "10.1.0.17 in 10.1.0.0/24", ""},
		{"ib0", "10.2.0.17 in 10.2.0.0/16", ""},
		{"fd00::/16", "fd00::17 in fd00::/16", ""},
		{"10.2.0.0/15+eth0", "10.2.0.17 in 10.2.0.0/15, 10.1.0.17 in 10.1.0.0/24", ""},
		{"ib1", "", "network ib1"}, // link-local only
		{"ib7", "", "network ib7"},
		{"10.1.0.0/24+10.1.0.17/32+eth0", "", "same address"},
	} {
		n, err := Parse(c.networks)
		if err != nil {
			t.Fatal(err)
		}
		rails, err := Choose(n, ifs)
		var got []string
		for _, r := range rails {
			got = append(got, r.Own.String()+" in "+r.Prefix.String())
		}
		if c.err == "" && (err != nil || strings.Join(got, ", ") != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, %v, want %s%s", c.networks, got, err, c.want, c.err)
		}
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		rail, want string
		known      []netip.Addr
	}{
		{"10.2.0.0/16", "10.2.3.4", addrs("10.1.0.17", "10.2.3.4")},
		{"10.2.0.0/16", "10.2.0.17", addrs("10.1.0.17")},
		{"10.2.128.0/20", "10.2.131.17", addrs("10.1.19.17")},
		{"10.2.0.0/16", "10.2.0.17", addrs("::ffff:10.1.0.17")},
		{"fd00:2::/64", "fd00:2::17", addrs("10.1.0.17", "fd00:1::17")},
		{"fd00:2::/64", "", addrs("10.1.0.17")},
		{"10.2.0.0/16", "", nil},
	} {
		got, ok := Rail{Prefix: netip.MustParsePrefix(c.rail)}.Of(c.known)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%v on %s: %v, want %s", c.known, c.rail, got, c.want)
		}
	}
}

// FuzzParse: an accepted list is not empty and has no duplicates.
func FuzzParse(f *testing.F) {
	f.Add("ib0+10.2.0.0/16")
	f.Fuzz(func(t *testing.T, v string) {
		all, err := Parse(v)
		if err != nil {
			return
		}
		for i, n := range all {
			if n == "" || slices.Contains(all[:i], n) {
				t.Fatalf("Parse(%q) = %q", v, all)
			}
		}
	})
}
