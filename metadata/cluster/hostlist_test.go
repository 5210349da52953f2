package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// hostCases is the output of `scontrol show hostnames` (Slurm 22.05.8).
var hostCases = []struct{ list, hosts string }{
	{"host", "host"},
	{"n12", "n12"},
	{"gpu[001-004,007],login1", "gpu001 gpu002 gpu003 gpu004 gpu007 login1"},
	{"rack[1-2]n[01-03]", "rack1n01 rack1n02 rack1n03 rack2n01 rack2n02 rack2n03"},
	{"a[1-2]b[3-4]c[5-6]", "a1b3c5 a1b3c6 a2b3c5 a2b3c6 a1b4c5 a1b4c6 a2b4c5 a2b4c6"},
	{"a[1-2]b[3-4]c[5-6]d[7-8]", "a1b3c5d7 a1b3c5d8 a2b3c5d7 a2b3c5d8 a1b4c5d7 a1b4c5d8 a2b4c5d7 a2b4c5d8 " +
		"a1b3c6d7 a1b3c6d8 a2b3c6d7 a2b3c6d8 a1b4c6d7 a1b4c6d8 a2b4c6d7 a2b4c6d8"},
	{"a[1-2]b[1,3]", "a1b1 a1b3 a2b1 a2b3"},
	{"n[1-2][3-4]", "n13 n14 n23 n24"},
	{"n[9-11]", "n9 n10 n11"},
	{"n[09-11]", "n09 n10 n11"},
	{"n[008-11]", "n008 n009 n010 n011"},
	{"n[99-101]", "n99 n100 n101"},
	{"n[001-3]", "n001 n002 n003"},
	{"n[1-003]", "n1 n2 n3"},
	{"n[01-1]", "n01"},
	{"n[001,2]", "n001 n2"},
	{"n[007]", "n007"},
	{"n[00]", "n00"},
	{"n[0-2]", "n0 n1 n2"},
	{"h[0001-0003]", "h0001 h0002 h0003"},
	{"a[2,1]", "a2 a1"},
	{"n[1,1]", "n1 n1"},
	{"a[1-2,1-2]", "a1 a2 a1 a2"},
	{"a,a", "a a"},
	{"[1-3]", "1 2 3"},
	{"[01-02]x[1-2]", "01x1 01x2 02x1 02x2"},
	{"n-1[1-2]", "n-11 n-12"},
	{"a_b[1-2]", "a_b1 a_b2"},
	{"n[1-2].a[1-2]", "n1.a1 n1.a2 n2.a1 n2.a2"},
	{"n[1-2],login,n[4-5]x[01]", "n1 n2 login n4x01 n5x01"},
	{"rack1n[1-2],rack2n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"},
	{"n[1-2] m[1-2]", "n1 n2 m1 m2"},
	{"n[1-2]\tm", "n1 n2 m"},
	{",,a,,b,", "a b"},
	{"n000000000000000000000001", "n000000000000000000000001"},
}

func TestParseHostList(t *testing.T) {
	for _, c := range hostCases {
		checkHosts(t, c.list, c.hosts)
	}
	// Slurm 22.05 rejects these, but other programs write them.
	checkHosts(t, "n[1-2].cluster.example", "n1.cluster.example n2.cluster.example")
	checkHosts(t, "n[1-2]-ib,m", "n1-ib n2-ib m")
}

func checkHosts(t *testing.T, list, want string) {
	t.Helper()
	got, err := ParseHostList(list)
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("ParseHostList(%q) = %q, %v, want %q", list, got, err, want)
	}
}

func TestParseHostListRefuses(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"", "column 1: no host"},
		{" ,", "column 1: no host"},
		{"n[3-1]", "column 3: range 3-1 runs backwards"},
		{"n[]", "column 3: a number is missing"},
		{"n[1-]", "column 5: a number is missing"},
		{"n[,1]", "column 3: a number is missing"},
		{"n[1,]", "column 5: a number is missing"},
		{"n[1", "column 2: bracket is not closed"},
		{"n[1-2", "column 2: bracket is not closed"},
		{"n[", "column 3: a number is missing"},
		{"n1]", "column 3: ']' cannot be in a host name"},
		{"n[1-2]]", "column 7: ']' cannot be in a host name"},
		{"n[[1-2]]", "column 3: a number is missing"},
		{"n[1-2-3]", "column 6: '-' instead of ',' or ']'"},
		{"n[8-12:2]", "column 7: ':' instead of ',' or ']'"},
		{"n[a-c]", "column 3: a number is missing"},
		{"n[ 1-2]", "column 3: a number is missing"},
		{"a,n[98765432109876543210]", "column 5: a number of 20 digits"},
		{"a,n[1-32768]", "column 3: more than 32768 hosts"},
		{"n[1-32769]", "column 1: more than 32768 hosts"},
		{"n[1-999999999999999999]", "column 1: more than 32768 hosts"},
		{"n[1-256][1-256]", "column 1: more than 32768 hosts"},
		{"n[1-30000][1-30000][1-30000][1-30000][1-30000]", "column 1: more than 32768 hosts"},
		{strings.Repeat("x", 256), "column 1: host name longer than 255 bytes"},
		{strings.Repeat("[1]", 256), "column 1: host name longer than 255 bytes"},
		{"a/b", "column 2: '/' cannot be in a host name"},
		{"a\x00", `column 2: '\x00' cannot be in a host name`},
	} {
		if got, err := ParseHostList(c.list); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("ParseHostList(%.40q) = %.3q, %v, want error %q", c.list, got, err, c.want)
		}
	}
	if h, err := ParseHostList("n[1-32768]"); err != nil || len(h) != metadata.MaxNodes {
		t.Errorf("ParseHostList of the most hosts = %d hosts, %v", len(h), err)
	}
}

// TestParseHostListIsSlurms compares the table, and random lists, with Slurm itself.
func TestParseHostListIsSlurms(t *testing.T) {
	scontrol, err := exec.LookPath("scontrol")
	if err != nil {
		t.Skip("scontrol is not installed")
	}
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lists := make([]string, 0, len(hostCases)+30)
	for _, c := range hostCases {
		lists = append(lists, c.list)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		lists = append(lists, randomList(r))
	}
	for _, l := range lists {
		cmd := exec.Command(scontrol, "show", "hostnames", l)
		cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("scontrol show hostnames %q: %v", l, err)
		}
		checkHosts(t, l, strings.Join(strings.Fields(string(out)), " "))
	}
}

func randomList(r *rand.Rand) string {
	var terms []string
	for range 1 + r.IntN(3) {
		term := ""
		for range 1 + r.IntN(4) {
			lo := r.IntN(20)
			term += string(rune('a'+r.IntN(3))) + strings.NewReplacer(
				"L", strings.Repeat("0", r.IntN(3))+itoa(lo), "H", itoa(lo+r.IntN(3)), "S", itoa(r.IntN(9)),
			).Replace("[L-H,S]")
		}
		terms = append(terms, term)
	}
	return strings.Join(terms, ",")
}

// formatHostList writes hosts as a host list that ParseHostList expands to the same hosts in the same order. Neighbours
// that differ only in their last number share a bracket.
func formatHostList(hosts []string) string {
	var b strings.Builder
	for i := 0; i < len(hosts); {
		if i > 0 {
			b.WriteByte(',')
		}
		i += formatGroup(&b, hosts[i:])
	}
	return b.String()
}

// formatGroup writes the hosts at the start of hosts that share a bracket, and returns their number.
func formatGroup(b *strings.Builder, hosts []string) int {
	prefix, _ := cutNumber(hosts[0])
	var ranges []numRange
	n := 0
	for ; n < len(hosts); n++ {
		p, num := cutNumber(hosts[n])
		if num == "" || p != prefix {
			break
		}
		v, _ := strconv.ParseInt(num, 10, 64) // at most maxDigits digits
		if k := len(ranges) - 1; k >= 0 && ranges[k].hi+1 == v && fmt.Sprintf("%0*d", ranges[k].width, v) == num {
			ranges[k].hi = v
			continue
		}
		ranges = append(ranges, numRange{v, v, len(num)})
	}
	if n <= 1 {
		b.WriteString(hosts[0])
		return 1
	}
	b.WriteString(prefix)
	for i, r := range ranges {
		b.WriteByte("[,"[min(i, 1)])
		fmt.Fprintf(b, "%0*d", r.width, r.lo)
		if r.hi > r.lo {
			fmt.Fprintf(b, "-%0*d", r.width, r.hi)
		}
	}
	b.WriteByte(']')
	return n
}

// cutNumber splits the digits off a host's end, at most maxDigits of them.
func cutNumber(host string) (prefix, num string) {
	i := len(host)
	for i > 0 && digit(host[i-1]) && len(host)-i < maxDigits {
		i--
	}
	return host[:i], host[i:]
}

func TestFormatHostList(t *testing.T) {
	for _, c := range []struct{ hosts, want string }{
		{"", ""},
		{"a", "a"},
		{"gpu007", "gpu007"},
		{"gpu001 gpu002 gpu003 gpu007 login1", "gpu[001-003,007],login1"},
		{"n1 n01 n2", "n[1,01,2]"},
		{"n9 n10", "n[9-10]"},
		{"n09 n10", "n[09-10]"},
		{"n99 n100", "n[99-100]"},
		{"n3 n1 n2", "n[3,1-2]"},
		{"r1n1 r1n2 r2n1", "r1n[1-2],r2n1"},
		{"1 2 3", "[1-3]"},
		{"a b", "a,b"},
	} {
		if got := formatHostList(strings.Fields(c.hosts)); got != c.want {
			t.Errorf("formatHostList(%s) = %s, want %s", c.hosts, got, c.want)
		}
	}
}

func FuzzParseHostList(f *testing.F) {
	for _, c := range hostCases {
		f.Add(c.list)
	}
	f.Add("n[1-256][1-256]")
	f.Add(strings.Repeat("[1]", 300))
	f.Fuzz(func(t *testing.T, s string) {
		hosts, err := ParseHostList(s)
		if err != nil {
			return
		}
		if len(hosts) == 0 || len(hosts) > metadata.MaxNodes {
			t.Fatalf("ParseHostList(%q) = %d hosts", s, len(hosts))
		}
		short := formatHostList(hosts)
		again, err := ParseHostList(short)
		if err != nil || !slices.Equal(again, hosts) {
			t.Fatalf("ParseHostList(%q) = %q, %v, want %q", short, again, err, hosts)
		}
	})
}
