package pitch

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/secure"
)

func TestParseSite(t *testing.T) {
	got, err := ParseSite([]byte("store: [/nvme0, /nvme1]\nstart_timeout: 90\nepilog_timeout: 5m\nmunge: require\nmemory: 2G\nkernel_view: off\n"))
	want := DefaultSite()
	want.Store, want.StartTimeout, want.EpilogTimeout = []string{"/nvme0", "/nvme1"}, Seconds(90*time.Second), Seconds(5*time.Minute)
	want.Munge, want.Memory, want.KernelView = MungeRequire, 2<<30, "off"
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseSite = %+v, %v, want %+v", got, err, want)
	}
	if got, err := ParseSite(nil); err != nil || !reflect.DeepEqual(got, DefaultSite()) {
		t.Errorf("ParseSite of nothing = %+v, %v", got, err)
	}
	d := DefaultSite()
	if err := d.validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
}

func TestParseSiteComplains(t *testing.T) {
	for in, wants := range map[string][]string{
		"stores: [/a]":                     {"line 1: unknown key stores: "},
		"store: 3":                         {"line 1: 3 is not a list"},
		"munge: off\nports: many":          {"line 2: many is not a whole number"},
		"store: []":                        {"store: 0 directories"},
		"store: [rel]\nmunge: no\nport: 1": {"rel", "munge", "port"},
		"store: [/a, /a]":                  {"/a is named twice"},
		"run: /run/../etc":                 {"/run/../etc"},
		"ports: 63":                        {"ports"},
		"failure_timeout: 60":              {"failure_timeout"},
		"start_timeout: soon":              {"line 1: ", "soon"},
		"memory: 1X":                       {"line 1: ", "1X"},
		"memory: 1M":                       {"too little"},
		"kernel_view: on":                  {"kernel_view", "auto or off"},
		"network: [ib0, a/b]":              {"network", "neither an interface nor a network"},
		"encrypt: ssl":                     {"encrypt", "want tls"},
		"auth: tls":                        {"auth", "want frames"},
	} {
		_, err := ParseSite([]byte(in))
		for _, w := range wants {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("ParseSite(%q) = %v, want a complaint about %q", in, err, w)
			}
		}
	}
}

func TestLoadSite(t *testing.T) {
	dir := t.TempDir()
	if s, err := LoadSite(filepath.Join(dir, "none")); err != nil || !reflect.DeepEqual(s, DefaultSite()) {
		t.Errorf("LoadSite of a missing file = %+v, %v", s, err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("x: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := LoadSite(bad); err == nil || !strings.Contains(err.Error(), bad) || !reflect.DeepEqual(s, DefaultSite()) {
		t.Errorf("LoadSite of a bad file = %+v, %v", s, err)
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "17": 17, "4K": 4 << 10, "4k": 4 << 10, "400G": 400 << 30, "1T": 1 << 40, "2GiB": 2 << 30, "8191T": 8191 << 40,
		"": 0, "G": -1, "-1": -1, "1.5G": -1, "1P": -1, "9223372036854775808": -1, "9999999T": -1, "1G ": -1, "KK": -1,
	} {
		got, err := ParseSize(in)
		if want < 0 && err == nil || want >= 0 && (got != want || err != nil) {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
}

func TestState(t *testing.T) {
	site := DefaultSite()
	site.Run = t.TempDir()
	p := place{site, "9"}
	if _, err := ReadState(site, "9"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadState of no job = %v", err)
	}
	if err := os.Mkdir(p.run(), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range []State{{Phase: Starting}, {Ready, "/mnt/bivouac/9"}, {Failed, "a reason with spaces"}} {
		if err := p.writeState(s); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadState(site, "9"); err != nil || got != s {
			t.Errorf("ReadState = %q, %v, want %q", got, err, s)
		}
	}
	long := State{Failed, "two\nlines\x00 " + strings.Repeat("é", 2000)}
	if err := p.writeState(long); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(p.state())
	if err != nil || len(b) > 1000 || strings.Count(string(b), "\n") != 1 {
		t.Errorf("a long reason is %d bytes, %v: %q", len(b), err, b)
	}
	for _, bad := range []string{"", "0", "1/2", "..", "12345678901", "a"} {
		if _, err := ReadState(site, bad); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("ReadState(%q) = %v, want a refusal", bad, err)
		}
	}
}

// TestProtect: the site's protection applies to all jobs, and a job can ask for more.
func TestProtect(t *testing.T) {
	tls, frames := map[string]string{"encrypt": "tls"}, map[string]string{"auth": "frames"}
	for _, c := range []struct {
		site Site
		opts map[string]string
		want secure.Mode
	}{
		{Site{}, nil, secure.Plain}, {Site{}, tls, secure.TLS}, {Site{}, frames, secure.Frames},
		{Site{Encrypt: "tls"}, nil, secure.TLS}, {Site{Encrypt: "tls"}, frames, secure.TLS},
		{Site{Auth: "frames"}, nil, secure.Frames}, {Site{Auth: "frames"}, tls, secure.TLS},
		{Site{Auth: "frames", Encrypt: "tls"}, nil, secure.TLS},
	} {
		spec := Spec{V: SpecVersion, Opts: c.opts}
		if got := spec.Protect(c.site); got != c.want || spec.validate() != nil {
			t.Errorf("site %+v, job %v: %v, want %v; %v", c.site, c.opts, got, c.want, spec.validate())
		}
	}
}

// TestKernelView: a job has kernel views unless it or its site has switched them off; a daemon that requests one
// nevertheless gets none.
func TestKernelView(t *testing.T) {
	for _, c := range []struct{ site, job, want string }{
		{"auto", "", ""}, {"auto", "auto", ""}, {"auto", "off", "off"}, {"off", "", "off"}, {"off", "auto", "off"}, {"off", "off", "off"},
	} {
		spec := Spec{Opts: map[string]string{"kernel-view": c.job}}
		if got := spec.KernelView(Site{KernelView: c.site}); got != c.want {
			t.Errorf("site %q, job %q: %q, want %q", c.site, c.job, got, c.want)
		}
	}
	x := child{k: &keeper{rec: &record{Job: job.File{KernelView: job.KernelViewOff}}}}
	if _, err := x.view("set"); !errors.Is(err, syscall.EPERM) {
		t.Errorf("a view that is off: %v, want EPERM", err)
	}
}
