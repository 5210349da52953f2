package pitch

import (
	"archive/tar"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/stagein"
)

// sources creates a directory with one source of each kind.
func sources(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "set.tar"))
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644}), w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty.tar": "", "none.tar": strings.Repeat("\x00", 10240), "text": strings.Repeat("words ", 200), "short": "x",
		"set.tar.gz": "\x1f\x8b" + strings.Repeat("z", 600),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "tree"), 0o755), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCheckOptions(t *testing.T) {
	d := sources(t)
	t.Chdir(d)
	t.Setenv("XDG_CACHE_HOME", "/cache")
	got, err := CheckOptions([]string{d + "/set.tar,index=off", "tree:images,index=cache", "./set.tar:other"},
		[]string{"ckpt:" + d + "/out/run7", "./logs//:out", "a:b:" + d}, "wait=all,capacity=400G,seed=42,rate=200M,serve-rate=1G,verify=reads,log=debug", nil)
	want := Spec{
		V: 1,
		StageIn: []job.Dataset{
			{Source: d + "/set.tar", Name: "set", Options: stagein.Options{Index: stagein.IndexOff}},
			{Source: d + "/tree", Name: "images", Options: stagein.Options{Index: stagein.IndexCache, Cache: "/cache/bivouac"}},
			{Source: d + "/set.tar", Name: "other", Options: stagein.Options{Cache: "/cache/bivouac"}},
		},
		StageOut: []job.StageOut{{From: "ckpt", To: d + "/out/run7"}, {From: "logs", To: d + "/out"}, {From: "a:b", To: d}},
		Opts:     map[string]string{"wait": "all", "capacity": "400G", "seed": "42", "rate": "200M", "serve-rate": "1G", "verify": "reads", "log": "debug"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("CheckOptions = %+v, %v, want %+v", got, err, want)
	}
	seed, ok := got.Seed()
	if got.Wait() != "all" || got.Capacity() != 400<<30 || got.Rate() != 200<<20 || got.ServeRate() != 1<<30 || seed != 42 || !ok {
		t.Errorf("options = %q, %d, %d", got.Wait(), got.Capacity(), seed)
	}
	w, err := got.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := DecodeSpec(w); err != nil || !reflect.DeepEqual(back, want) {
		t.Errorf("DecodeSpec = %+v, %v, want %+v", back, err, want)
	}
	if bare, err := CheckOptions(nil, nil, "", nil); err != nil || bare.Wait() != "manifest" {
		t.Errorf("CheckOptions of nothing = %+v, %v", bare, err)
	}
}

// TestIndexCache: a user without a cache directory needs none, unless the spec names one.
func TestIndexCache(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if d, err := ParseStageIn("/a.tar"); err != nil || d.Options.Cache != "" {
		t.Errorf("ParseStageIn = %+v, %v, want no cache", d, err)
	}
	if _, err := ParseStageIn("/a.tar,index=cache"); err == nil || !strings.Contains(err.Error(), "set HOME") {
		t.Errorf("with index=cache: %v", err)
	}
}

func TestCheckOptionsRefuses(t *testing.T) {
	d := sources(t)
	deny := func(string, uint32) error { return unix.EACCES }
	for _, c := range []struct {
		in, out, opts string
		access        Access
		want          string
	}{
		{in: d + "/gone.tar", want: "no such file"},
		{in: d + "/empty.tar", want: "is empty"},
		{in: d + "/none.tar", want: "no members"},
		{in: d + "/text", want: "is not a tar"},
		{in: d + "/short", want: "is not a tar"},
		{in: d + "/fifo", want: "neither an archive nor a directory"},
		{in: d + "/set.tar:", want: "no name"},
		{in: d + "/set.tar:..", want: "cannot be a directory's name"},
		{in: ":x", want: "no source"},
		{in: d + "/set.tar", access: deny, want: "cannot read"},
		{in: d + "/tree", access: deny, want: "cannot read the directory"},
		{out: "ckpt", want: "not FROM:TO"},
		{out: "ckpt:", want: "not FROM:TO"},
		{out: "/abs:" + d, want: "not a path below scratch"},
		{out: "../up:" + d, want: "not a path below scratch"},
		{out: "a/../../b:" + d, want: "not a path below scratch"},
		{out: "ckpt:" + d + "/text", want: "not a directory"},
		{out: "ckpt:" + d + "/text/below", want: "not a directory"},
		{out: "ckpt:" + d + "/new", access: deny, want: "cannot write in " + d},
		{opts: "wait", want: "not KEY=VALUE"},
		{opts: "wait=soon", want: "manifest, all or none"},
		{opts: "colour=red", want: "auth, capacity, checksums, encrypt, failure-timeout, kernel-view, log, network, rate, scratch, scrub, seed, serve-rate, start-timeout, verify, wait"},
		{opts: "verify=writes", want: "want reads"},
		{opts: "log=info", want: "want debug"},
		{opts: "capacity=lots", want: "not a size"},
		{opts: "capacity=1K", want: "1M or more"},
		{opts: "rate=1000", want: "1M or more, a second"},
		{opts: "serve-rate=-1M", want: "not a size"},
		{opts: "seed=-1", want: "number from 0"},
		{opts: "seed=1,seed=2", want: "given twice"},
		{opts: "start-timeout=2h", want: "1 s to 1 h"},
	} {
		var in, out []string
		if c.in != "" {
			in = []string{c.in}
		}
		if c.out != "" {
			out = []string{c.out}
		}
		_, err := CheckOptions(in, out, c.opts, c.access)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("CheckOptions(%q, %q, %q) = %v, want %q", c.in, c.out, c.opts, err, c.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("CheckOptions(%q, %q, %q) complains in several lines: %v", c.in, c.out, c.opts, err)
		}
	}
	if _, err := CheckOptions([]string{d + "/set.tar", d + "/set.tar"}, nil, "", nil); err == nil || !strings.Contains(err.Error(), "two sources") {
		t.Errorf("CheckOptions of one name twice = %v", err)
	}
	if _, err := CheckOptions(nil, []string{"a:" + d, "b:" + d}, "", nil); err == nil || !strings.Contains(err.Error(), "two options have the target") {
		t.Errorf("CheckOptions of one target twice = %v", err)
	}
}

func TestDecodeSpecRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"version":       `{"v":2}`,
		"unknown field": `{"v":1,"run":"/etc"}`,
		"relative":      `{"v":1,"stage_in":[{"source":"etc","name":"x"}]}`,
		"not clean":     `{"v":1,"stage_in":[{"source":"/a/../b","name":"x"}]}`,
		"name escapes":  `{"v":1,"stage_in":[{"source":"/a","name":"../x"}]}`,
		"name is empty": `{"v":1,"stage_in":[{"source":"/a","name":""}]}`,
		"control":       `{"v":1,"stage_in":[{"source":"/a\u0000","name":"x"}]}`,
		"newline":       `{"v":1,"stage_in":[{"source":"/a","name":"x\ny"}]}`,
		"from escapes":  `{"v":1,"stage_out":[{"from":"a/../../b","to":"/x"}]}`,
		"from absolute": `{"v":1,"stage_out":[{"from":"/b","to":"/x"}]}`,
		"to relative":   `{"v":1,"stage_out":[{"from":"b","to":"x"}]}`,
		"option":        `{"v":1,"opts":{"x":"y"}}`,
		"two values":    `{"v":1}{"v":1}`,
		"many":          `{"v":1,"stage_in":[` + strings.Repeat(`{"source":"/a","name":"x"},`, 64) + `{"source":"/a","name":"y"}]}`,
		"no JSON":       `v`,
	} {
		if s, err := DecodeSpec(base64.RawURLEncoding.EncodeToString([]byte(in))); err == nil {
			t.Errorf("%s: DecodeSpec = %+v, want an error", name, s)
		}
	}
	for _, in := range []string{"", "!!", strings.Repeat("A", maxSpec+1)} {
		if s, err := DecodeSpec(in); err == nil {
			t.Errorf("DecodeSpec(%.10q) = %+v, want an error", in, s)
		}
	}
}

func TestStartTimeout(t *testing.T) {
	site := DefaultSite()
	for in, want := range map[string]time.Duration{"": time.Minute, "5": 5 * time.Second, "10m": time.Minute} {
		s := Spec{V: 1, Opts: map[string]string{"start-timeout": in}}
		if got := s.startTimeout(site); got != want {
			t.Errorf("startTimeout(%q) = %v, want %v", in, got, want)
		}
	}
}

func FuzzDecodeSpec(f *testing.F) {
	s := Spec{V: 1, StageIn: []job.Dataset{{Source: "/a", Name: "b"}}, StageOut: []job.StageOut{{From: "c", To: "/d"}},
		Opts: map[string]string{"wait": "all"}}
	w, err := s.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(w)
	f.Add("")
	f.Fuzz(func(t *testing.T, w string) {
		s, err := DecodeSpec(w)
		if err != nil {
			return
		}
		for _, d := range s.StageIn {
			if !filepath.IsAbs(d.Source) || strings.ContainsRune(d.Name, '/') || d.Name == ".." {
				t.Errorf("DecodeSpec let %+v pass", d)
			}
		}
		for _, o := range s.StageOut {
			if !filepath.IsLocal(o.From) || !filepath.IsAbs(o.To) {
				t.Errorf("DecodeSpec let %+v pass", o)
			}
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeSpec(again); err != nil || !reflect.DeepEqual(back, s) {
			t.Errorf("DecodeSpec(Encode(%+v)) = %+v, %v", s, back, err)
		}
	})
}
