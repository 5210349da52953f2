package scan_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

var rackNames = []string{"a.tar", "b.tar.gz", "c.zip", "d.tar", "e.tgz.gz", "f.zip"}

// TestManyArchives: archives of all kinds form one tree; all nodes read them, each byte once.
func TestManyArchives(t *testing.T) {
	for nodes := 1; nodes <= 5; nodes++ {
		s := jobtest.NewRack(t, nodes, "/src/*.*", stagein.Options{})
		for i, n := range rackNames {
			s.Archive(n, n+"-", 10+i, "")
		}
		s.Check()
		size := int64(0)
		for _, n := range rackNames {
			size += int64(len(s.FS.Nodes["/src/"+n].Data))
		}
		if read := s.FS.Read.Load(); read != size || s.Sum.SourceBytes != size || s.Sum.SourceTotal != size {
			t.Errorf("%d nodes: %d bytes of %d read, counted %d of %d", nodes, read, size, s.Sum.SourceBytes, s.Sum.SourceTotal)
		}
		if want := min(nodes, len(rackNames)); len(s.Plan.Parts) != want {
			t.Errorf("%d nodes: %d parts, want %d", nodes, len(s.Plan.Parts), want)
		}
	}
}

func TestApart(t *testing.T) {
	s := jobtest.NewRack(t, 3, "/src/*", stagein.Options{Unpack: stagein.UnpackApart})
	for _, n := range []string{"a.tar", "b.tar.gz", "c.zip"} {
		s.Archive(n, "same-", 5, strings.SplitN(n, ".", 2)[0])
	}
	s.Check()
	s = jobtest.NewRack(t, 3, "/src/*", stagein.Options{})
	s.Archive("a.tar", "same-", 5, "")
	s.Archive("b.zip", "same-", 5, "")
	s.Fails("same-0", "duplicate")
}

// TestScannedArchives: several tars, whole or in part, are scanned and filled on request, with the same content as in a
// single pass.
func TestScannedArchives(t *testing.T) {
	names := []string{"a.tar", "b.tar", "c.tar"}
	stock := func(o stagein.Options, n int) *jobtest.Rack {
		o.Fill = stagein.Order{Kind: stagein.OrderSource}
		s := jobtest.NewRack(t, 3, "/src/*.tar", o)
		for i, name := range names {
			under := ""
			if o.Unpack == stagein.UnpackApart {
				under = name[:1]
			}
			s.Archive(name, "d/m-"+name[:1], n+i, under)
		}
		return s
	}
	scanned := func(s *jobtest.Rack) {
		t.Helper()
		if s.Plan != nil {
			t.Error("was not scanned")
		}
	}
	keep := func(s *jobtest.Rack, want func(path string) bool) {
		maps.DeleteFunc(s.Want, func(k, _ string) bool { return !want(k) })
	}
	for _, n := range []int{1, 7, 40} {
		s := stock(stagein.Options{}, n)
		s.Check()
		scanned(s)
		s = stock(stagein.Options{Unpack: stagein.UnpackApart}, n)
		s.Check()
		scanned(s)
		for p := range s.Want {
			if !strings.Contains(p, "/d/m-") {
				t.Errorf("%q is not apart", p)
			}
		}
	}
	s := stock(stagein.Options{Include: []source.Name{"m-a*", "m-c*"}, Exclude: []source.Name{"d/m-a1"}}, 4)
	keep(s, func(p string) bool { return !strings.HasPrefix(p, "d/m-b") && p != "d/m-a1" })
	s.Check()
	scanned(s)
	s = stock(stagein.Options{Limit: 6}, 4)
	keep(s, func(p string) bool { return p < "d/m-b2" }) // the first archives, in order
	s.Check()
	scanned(s)
	s = stock(stagein.Options{List: "/list"}, 4)
	s.FS.Add("/list", source.TypeRegular|0o600, []byte("d/m-a2\nd/m-c5\n"))
	keep(s, func(p string) bool { return p == "d/m-a2" || p == "d/m-c5" })
	s.Check()
	scanned(s)
	s.FS.Add("/list", source.TypeRegular|0o600, []byte("d/m-a2\nd/none\n"))
	s.Fails("1 of the paths in /list", "d/none")
	stock(stagein.Options{Include: []source.Name{"none"}}, 2).Fails("no file is selected")
	s = stock(stagein.Options{}, 3)
	s.Archive("d.tar.gz", "z", 3, "")
	s.Path = "/src/*"
	if s.Check(); s.Plan == nil {
		t.Error("a compressed tar was scanned")
	}
	size := int64(0)
	for _, n := range []string{"a.tar", "b.tar", "c.tar", "d.tar.gz"} {
		size += int64(len(s.FS.Nodes["/src/"+n].Data))
	}
	if read := s.FS.Read.Load(); read != s.Sum.SourceBytes || read > size+4*source.BlockSize {
		t.Errorf("%d bytes of %d read, %d counted", read, size, s.Sum.SourceBytes)
	}
}

// TestManyKeptOpen: a dataset of very many archives does not keep all of them open.
func TestManyKeptOpen(t *testing.T) {
	s := jobtest.NewRack(t, 2, "/src/*.tar", stagein.Options{Fill: stagein.Order{Kind: stagein.OrderSource}})
	for i := range 2 * archive.KeptOpen {
		s.Archive(fmt.Sprintf("%02d.tar", i), fmt.Sprintf("m%02d-", i), 3, "")
	}
	s.Check()
	if most, open := s.FS.Most.Load(), s.FS.Opened.Load(); most >= 2*archive.KeptOpen || open != 0 {
		t.Errorf("%d archives were open at a time, %d are in the end", most, open)
	}
}

func TestKeptAsFiles(t *testing.T) {
	for pattern, under := range map[string]string{"/src/{0..2}.tar": "", "/src/*/x.tar": "*/x.tar", "/src/1.tar": "1.tar"} {
		s := jobtest.NewRack(t, 3, pattern, stagein.Options{Unpack: stagein.UnpackNo})
		for i := range 3 {
			name := fmt.Sprintf("%d.tar", i)
			s.Archive(name, "m", 3, "")
			s.FS.Add(fmt.Sprintf("/src/%d", i), source.TypeDir|0o755, nil)
			s.FS.Add(fmt.Sprintf("/src/%d/x.tar", i), source.TypeRegular|0o644, []byte(name))
		}
		clear(s.Want)
		for i := range 3 {
			switch under {
			case "":
				s.Want[fmt.Sprintf("%d.tar", i)] = string(s.FS.Nodes[fmt.Sprintf("/src/%d.tar", i)].Data)
			case "1.tar":
				s.Want["1.tar"] = string(s.FS.Nodes["/src/1.tar"].Data)
			default:
				s.Want[fmt.Sprintf("%d/x.tar", i)] = fmt.Sprintf("%d.tar", i)
			}
		}
		s.Check()
	}
}

// TestSelected: list, patterns and limit select from archives and from directories.
func TestSelected(t *testing.T) {
	list := func(s *jobtest.Rack, text string) { s.FS.Add("/list", source.TypeRegular|0o600, []byte(text)) }
	for _, kind := range []string{"a.tar", "a.tar.gz", "a.zip", ""} {
		shelf := func(o stagein.Options) *jobtest.Rack {
			s := jobtest.NewRack(t, 3, "/src/"+kind, o)
			if kind != "" {
				s.Archive(kind, "d/m", 12, "")
				return s
			}
			s.Path = "/src"
			s.FS.Add("/src/d", source.TypeDir|0o755, nil)
			for i := range 12 {
				s.Want[fmt.Sprintf("d/m%d", i)] = fmt.Sprint(i)
				s.FS.Add(fmt.Sprintf("/src/d/m%d", i), source.TypeRegular|0o644, []byte(fmt.Sprint(i)))
			}
			return s
		}
		only := func(s *jobtest.Rack, want ...string) {
			t.Helper()
			maps.DeleteFunc(s.Want, func(k, _ string) bool { return !slices.Contains(want, k) })
			s.Check()
		}
		s := shelf(stagein.Options{Include: []source.Name{"m1*"}, Exclude: []source.Name{"d/m10"}})
		only(s, "d/m1", "d/m11")
		s = shelf(stagein.Options{List: "/list"})
		list(s, "d/m3\n./d/m7\n")
		only(s, "d/m3", "d/m7")
		s = shelf(stagein.Options{Limit: 4})
		if got := s.Files(); len(got) != 4 {
			t.Errorf("%s: limit 4 is %q", kind, slices.Sorted(maps.Keys(got)))
		}
		s = shelf(stagein.Options{List: "/none"})
		s.Fails("/none", "no such file")
	}
	s := jobtest.NewRack(t, 2, "/src", stagein.Options{List: "/list"})
	s.FS.Add("/src/a", source.TypeRegular|0o600, nil)
	list(s, "a\nb\nc/d\n")
	s.Fails("2 of the paths in /list", `"b" "c/d"`, "on-error=skip")
	s.Opts.OnError = stagein.OnErrorSkip
	s.Want["a"] = ""
	s.Check()
	if len(s.Skips) != 2 {
		t.Errorf("left out: %+v, want b and c/d", s.Skips)
	}
}

func TestSourcesRefused(t *testing.T) {
	s := jobtest.NewRack(t, 2, "/src/*.tar", stagein.Options{})
	s.Fails("/src/*.tar", "matches nothing")
	s.Archive("a.tar", "a", 2, "")
	s.FS.Add("/src/b.tar", source.TypeDir|0o755, nil)
	s.Fails("/src/b.tar", "unpack=no")
	s = jobtest.NewRack(t, 2, "/src/a.tar", stagein.Options{Include: []source.Name{"nothing*"}})
	s.Archive("a.tar", "a", 2, "")
	if got := s.Files(); len(got) != 0 {
		t.Errorf("nothing is wanted, got %v", got)
	}
}

// TestListedIsNotThere: names of the list that no archive contains are reported, for every kind of archive, scanned or
// read in a single pass; with on-error=skip they are left out and named. Archives beyond a limit are not searched.
func TestListedIsNotThere(t *testing.T) {
	for _, names := range [][]string{{"a.tar"}, {"b.tar.gz"}, {"c.zip"}, {"a.tar", "b.tar.gz", "c.zip"}} {
		for _, fill := range []string{"", stagein.OrderSource} {
			fresh := func(o stagein.Options) *jobtest.Rack {
				o.List, o.Fill.Kind = "/list", fill
				s := jobtest.NewRack(t, 3, "/src/*", o)
				s.FS.Add("/list", source.TypeRegular|0o600, []byte("./m0-1\nm0-3\nnot/there\n"))
				for i, name := range names {
					s.Archive(name, fmt.Sprintf("m%d-", i), 5, "")
				}
				for p := range s.Want {
					if p != "m0-1" && p != "m0-3" {
						delete(s.Want, p)
					}
				}
				return s
			}
			t.Run(fmt.Sprint(names, fill), func(t *testing.T) {
				fresh(stagein.Options{}).Fails("stage-in of /src/", ": 1 of the paths in /list not found in the source", `"not/there"`, "correct the list")
				fresh(stagein.Options{OnError: stagein.OnErrorSkip}).Skipped("not/there: /list lists it")
				if fill != "" {
					return // a scan knows all members
				}
				if got := fresh(stagein.Options{Limit: 1}).Files(); len(got) != 1 {
					t.Errorf("%d files, want one", len(got))
				}
			})
		}
	}
}

// TestSkip: with on-error=skip, bad members are counted and named, all others are present, and no surplus object is
// stored; without it the dataset fails.
func TestSkip(t *testing.T) {
	both := func(pattern, text string, fill func(s *jobtest.Rack), parts ...string) {
		t.Helper()
		s := jobtest.NewRack(t, 3, pattern, stagein.Options{})
		fill(s)
		s.Fails(text)
		s = jobtest.NewRack(t, 3, pattern, stagein.Options{OnError: stagein.OnErrorSkip})
		fill(s)
		s.Skipped(parts...)
	}
	both("/src", "/src/", func(s *jobtest.Rack) {
		s.FS.Add("/src/good", source.TypeRegular|0o600, []byte("good"))
		s.FS.Add("/src/secret", source.TypeRegular, []byte("no")).Err = syscall.EACCES
		s.FS.Add("/src/fifo", source.TypeFIFO|0o600, nil)
		s.Want["good"] = "good"
		s.FS.Add("/src/closed", source.TypeDir, nil).Err = syscall.EACCES
	}, "/src/secret: ", "/src/fifo: ", "/src/closed: ")
	bad := func(name string, typ byte) stageintest.Member {
		return stageintest.Member{Header: tar.Header{Name: name, Typeflag: typ}}
	}
	both("/src/a.tar", "at offset", func(s *jobtest.Rack) {
		ms := []stageintest.Member{stageintest.TarFile("1", []byte("one")), bad("dev", tar.TypeChar), bad("fifo", tar.TypeFifo), stageintest.TarFile("/abs", []byte("x")), stageintest.TarFile("2", []byte("two")), stageintest.TarFile("../up", []byte("y")), stageintest.TarFile("3", nil)}
		s.FS.Add("/src/a.tar", source.TypeRegular|0o600, stageintest.WriteTar(s.T, tar.FormatPAX, ms))
		s.Want["1"], s.Want["2"], s.Want["3"] = "one", "two", ""
	}, "dev: ", "fifo: ", "/abs: ", "../up: ")
	both("/src/a.zip", "at offset", func(s *jobtest.Rack) {
		z := stageintest.WriteZip(s.T, "", stageintest.ZipFile("1", []byte("one")), stageintest.ZipFile("bad", bytes.Repeat([]byte("damaged"), 999)), stageintest.ZipFile("2", []byte("two")))
		at := bytes.Index(z, []byte("bad")) + 20
		z[at] ^= 0x55
		s.FS.Add("/src/a.zip", source.TypeRegular|0o600, z)
		s.Want["1"], s.Want["2"] = "one", "two"
	}, "bad: ")
	both("/src/a.zip", "at offset", func(s *jobtest.Rack) {
		s.FS.Add("/src/a.zip", source.TypeRegular|0o600, stageintest.WriteZip(s.T, "", stageintest.ZipFile("1", []byte("one")), stageintest.ZipPipe("pipe"), stageintest.ZipFile("../up", []byte("y")), stageintest.ZipFile("2", []byte("two")), stageintest.ZipFile("1", []byte("again"))))
		s.Want["1"], s.Want["2"] = "again", "two"
	}, "pipe: ", "../up: ", "1: ")
}

// TestUnwantedIsNotRefused: a member that cannot be staged, or read, does not fail a dataset that does not select it.
func TestUnwantedIsNotRefused(t *testing.T) {
	bad := func(name string, typ byte) stageintest.Member {
		return stageintest.Member{Header: tar.Header{Name: name, Typeflag: typ}}
	}
	members := []stageintest.Member{stageintest.TarFile("1", []byte("one")), bad("x-fifo", tar.TypeFifo), stageintest.TarFile("/x-abs", []byte("no")), stageintest.TarFile("2", bytes.Repeat([]byte("two"), 9000))}
	for _, o := range []stagein.Options{
		{Exclude: []source.Name{"x-*"}},
		{Include: []source.Name{"1", "2"}},
		{List: "/list"},
		{Exclude: []source.Name{"x-*"}, Fill: stagein.Order{Kind: stagein.OrderSource}}, // is scanned
		{List: "/list", Fill: stagein.Order{Kind: stagein.OrderSource}},
		{}, // the error names the remedy
		{Fill: stagein.Order{Kind: stagein.OrderSource}}, // likewise
	} {
		for kind, archive := range map[string][]byte{
			"tar":    stageintest.WriteTar(t, tar.FormatPAX, members),
			"tar.gz": stageintest.PackGzip(t, stageintest.WriteTar(t, tar.FormatPAX, members)),
			"zip": stageintest.WriteZip(t, "", stageintest.ZipFile("1", members[0].Data), stageintest.ZipPipe("x-1"),
				stageintest.ZipFile("/x-2", []byte("no")), stageintest.ZipFile("2", members[3].Data)),
			"dir": nil,
		} {
			s := jobtest.NewRack(t, 3, "/src/a."+kind, o)
			s.FS.Add("/list", source.TypeRegular|0o600, []byte("1\n2\n"))
			s.Want["1"], s.Want["2"] = "one", string(members[3].Data)
			s.FS.Add("/src/a."+kind, source.TypeRegular|0o600, archive)
			if archive == nil {
				s.FS.Add("/src/a.dir", source.TypeDir|0o755, nil)
				s.FS.Add("/src/a.dir/1", source.TypeRegular|0o644, []byte("one"))
				s.FS.Add("/src/a.dir/2", source.TypeRegular|0o644, members[3].Data)
				s.FS.Add("/src/a.dir/x-fifo", source.TypeFIFO|0o600, nil)
				if len(o.Include) == 0 { // else the directory might contain a selected name
					s.FS.Add("/src/a.dir/x-closed", source.TypeDir, nil).Err = syscall.EACCES
				}
			}
			t.Run(fmt.Sprintf("%s/%+v", kind, o), func(t *testing.T) {
				if s.T = t; !o.Selects() {
					s.Fails("x-", "exclude= or on-error=skip")
					return
				}
				s.Check()
			})
		}
	}
}

// TestExcludedIsNotMissing: a name in the list that a pattern excludes does not count as missing.
func TestExcludedIsNotMissing(t *testing.T) {
	s := jobtest.NewRack(t, 2, "/src", stagein.Options{List: "/list", Exclude: []source.Name{"x-*"}})
	s.FS.Add("/list", source.TypeRegular|0o600, []byte("1\nx-closed\n"))
	s.FS.Add("/src/1", source.TypeRegular|0o644, []byte("one"))
	s.FS.Add("/src/x-closed", source.TypeDir, nil).Err = syscall.EACCES
	s.Want["1"] = "one"
	s.Check()
}

// TestDirectoryKept: a directory is staged with its files, even with unpack=no.
func TestDirectoryKept(t *testing.T) {
	s := jobtest.NewRack(t, 2, "/src", stagein.Options{Unpack: stagein.UnpackNo})
	s.Archive("a.tar", "a", 3, "")
	s.Want = map[string]string{"a.tar": string(s.FS.Nodes["/src/a.tar"].Data)}
	s.Check()
	s = jobtest.NewRack(t, 2, "/src/*", stagein.Options{Unpack: stagein.UnpackNo})
	s.FS.Add("/src/l.tar", source.TypeSymlink|0o777, nil).Target = "/elsewhere"
	s.Archive("a.tar", "a", 3, "")
	s.Fails("/src/l.tar", "symbolic link")
}

// TestSkipCut: members before the cut of a truncated archive are present.
func TestSkipCut(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 500)
	whole := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("1", data), stageintest.TarFile("2", data), stageintest.TarFile("3", data)})
	for cut, want := range map[int]int{len(whole) - 1024: 3, 2*5632 + 512: 2, 2*5632 + 700: 2, 5632 + 3000: 1, 5632: 1, 700: 0} {
		s := jobtest.NewRack(t, 2, "/src/*.tar", stagein.Options{OnError: stagein.OnErrorSkip})
		s.Archive("b.tar", "b", 2, "")
		s.FS.Add("/src/a.tar", source.TypeRegular|0o600, whole[:cut])
		for i := range want {
			s.Want[fmt.Sprint(i+1)] = string(data)
		}
		s.Check()
		if isCut := cut%5632 != 0 && want < 3; len(s.Skips) != 0 != isCut {
			t.Errorf("cut at %d: left out %+v", cut, s.Skips)
		}
	}
}
