package scan_test

import (
	"archive/tar"
	"fmt"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// nest returns a rack with a tar of tars: class tars, one of them in a directory, one with a root and links, a file
// that has only the name of a tar, and one file beside them.
func nest(t *testing.T, nodes int, o stagein.Options) *jobtest.Rack {
	t.Helper()
	r := stageintest.Rand(t)
	o.Unpack = stagein.UnpackNested
	s := jobtest.NewRack(t, nodes, "/src/set.tar", o)
	var outer []stageintest.Member
	for i, name := range []string{"n01", "n02", "more/n03"} {
		var inner []stageintest.Member
		for k := range 5 + 10*i {
			data := stageintest.RandBytes(r, 1+r.IntN(4000))
			p := fmt.Sprintf("%s_%d.JPEG", name[len(name)-3:], k)
			inner = append(inner, stageintest.TarFile(p, data))
			s.Want[name+"/"+p] = string(data)
		}
		outer = append(outer, stageintest.TarFile(name+".tar", stageintest.WriteTar(t, tar.FormatUSTAR, inner)))
	}
	linked := []stageintest.Member{
		{Header: tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700}}, stageintest.TarFile("./x", []byte("linked")),
		{Header: tar.Header{Name: "./y", Linkname: "./x", Typeflag: tar.TypeLink}},
	}
	s.Want["linked/x"] = "linked"
	outer = append(outer, stageintest.TarFile("linked.tar", stageintest.WriteTar(t, tar.FormatUSTAR, linked)))
	for p, data := range map[string]string{"odd.tar": strings.Repeat("no tar", 200), "tiny.tar": "x", "README": "read", "deep/.tar": strings.Repeat("y", 600)} {
		outer = append(outer, stageintest.TarFile(p, []byte(data)))
		s.Want[p] = data
	}
	s.FS.Add("/src/set.tar", source.TypeRegular|0o644, stageintest.WriteTar(t, tar.FormatPAX, outer))
	return s
}

// TestNested: members of a tar inside a tar are in a directory named after the inner tar.
func TestNested(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		s := nest(t, nodes, stagein.Options{})
		s.Swarm = jobtest.NewSwarm(s.Job)
		tree := s.Staged()
		for p, want := range s.Want {
			if tree[p].Data != want {
				t.Errorf("%q has %d bytes, want %d", p, len(tree[p].Data), len(want))
			}
		}
		if e := tree["linked"]; e.Mode != source.TypeDir|0o700 {
			t.Errorf("the root of a tar is %o", e.Mode)
		}
		if e := tree["linked/y"]; e.Link != "linked/x" {
			t.Errorf("a link in a tar is %+v", e)
		}
		for _, p := range []string{"n01.tar", "linked.tar"} {
			if _, ok := tree[p]; ok {
				t.Errorf("%q is there", p)
			}
		}
		if read := s.FS.Read.Load(); read != s.Sum.SourceBytes {
			t.Errorf("%d bytes were read, %d counted", read, s.Sum.SourceBytes)
		}
	}
}

// TestNestedInPart: the selection applies to the members of the inner tars.
func TestNestedInPart(t *testing.T) {
	s := nest(t, 2, stagein.Options{Include: []source.Name{"n02"}})
	for p := range s.Want {
		if !strings.HasPrefix(p, "n02/") {
			delete(s.Want, p)
		}
	}
	s.Check()
}

// TestNestedUnwanted: a member of an inner tar that cannot be staged, or is damaged, does not affect a dataset that
// does not select it.
func TestNestedUnwanted(t *testing.T) {
	fifo := stageintest.Member{Header: tar.Header{Name: "./x-fifo", Typeflag: tar.TypeFifo}}
	cut := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("a", make([]byte, 2000)), stageintest.TarFile("b", make([]byte, 5000))})[:4000]
	for name, o := range map[string]stagein.Options{
		"by name":   {Exclude: []source.Name{"x-*"}},
		"by path":   {Exclude: []source.Name{"in/x-fifo", "x-cut"}},
		"by list":   {List: "/list"},
		"others":    {Include: []source.Name{"good", "in/[12]"}},
		"its place": {Exclude: []source.Name{"in/x-*", "./x-fifo", "x-cut"}},
		"none":      {},
		"elsewhere": {Exclude: []source.Name{"x-cut", "out/x-fifo"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := nest(t, 2, o)
			s.Want = map[string]string{"good": "good", "in/1": "one", "in/2": "two"}
			s.FS.Add("/list", source.TypeRegular|0o600, []byte("good\nin/1\nin/2\n"))
			members := []stageintest.Member{stageintest.TarFile("good", []byte("good")),
				stageintest.TarFile("in.tar", stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("./1", []byte("one")), fifo, stageintest.TarFile("2", []byte("two"))}))}
			if !strings.HasPrefix(name, "by list") && name != "others" {
				members = append(members, stageintest.TarFile("x-cut.tar", cut))
			}
			s.FS.Add("/src/set.tar", source.TypeRegular|0o644, stageintest.WriteTar(t, tar.FormatUSTAR, members))
			switch name {
			case "none":
				s.Fails("/src/set.tar", "member ")
			case "elsewhere":
				s.Fails("/src/set.tar", "member in.tar", "x-fifo", "FIFO: leave it out by exclude=: invalid") // on-error=skip does not apply
			default:
				s.Check()
			}
		})
	}
}

// TestNestedRefused: faulty inner tars and unsupported requests are refused.
func TestNestedRefused(t *testing.T) {
	s := nest(t, 2, stagein.Options{})
	cut := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("a", make([]byte, 2000)), stageintest.TarFile("b", make([]byte, 5000))})[:4000]
	s.FS.Add("/src/set.tar", source.TypeRegular|0o644, stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("n04.tar", cut)}))
	s.Fails("/src/set.tar", "member n04.tar", "truncated")
	s.FS.Add("/src/set.tar", source.TypeRegular|0o644, stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{
		stageintest.TarFile("n05.tar", stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("a/../../b", nil)})),
	}))
	s.Fails("/src/set.tar", "member n05.tar", "..")
	s.Path = "/src"
	s.Fails("/src", "is a directory")
	s.Archive("set.zip", "m", 3, "")
	s.Path = "/src/set.zip"
	s.Fails("set.zip", "leave unpack=nested out")
	s = nest(t, 2, stagein.Options{OnError: stagein.OnErrorSkip})
	s.Fails("unpack=nested and on-error=skip")
}
