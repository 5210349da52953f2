package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

// TestConfig: config show prints a configuration that parses to the same values; a bad one is refused with its key.
func TestConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bivouac.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (string, error) {
		var b strings.Builder
		c := root()
		c.SetOut(&b)
		c.SetArgs(args)
		err := c.Execute()
		return b.String(), err
	}
	write("store: [/nvme0, /nvme1]\nstart_timeout: 1m30s\nmemory: 2G\n")
	want, err := pitch.LoadSite(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := run("config", "show", path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pitch.ParseSite([]byte(text))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the shown configuration parses as %+v, %v, want %+v:\n%s", got, err, want, text)
	}
	if _, err := run("config", "check", path); err != nil {
		t.Errorf("check: %v", err)
	}
	write("port: 80\n")
	if _, err := run("config", "check", path); err == nil || !strings.Contains(err.Error(), "port") {
		t.Errorf("check of a bad port: %v", err)
	}
	if _, err := run("config", "check", path+".missing"); err == nil {
		t.Error("a file that is missing is valid")
	}
}
