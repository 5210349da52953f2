package model

import (
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	text := `m0 open h=1 path="a/\xff\n b" flags=O_RDWR|O_CREAT mode=0644
m1 pwrite h=1 off=-5 len=5000 seed=7
m2 lseek h=3 off=1 flags=SEEK_HOLE
m2 fallocate h=3 off=1 len=2 flags=KEEP_SIZE|PUNCH_HOLE
m0 rename path="a b" to="c\"=" flags=RENAME_NOREPLACE
m0 utimens path="" flags=AT_SYMLINK_NOFOLLOW seed=77
m0 copyrange h=1 to="2" off=0 len=9 seed=8
m0 close h=1
`
	script, err := Parse("# a comment\n\n  "+text, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := Format(script); got != text {
		t.Errorf("Format = %s, want %s", got, text)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{
		"m3 close h=1", "x0 close h=1", "m close h=1", "m0", "m0 dance h=1", "m0 close", "m0 close h=x", "m0 close h=1 h=2",
		`m0 stat path=a`, `m0 stat path="a`, `m0 rename path="a" to="b" flags=RENAME_NOT`, `m0 pread h=1 len=1 off=1`, "m0 mkdir path=\"a\" mode=99999",
	} {
		if script, err := Parse(line, 3); err == nil {
			t.Errorf("Parse(%q) = %v", line, script)
		} else if !strings.HasPrefix(err.Error(), "line 1: ") {
			t.Errorf("Parse(%q) = %v, want the line", line, err)
		}
	}
}

// TestGeneratedScripts: generated scripts are valid, and the same seed generates the same script.
func TestGeneratedScripts(t *testing.T) {
	var texts [2]string
	for i := range texts {
		f, g := NewFS(), NewGenerator(7, 3)
		var script []Op
		for range 2000 {
			script = append(script, g.Next(f))
			f.Do(script[len(script)-1])
		}
		texts[i] = Format(script)
	}
	if texts[0] != texts[1] {
		t.Error("one seed made two scripts")
	}
	script, err := Parse(texts[0], 3)
	if err != nil || Format(script) != texts[0] {
		t.Errorf("Parse of it: %v", err)
	}
	for _, k := range kindNames {
		if !strings.Contains(texts[0], " "+k+" ") {
			t.Errorf("no %s in 2000 steps", k)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("m0 open h=1 path=\"a\" flags=O_RDWR|64 mode=0644\nm1 lseek h=1 off=3 flags=SEEK_DATA\n")
	f.Fuzz(func(t *testing.T, text string) {
		script, err := Parse(text, 3)
		if err != nil {
			return
		}
		again, err := Parse(Format(script), 3)
		if err != nil || Format(again) != Format(script) {
			t.Errorf("Parse(Format(%q)): %v", text, err)
		}
		fs := NewFS()
		for _, o := range script {
			if o.Len < 1<<20 && o.Off < 1<<20 && o.Seed < 1<<20 {
				fs.Do(o)
			}
		}
	})
}
