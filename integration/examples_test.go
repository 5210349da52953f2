package integration

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

// read parses a YAML file; an unknown field is an error.
func read(t *testing.T, path string, v any) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// TestAnsible: each task has a name and one module, its notified handlers exist, and the site is valid.
func TestAnsible(t *testing.T) {
	t.Parallel()
	var plays []struct {
		Name, Hosts     string
		Become          bool
		Vars            map[string]string
		Tasks, Handlers []map[string]any
	}
	read(t, "../deploy/package/ansible.yaml", &plays)
	play, site := plays[0], ""
	for _, task := range slices.Concat(play.Tasks, play.Handlers) {
		modules := slices.DeleteFunc(slices.Collect(maps.Keys(task)), func(k string) bool { return !strings.HasPrefix(k, "ansible.builtin.") })
		if len(modules) != 1 || task["name"] == nil {
			t.Errorf("a task has no name, or modules %q: %v", modules, task)
			continue
		}
		if h := task["notify"]; h != nil && !slices.ContainsFunc(play.Handlers, func(x map[string]any) bool { return x["name"] == h }) {
			t.Errorf("%v notifies %v, which is no handler", task["name"], h)
		}
		if file, _ := task[modules[0]].(map[string]any); file["dest"] == pitch.SitePath {
			site = strings.ReplaceAll(file["content"].(string), "{{ store }}", play.Vars["store"])
		}
	}
	if s, err := pitch.ParseSite([]byte(site)); err != nil || !slices.Equal(s.Store, pitch.DefaultSite().Store) {
		t.Errorf("the site is %q: %v", site, err)
	}
}

// TestSpack: the recipe is valid Python, and the files it copies are in the repository or built.
func TestSpack(t *testing.T) {
	t.Parallel()
	const dir = "../deploy/package/spack_repo/bivouac/"
	var about struct{ Repo map[string]string }
	if read(t, dir+"repo.yaml", &about); about.Repo["namespace"] != "bivouac" {
		t.Errorf("repo.yaml has %v", about)
	}
	out, err := exec.Command("/usr/bin/python3", "-c", `
import ast, sys
for n in ast.walk(ast.parse(open(sys.argv[1]).read())):
    if isinstance(n, ast.Call) and getattr(n.func, "id", "") in ("install", "install_tree"):
        print(n.args[0].value)`, dir+"packages/bivouac/package.py").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, path := range strings.Fields(string(out)) {
		if _, err := os.Stat("../" + path); err != nil && path != "bin/bivouac" && path != "bin/bivouac.so" {
			t.Error(err)
		}
	}
	if n := len(strings.Fields(string(out))); n != 3 {
		t.Errorf("the recipe copies %d things: %s", n, out)
	}
}
