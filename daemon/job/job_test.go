package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func goodJob() *File {
	return &File{
		Version: Version, ID: "7", Hosts: []string{"a", "b"}, Addrs: [][]string{{"a:1"}, {"b:1", "b:2"}},
		Dirs: Dirs{Store: []string{"/s"}, Run: "/r", Mount: "/m"},
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.json")
	if err := goodJob().Write(path); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", st.Mode(), err)
	}
	j, err := Read(path)
	if err != nil || j.Name() != "7.0" || j.CtlSocket() != "/r/ctl.sock" {
		t.Errorf("ReadJob = %+v, %v", j, err)
	}
}

func TestValidate(t *testing.T) {
	for want, break_ := range map[string]func(*File){
		"version is 9":       func(j *File) { j.Version = 9 },
		"id is empty":        func(j *File) { j.ID = "" },
		"0 hosts":            func(j *File) { j.Hosts = nil },
		"self is 2 of 2":     func(j *File) { j.Self = 2 },
		"host 1 has no addr": func(j *File) { j.Addrs[1] = nil },
		"is not absolute":    func(j *File) { j.Dirs.Mount = "m" },
		"capacity is neg":    func(j *File) { j.Capacity = -1 },
		"a limit is neg":     func(j *File) { j.ServeRate = -1 },
		`two datasets are named "set": give one another name`: func(j *File) {
			s := Dataset{Source: "/a", Name: "set"}
			j.Datasets = []Dataset{s, s}
		},
	} {
		j := goodJob()
		break_(j)
		if err := j.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q", err, want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{"version":1,"nonsense":2}`, `{"version":1}`} {
		path := filepath.Join(t.TempDir(), "job.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil {
			t.Errorf("ReadJob of %q: no error", text)
		}
	}
}
