package stagein

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// rack is a directory /src with archives of small files, and what is in them.
type rack struct {
	*job
	t    *testing.T
	want map[string]string // content by path
}

func newRack(t *testing.T, nodes int, pattern string, o Options) *rack {
	s := &rack{t: t, want: map[string]string{}}
	s.job = &job{fs: stageintest.NewFS(), nodes: nodes, path: pattern, stripe: 1 << 20, opts: o}
	s.lim = limits{piece: 2048, carry: 1024}
	for _, d := range []string{"/", "/src"} {
		s.fs.Add(d, source.TypeDir|0o755, nil)
	}
	return s
}

// archive puts an archive with n members prefix0, prefix1, … on the rack; they
// are wanted below under. Its ending says what it is.
func (s *rack) archive(name, prefix string, n int, under string) {
	s.t.Helper()
	var members []stageintest.Member
	for i := range n {
		p, data := fmt.Sprint(prefix, i), fmt.Sprintf("%s of %s", strings.Repeat("x", i*97%3000), name)
		members = append(members, stageintest.TarFile(p, []byte(data)))
		s.want[path.Join(under, p)] = data
	}
	s.fs.Add("/src/"+name, source.TypeRegular|0o644, stageintest.PackAs(s.t, name, members))
}

// staged stages, and returns what became of it.
func (s *rack) staged() map[string]stageintest.Entry {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tree, err := s.run(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return tree
}

// files is the content of what became files.
func (s *rack) files() map[string]string {
	s.t.Helper()
	got := map[string]string{}
	for p, e := range s.staged() {
		if e.Mode&source.TypeMask == source.TypeRegular {
			got[p] = e.Data
		}
	}
	return got
}

func (s *rack) check() {
	s.t.Helper()
	if got := s.files(); !maps.Equal(got, s.want) {
		s.t.Errorf("got %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(s.want)))
	}
}

// fails wants an error with all of parts.
func (s *rack) fails(parts ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := s.run(ctx); !stageintest.ErrorHas(err, parts...) {
		s.t.Errorf("%v, want an error with %q", err, parts)
	}
}

var rackNames = []string{"a.tar", "b.tar.gz", "c.zip", "d.tar", "e.tgz.gz", "f.zip"}

// TestManyArchives: archives of all kinds become one tree, read by all nodes,
// each byte once.
func TestManyArchives(t *testing.T) {
	for nodes := 1; nodes <= 5; nodes++ {
		s := newRack(t, nodes, "/src/*.*", Options{})
		for i, n := range rackNames {
			s.archive(n, n+"-", 10+i, "")
		}
		s.check()
		size := int64(0)
		for _, n := range rackNames {
			size += int64(len(s.fs.Nodes["/src/"+n].Data))
		}
		if read := s.fs.Read.Load(); read != size || s.sum.SourceBytes != size || s.sum.SourceTotal != size {
			t.Errorf("%d nodes: %d bytes of %d read, counted %d of %d", nodes, read, size, s.sum.SourceBytes, s.sum.SourceTotal)
		}
		if want := min(nodes, len(rackNames)); len(s.plan.Parts) != want {
			t.Errorf("%d nodes: %d parts, want %d", nodes, len(s.plan.Parts), want)
		}
	}
}

func TestApart(t *testing.T) {
	s := newRack(t, 3, "/src/*", Options{Unpack: UnpackApart})
	for _, n := range []string{"a.tar", "b.tar.gz", "c.zip"} {
		s.archive(n, "same-", 5, strings.SplitN(n, ".", 2)[0])
	}
	s.check()
	s = newRack(t, 3, "/src/*", Options{})
	s.archive("a.tar", "same-", 5, "")
	s.archive("b.zip", "same-", 5, "")
	s.fails("same-0", "twice")
}

// TestScannedArchives: several tars, whole or in part, are scanned and filled when
// that is asked for, and are what they are when they are read through.
func TestScannedArchives(t *testing.T) {
	names := []string{"a.tar", "b.tar", "c.tar"}
	stock := func(o Options, n int) *rack {
		o.Fill = Order{Kind: OrderSource}
		s := newRack(t, 3, "/src/*.tar", o)
		for i, name := range names {
			under := ""
			if o.Unpack == UnpackApart {
				under = name[:1]
			}
			s.archive(name, "d/m-"+name[:1], n+i, under)
		}
		return s
	}
	scanned := func(s *rack) {
		t.Helper()
		if s.plan != nil {
			t.Error("was not scanned")
		}
	}
	keep := func(s *rack, want func(path string) bool) {
		maps.DeleteFunc(s.want, func(k, _ string) bool { return !want(k) })
	}
	for _, n := range []int{1, 7, 40} {
		s := stock(Options{}, n)
		s.check()
		scanned(s)
		s = stock(Options{Unpack: UnpackApart}, n)
		s.check()
		scanned(s)
		for p := range s.want {
			if !strings.Contains(p, "/d/m-") {
				t.Errorf("%q is not apart", p)
			}
		}
	}
	s := stock(Options{Include: []source.Name{"m-a*", "m-c*"}, Exclude: []source.Name{"d/m-a1"}}, 4)
	keep(s, func(p string) bool { return !strings.HasPrefix(p, "d/m-b") && p != "d/m-a1" })
	s.check()
	scanned(s)
	s = stock(Options{Limit: 6}, 4)
	keep(s, func(p string) bool { return p < "d/m-b2" }) // the archives in their order
	s.check()
	scanned(s)
	s = stock(Options{List: "/list"}, 4)
	s.fs.Add("/list", source.TypeRegular|0o600, []byte("d/m-a2\nd/m-c5\n"))
	keep(s, func(p string) bool { return p == "d/m-a2" || p == "d/m-c5" })
	s.check()
	scanned(s)
	s.fs.Add("/list", source.TypeRegular|0o600, []byte("d/m-a2\nd/none\n"))
	s.fails("1 of what /list lists", "d/none")
	stock(Options{Include: []source.Name{"none"}}, 2).fails("nothing of it is wanted")
	s = stock(Options{}, 3)
	s.archive("d.tar.gz", "z", 3, "")
	s.path = "/src/*"
	if s.check(); s.plan == nil {
		t.Error("a compressed tar was scanned")
	}
	size := int64(0)
	for _, n := range []string{"a.tar", "b.tar", "c.tar", "d.tar.gz"} {
		size += int64(len(s.fs.Nodes["/src/"+n].Data))
	}
	if read := s.fs.Read.Load(); read != s.sum.SourceBytes || read > size+4*source.BlockSize {
		t.Errorf("%d bytes of %d read, %d counted", read, size, s.sum.SourceBytes)
	}
}

// TestManyKeptOpen: a dataset of very many archives does not hold all of them open.
func TestManyKeptOpen(t *testing.T) {
	s := newRack(t, 2, "/src/*.tar", Options{Fill: Order{Kind: OrderSource}})
	for i := range 2 * archive.KeptOpen {
		s.archive(fmt.Sprintf("%02d.tar", i), fmt.Sprintf("m%02d-", i), 3, "")
	}
	s.check()
	if most, open := s.fs.Most.Load(), s.fs.Opened.Load(); most >= 2*archive.KeptOpen || open != 0 {
		t.Errorf("%d archives were open at a time, %d are in the end", most, open)
	}
}

func TestKeptAsFiles(t *testing.T) {
	for pattern, under := range map[string]string{"/src/{0..2}.tar": "", "/src/*/x.tar": "*/x.tar", "/src/1.tar": "1.tar"} {
		s := newRack(t, 3, pattern, Options{Unpack: UnpackNo})
		for i := range 3 {
			name := fmt.Sprintf("%d.tar", i)
			s.archive(name, "m", 3, "")
			s.fs.Add(fmt.Sprintf("/src/%d", i), source.TypeDir|0o755, nil)
			s.fs.Add(fmt.Sprintf("/src/%d/x.tar", i), source.TypeRegular|0o644, []byte(name))
		}
		clear(s.want)
		for i := range 3 {
			switch under {
			case "":
				s.want[fmt.Sprintf("%d.tar", i)] = string(s.fs.Nodes[fmt.Sprintf("/src/%d.tar", i)].Data)
			case "1.tar":
				s.want["1.tar"] = string(s.fs.Nodes["/src/1.tar"].Data)
			default:
				s.want[fmt.Sprintf("%d/x.tar", i)] = fmt.Sprintf("%d.tar", i)
			}
		}
		s.check()
	}
}

// TestSelected: list, patterns and limit, of archives and of directories.
func TestSelected(t *testing.T) {
	list := func(s *rack, text string) { s.fs.Add("/list", source.TypeRegular|0o600, []byte(text)) }
	for _, kind := range []string{"a.tar", "a.tar.gz", "a.zip", ""} {
		shelf := func(o Options) *rack {
			s := newRack(t, 3, "/src/"+kind, o)
			if kind != "" {
				s.archive(kind, "d/m", 12, "")
				return s
			}
			s.path = "/src"
			s.fs.Add("/src/d", source.TypeDir|0o755, nil)
			for i := range 12 {
				s.want[fmt.Sprintf("d/m%d", i)] = fmt.Sprint(i)
				s.fs.Add(fmt.Sprintf("/src/d/m%d", i), source.TypeRegular|0o644, []byte(fmt.Sprint(i)))
			}
			return s
		}
		only := func(s *rack, want ...string) {
			t.Helper()
			maps.DeleteFunc(s.want, func(k, _ string) bool { return !slices.Contains(want, k) })
			s.check()
		}
		s := shelf(Options{Include: []source.Name{"m1*"}, Exclude: []source.Name{"d/m10"}})
		only(s, "d/m1", "d/m11")
		s = shelf(Options{List: "/list"})
		list(s, "d/m3\n./d/m7\n")
		only(s, "d/m3", "d/m7")
		s = shelf(Options{Limit: 4})
		if got := s.files(); len(got) != 4 {
			t.Errorf("%s: limit 4 is %q", kind, slices.Sorted(maps.Keys(got)))
		}
		s = shelf(Options{List: "/none"})
		s.fails("/none", "no such file")
	}
	s := newRack(t, 2, "/src", Options{List: "/list"})
	s.fs.Add("/src/a", source.TypeRegular|0o600, nil)
	list(s, "a\nb\nc/d\n")
	s.fails("2 of what /list lists", `"b" "c/d"`, "on-error=skip")
	s.opts.OnError = OnErrorSkip
	s.want["a"] = ""
	s.check()
	if len(s.skips) != 2 {
		t.Errorf("left out: %+v, want b and c/d", s.skips)
	}
}

func TestSourcesRefused(t *testing.T) {
	s := newRack(t, 2, "/src/*.tar", Options{})
	s.fails("/src/*.tar", "matches nothing")
	s.archive("a.tar", "a", 2, "")
	s.fs.Add("/src/b.tar", source.TypeDir|0o755, nil)
	s.fails("/src/b.tar", "unpack=no")
	s = newRack(t, 2, "/src/a.tar", Options{Include: []source.Name{"nothing*"}})
	s.archive("a.tar", "a", 2, "")
	if got := s.files(); len(got) != 0 {
		t.Errorf("nothing is wanted, got %v", got)
	}
}

// TestListedIsNotThere: what a list has and no archive is told, whatever the archives
// are and whether they are scanned or read to be known; with on-error=skip it is
// left out and named. What a limit leaves unread is not known to be missing.
func TestListedIsNotThere(t *testing.T) {
	for _, names := range [][]string{{"a.tar"}, {"b.tar.gz"}, {"c.zip"}, {"a.tar", "b.tar.gz", "c.zip"}} {
		for _, fill := range []string{"", OrderSource} {
			fresh := func(o Options) *rack {
				o.List, o.Fill.Kind = "/list", fill
				s := newRack(t, 3, "/src/*", o)
				s.fs.Add("/list", source.TypeRegular|0o600, []byte("./m0-1\nm0-3\nnot/there\n"))
				for i, name := range names {
					s.archive(name, fmt.Sprintf("m%d-", i), 5, "")
				}
				for p := range s.want {
					if p != "m0-1" && p != "m0-3" {
						delete(s.want, p)
					}
				}
				return s
			}
			t.Run(fmt.Sprint(names, fill), func(t *testing.T) {
				fresh(Options{}).fails("stage-in of /src/", ": 1 of what /list lists is not there", `"not/there"`, "mend the list")
				fresh(Options{OnError: OnErrorSkip}).skipped("not/there: /list lists it")
				if fill != "" {
					return // who scans knows all that is there
				}
				if got := fresh(Options{Limit: 1}).files(); len(got) != 1 {
					t.Errorf("%d files, want one", len(got))
				}
			})
		}
	}
}

// skipped wants what was left out to be these things, and all else to be there.
func (s *rack) skipped(parts ...string) {
	s.t.Helper()
	s.check()
	if len(s.skips) != len(parts) || s.sum.Skipped+int64(len(s.plan.Skips)) != int64(len(parts)) {
		s.t.Errorf("left out: %+v (%d counted), want %q", s.skips, s.sum.Skipped, parts)
		return
	}
	for _, p := range parts {
		if !slices.ContainsFunc(s.skips, func(k Skip) bool { return strings.Contains(string(k.Path)+": "+k.Error, p) }) {
			s.t.Errorf("left out: %+v, want one with %q", s.skips, p)
		}
	}
}

// TestSkip: with on-error=skip, what is bad is counted and named and all else is
// there, without an object too many; without it the dataset fails.
func TestSkip(t *testing.T) {
	both := func(pattern, text string, fill func(s *rack), parts ...string) {
		t.Helper()
		s := newRack(t, 3, pattern, Options{})
		fill(s)
		s.fails(text)
		s = newRack(t, 3, pattern, Options{OnError: OnErrorSkip})
		fill(s)
		s.skipped(parts...)
	}
	both("/src", "/src/", func(s *rack) {
		s.fs.Add("/src/good", source.TypeRegular|0o600, []byte("good"))
		s.fs.Add("/src/secret", source.TypeRegular, []byte("no")).Err = syscall.EACCES
		s.fs.Add("/src/fifo", source.TypeFIFO|0o600, nil)
		s.want["good"] = "good"
		s.fs.Add("/src/closed", source.TypeDir, nil).Err = syscall.EACCES
	}, "/src/secret: ", "/src/fifo: ", "/src/closed: ")
	bad := func(name string, typ byte) stageintest.Member {
		return stageintest.Member{Header: tar.Header{Name: name, Typeflag: typ}}
	}
	both("/src/a.tar", "at offset", func(s *rack) {
		ms := []stageintest.Member{stageintest.TarFile("1", []byte("one")), bad("dev", tar.TypeChar), bad("fifo", tar.TypeFifo), stageintest.TarFile("/abs", []byte("x")), stageintest.TarFile("2", []byte("two")), stageintest.TarFile("../up", []byte("y")), stageintest.TarFile("3", nil)}
		s.fs.Add("/src/a.tar", source.TypeRegular|0o600, stageintest.WriteTar(s.t, tar.FormatPAX, ms))
		s.want["1"], s.want["2"], s.want["3"] = "one", "two", ""
	}, "dev: ", "fifo: ", "/abs: ", "../up: ")
	both("/src/a.zip", "at offset", func(s *rack) {
		z := stageintest.WriteZip(s.t, "", stageintest.ZipFile("1", []byte("one")), stageintest.ZipFile("bad", bytes.Repeat([]byte("damaged"), 999)), stageintest.ZipFile("2", []byte("two")))
		at := bytes.Index(z, []byte("bad")) + 20
		z[at] ^= 0x55
		s.fs.Add("/src/a.zip", source.TypeRegular|0o600, z)
		s.want["1"], s.want["2"] = "one", "two"
	}, "bad: ")
	both("/src/a.zip", "at offset", func(s *rack) {
		s.fs.Add("/src/a.zip", source.TypeRegular|0o600, stageintest.WriteZip(s.t, "", stageintest.ZipFile("1", []byte("one")), stageintest.ZipPipe("pipe"), stageintest.ZipFile("../up", []byte("y")), stageintest.ZipFile("2", []byte("two")), stageintest.ZipFile("1", []byte("again"))))
		s.want["1"], s.want["2"] = "again", "two"
	}, "pipe: ", "../up: ", "1: ")
}

// TestUnwantedIsNotRefused: what cannot be staged, or read, is no concern of a dataset
// that does not want it.
func TestUnwantedIsNotRefused(t *testing.T) {
	bad := func(name string, typ byte) stageintest.Member {
		return stageintest.Member{Header: tar.Header{Name: name, Typeflag: typ}}
	}
	members := []stageintest.Member{stageintest.TarFile("1", []byte("one")), bad("x-fifo", tar.TypeFifo), stageintest.TarFile("/x-abs", []byte("no")), stageintest.TarFile("2", bytes.Repeat([]byte("two"), 9000))}
	for _, o := range []Options{
		{Exclude: []source.Name{"x-*"}},
		{Include: []source.Name{"1", "2"}},
		{List: "/list"},
		{Exclude: []source.Name{"x-*"}, Fill: Order{Kind: OrderSource}}, // is scanned
		{List: "/list", Fill: Order{Kind: OrderSource}},
		{},                               // is told what can be done
		{Fill: Order{Kind: OrderSource}}, // likewise
	} {
		for kind, archive := range map[string][]byte{
			"tar":    stageintest.WriteTar(t, tar.FormatPAX, members),
			"tar.gz": stageintest.PackGzip(t, stageintest.WriteTar(t, tar.FormatPAX, members)),
			"zip": stageintest.WriteZip(t, "", stageintest.ZipFile("1", members[0].Data), stageintest.ZipPipe("x-1"),
				stageintest.ZipFile("/x-2", []byte("no")), stageintest.ZipFile("2", members[3].Data)),
			"dir": nil,
		} {
			s := newRack(t, 3, "/src/a."+kind, o)
			s.fs.Add("/list", source.TypeRegular|0o600, []byte("1\n2\n"))
			s.want["1"], s.want["2"] = "one", string(members[3].Data)
			s.fs.Add("/src/a."+kind, source.TypeRegular|0o600, archive)
			if archive == nil {
				s.fs.Add("/src/a.dir", source.TypeDir|0o755, nil)
				s.fs.Add("/src/a.dir/1", source.TypeRegular|0o644, []byte("one"))
				s.fs.Add("/src/a.dir/2", source.TypeRegular|0o644, members[3].Data)
				s.fs.Add("/src/a.dir/x-fifo", source.TypeFIFO|0o600, nil)
				if len(o.Include) == 0 { // it may have one of those names in it
					s.fs.Add("/src/a.dir/x-closed", source.TypeDir, nil).Err = syscall.EACCES
				}
			}
			t.Run(fmt.Sprintf("%s/%+v", kind, o), func(t *testing.T) {
				if s.t = t; !o.selects() {
					s.fails("x-", "exclude= or on-error=skip")
					return
				}
				s.check()
			})
		}
	}
}

// TestExcludedIsNotMissing: what a list has and a pattern excludes is not looked for.
func TestExcludedIsNotMissing(t *testing.T) {
	s := newRack(t, 2, "/src", Options{List: "/list", Exclude: []source.Name{"x-*"}})
	s.fs.Add("/list", source.TypeRegular|0o600, []byte("1\nx-closed\n"))
	s.fs.Add("/src/1", source.TypeRegular|0o644, []byte("one"))
	s.fs.Add("/src/x-closed", source.TypeDir, nil).Err = syscall.EACCES
	s.want["1"] = "one"
	s.check()
}

// TestDirectoryKept: a directory is what is in it, also with unpack=no.
func TestDirectoryKept(t *testing.T) {
	s := newRack(t, 2, "/src", Options{Unpack: UnpackNo})
	s.archive("a.tar", "a", 3, "")
	s.want = map[string]string{"a.tar": string(s.fs.Nodes["/src/a.tar"].Data)}
	s.check()
	s = newRack(t, 2, "/src/*", Options{Unpack: UnpackNo})
	s.fs.Add("/src/l.tar", source.TypeSymlink|0o777, nil).Target = "/elsewhere"
	s.archive("a.tar", "a", 3, "")
	s.fails("/src/l.tar", "symbolic link")
}

// TestSkipCut: of an archive that is cut, what is before the cut is there.
func TestSkipCut(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 500)
	whole := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("1", data), stageintest.TarFile("2", data), stageintest.TarFile("3", data)})
	for cut, want := range map[int]int{len(whole) - 1024: 3, 2*5632 + 512: 2, 2*5632 + 700: 2, 5632 + 3000: 1, 5632: 1, 700: 0} {
		s := newRack(t, 2, "/src/*.tar", Options{OnError: OnErrorSkip})
		s.archive("b.tar", "b", 2, "")
		s.fs.Add("/src/a.tar", source.TypeRegular|0o600, whole[:cut])
		for i := range want {
			s.want[fmt.Sprint(i+1)] = string(data)
		}
		s.check()
		if isCut := cut%5632 != 0 && want < 3; len(s.skips) != 0 != isCut {
			t.Errorf("cut at %d: left out %+v", cut, s.skips)
		}
	}
}
