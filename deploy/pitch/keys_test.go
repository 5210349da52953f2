package pitch

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/stagein"
)

// TestKeys: each option of a job and each key of the site is documented exactly once.
func TestKeys(t *testing.T) {
	documented := func(k stagein.Key) {
		t.Helper()
		if k.Values == "" || k.Default == "" || k.Meaning == "" || len([]rune(k.Meaning)) > 160 {
			t.Errorf("%s: want values, a default and a meaning of at most 160 characters: %+v", k.Name, k)
		}
	}
	seen := make(map[string]bool)
	for _, k := range OptionKeys {
		if documented(k); knownOptions[k.Name] == nil || seen[k.Name] {
			t.Errorf("%s is documented, and is no option or was documented before", k.Name)
		}
		seen[k.Name] = true
	}
	for name := range knownOptions {
		if !seen[name] {
			t.Errorf("OptionKeys lacks %s", name)
		}
	}
	site, err := SiteKeys()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range site {
		documented(k)
	}
	if len(site) != len(siteKeys) {
		t.Errorf("%d keys are documented, the site has %d", len(siteKeys), len(site))
	}
}

// TestKeeperMetrics: the documented metrics are written.
func TestKeeperMetrics(t *testing.T) {
	b, err := os.ReadFile("textfile.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range KeeperMetrics {
		if !bytes.Contains(b, []byte(m.Name+"{")) {
			t.Errorf("nothing writes %s", m.Name)
		}
	}
}

// TestExampleSite: the example configuration has every key with its default, as it claims.
func TestExampleSite(t *testing.T) {
	b, err := os.ReadFile("../slurm/bivouac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := ParseSite(b); err != nil || !reflect.DeepEqual(s, DefaultSite()) {
		t.Errorf("the example parses as %+v, %v, want %+v", s, err, DefaultSite())
	}
	for name := range siteKeys {
		if !strings.Contains("\n"+string(b), "\n"+name+":") {
			t.Errorf("the example has no %s", name)
		}
	}
}
