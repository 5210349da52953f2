package stagein

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// rack is a directory /src with archives of small files, and what is in them.
type rack struct {
	*job
	t    *testing.T
	want map[string]string // content by path
}

func newRack(t *testing.T, nodes int, pattern string, o Options) *rack {
	s := &rack{t: t, want: map[string]string{}}
	s.job = &job{fs: newFS(), nodes: nodes, path: pattern, stripe: 1 << 20, opts: o}
	s.lim = limits{piece: 2048, carry: 1024}
	for _, d := range []string{"/", "/src"} {
		s.fs.add(d, source.TypeDir|0o755, nil)
	}
	return s
}

// archive puts an archive with n members prefix0, prefix1, … on the rack; they
// are wanted below under. Its ending says what it is.
func (s *rack) archive(name, prefix string, n int, under string) {
	s.t.Helper()
	var members []member
	for i := range n {
		p, data := fmt.Sprint(prefix, i), fmt.Sprintf("%s of %s", strings.Repeat("x", i*97%3000), name)
		members = append(members, file(p, []byte(data)))
		s.want[path.Join(under, p)] = data
	}
	s.fs.add("/src/"+name, source.TypeRegular|0o644, pack(s.t, name, members))
}

func pack(t *testing.T, name string, members []member) []byte {
	t.Helper()
	switch {
	case strings.HasSuffix(name, ".zip"):
		var z []zipped
		for _, m := range members {
			z = append(z, zipFile(m.Name, m.data))
		}
		return writeZip(t, "", z...)
	case strings.HasSuffix(name, ".gz"):
		return gzipped(t, writeTar(t, tar.FormatPAX, members))
	}
	return writeTar(t, tar.FormatPAX, members)
}

func gzipped(t *testing.T, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(plain)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// staged stages, and returns what became of it.
func (s *rack) staged() map[string]entry {
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
	if _, err := s.run(ctx); !errorHas(err, parts...) {
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
			size += int64(len(s.fs.nodes["/src/"+n].data))
		}
		if read := s.fs.read.Load(); read != size || s.sum.SourceBytes != size || s.sum.SourceTotal != size {
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
	s.fs.add("/list", source.TypeRegular|0o600, []byte("d/m-a2\nd/m-c5\n"))
	keep(s, func(p string) bool { return p == "d/m-a2" || p == "d/m-c5" })
	s.check()
	scanned(s)
	s.fs.add("/list", source.TypeRegular|0o600, []byte("d/m-a2\nd/none\n"))
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
		size += int64(len(s.fs.nodes["/src/"+n].data))
	}
	if read := s.fs.read.Load(); read != s.sum.SourceBytes || read > size+4*source.BlockSize {
		t.Errorf("%d bytes of %d read, %d counted", read, size, s.sum.SourceBytes)
	}
}

// TestManyKeptOpen: a dataset of very many archives does not hold all of them open.
func TestManyKeptOpen(t *testing.T) {
	s := newRack(t, 2, "/src/*.tar", Options{Fill: Order{Kind: OrderSource}})
	for i := range 2 * keptOpen {
		s.archive(fmt.Sprintf("%02d.tar", i), fmt.Sprintf("m%02d-", i), 3, "")
	}
	s.check()
	if most, open := s.fs.most.Load(), s.fs.open.Load(); most >= 2*keptOpen || open != 0 {
		t.Errorf("%d archives were open at a time, %d are in the end", most, open)
	}
}

func TestKeptAsFiles(t *testing.T) {
	for pattern, under := range map[string]string{"/src/{0..2}.tar": "", "/src/*/x.tar": "*/x.tar", "/src/1.tar": "1.tar"} {
		s := newRack(t, 3, pattern, Options{Unpack: UnpackNo})
		for i := range 3 {
			name := fmt.Sprintf("%d.tar", i)
			s.archive(name, "m", 3, "")
			s.fs.add(fmt.Sprintf("/src/%d", i), source.TypeDir|0o755, nil)
			s.fs.add(fmt.Sprintf("/src/%d/x.tar", i), source.TypeRegular|0o644, []byte(name))
		}
		clear(s.want)
		for i := range 3 {
			switch under {
			case "":
				s.want[fmt.Sprintf("%d.tar", i)] = string(s.fs.nodes[fmt.Sprintf("/src/%d.tar", i)].data)
			case "1.tar":
				s.want["1.tar"] = string(s.fs.nodes["/src/1.tar"].data)
			default:
				s.want[fmt.Sprintf("%d/x.tar", i)] = fmt.Sprintf("%d.tar", i)
			}
		}
		s.check()
	}
}

// TestSelected: list, patterns and limit, of archives and of directories.
func TestSelected(t *testing.T) {
	list := func(s *rack, text string) { s.fs.add("/list", source.TypeRegular|0o600, []byte(text)) }
	for _, kind := range []string{"a.tar", "a.tar.gz", "a.zip", ""} {
		shelf := func(o Options) *rack {
			s := newRack(t, 3, "/src/"+kind, o)
			if kind != "" {
				s.archive(kind, "d/m", 12, "")
				return s
			}
			s.path = "/src"
			s.fs.add("/src/d", source.TypeDir|0o755, nil)
			for i := range 12 {
				s.want[fmt.Sprintf("d/m%d", i)] = fmt.Sprint(i)
				s.fs.add(fmt.Sprintf("/src/d/m%d", i), source.TypeRegular|0o644, []byte(fmt.Sprint(i)))
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
	s.fs.add("/src/a", source.TypeRegular|0o600, nil)
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
	s.fs.add("/src/b.tar", source.TypeDir|0o755, nil)
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
				s.fs.add("/list", source.TypeRegular|0o600, []byte("./m0-1\nm0-3\nnot/there\n"))
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
		s.fs.add("/src/good", source.TypeRegular|0o600, []byte("good"))
		s.fs.add("/src/secret", source.TypeRegular, []byte("no")).err = syscall.EACCES
		s.fs.add("/src/fifo", source.TypeFIFO|0o600, nil)
		s.want["good"] = "good"
		s.fs.add("/src/closed", source.TypeDir, nil).err = syscall.EACCES
	}, "/src/secret: ", "/src/fifo: ", "/src/closed: ")
	bad := func(name string, typ byte) member {
		return member{Header: tar.Header{Name: name, Typeflag: typ}}
	}
	both("/src/a.tar", "at offset", func(s *rack) {
		ms := []member{file("1", []byte("one")), bad("dev", tar.TypeChar), bad("fifo", tar.TypeFifo), file("/abs", []byte("x")), file("2", []byte("two")), file("../up", []byte("y")), file("3", nil)}
		s.fs.add("/src/a.tar", source.TypeRegular|0o600, writeTar(s.t, tar.FormatPAX, ms))
		s.want["1"], s.want["2"], s.want["3"] = "one", "two", ""
	}, "dev: ", "fifo: ", "/abs: ", "../up: ")
	both("/src/a.zip", "at offset", func(s *rack) {
		z := writeZip(s.t, "", zipFile("1", []byte("one")), zipFile("bad", bytes.Repeat([]byte("damaged"), 999)), zipFile("2", []byte("two")))
		at := bytes.Index(z, []byte("bad")) + 20
		z[at] ^= 0x55
		s.fs.add("/src/a.zip", source.TypeRegular|0o600, z)
		s.want["1"], s.want["2"] = "one", "two"
	}, "bad: ")
	both("/src/a.zip", "at offset", func(s *rack) {
		s.fs.add("/src/a.zip", source.TypeRegular|0o600, writeZip(s.t, "", zipFile("1", []byte("one")), zipPipe("pipe"), zipFile("../up", []byte("y")), zipFile("2", []byte("two")), zipFile("1", []byte("again"))))
		s.want["1"], s.want["2"] = "again", "two"
	}, "pipe: ", "../up: ", "1: ")
}

// zipPipe is a FIFO in a zip archive.
func zipPipe(name string) zipped {
	z := zipFile(name, nil)
	z.SetMode(fs.ModeNamedPipe | 0o600)
	return z
}

// TestUnwantedIsNotRefused: what cannot be staged, or read, is no concern of a dataset
// that does not want it.
func TestUnwantedIsNotRefused(t *testing.T) {
	bad := func(name string, typ byte) member {
		return member{Header: tar.Header{Name: name, Typeflag: typ}}
	}
	members := []member{file("1", []byte("one")), bad("x-fifo", tar.TypeFifo), file("/x-abs", []byte("no")), file("2", bytes.Repeat([]byte("two"), 9000))}
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
			"tar":    writeTar(t, tar.FormatPAX, members),
			"tar.gz": gzipped(t, writeTar(t, tar.FormatPAX, members)),
			"zip": writeZip(t, "", zipFile("1", members[0].data), zipPipe("x-1"),
				zipFile("/x-2", []byte("no")), zipFile("2", members[3].data)),
			"dir": nil,
		} {
			s := newRack(t, 3, "/src/a."+kind, o)
			s.fs.add("/list", source.TypeRegular|0o600, []byte("1\n2\n"))
			s.want["1"], s.want["2"] = "one", string(members[3].data)
			s.fs.add("/src/a."+kind, source.TypeRegular|0o600, archive)
			if archive == nil {
				s.fs.add("/src/a.dir", source.TypeDir|0o755, nil)
				s.fs.add("/src/a.dir/1", source.TypeRegular|0o644, []byte("one"))
				s.fs.add("/src/a.dir/2", source.TypeRegular|0o644, members[3].data)
				s.fs.add("/src/a.dir/x-fifo", source.TypeFIFO|0o600, nil)
				if len(o.Include) == 0 { // it may have one of those names in it
					s.fs.add("/src/a.dir/x-closed", source.TypeDir, nil).err = syscall.EACCES
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
	s.fs.add("/list", source.TypeRegular|0o600, []byte("1\nx-closed\n"))
	s.fs.add("/src/1", source.TypeRegular|0o644, []byte("one"))
	s.fs.add("/src/x-closed", source.TypeDir, nil).err = syscall.EACCES
	s.want["1"] = "one"
	s.check()
}

// TestDirectoryKept: a directory is what is in it, also with unpack=no.
func TestDirectoryKept(t *testing.T) {
	s := newRack(t, 2, "/src", Options{Unpack: UnpackNo})
	s.archive("a.tar", "a", 3, "")
	s.want = map[string]string{"a.tar": string(s.fs.nodes["/src/a.tar"].data)}
	s.check()
	s = newRack(t, 2, "/src/*", Options{Unpack: UnpackNo})
	s.fs.add("/src/l.tar", source.TypeSymlink|0o777, nil).target = "/elsewhere"
	s.archive("a.tar", "a", 3, "")
	s.fails("/src/l.tar", "symbolic link")
}

// TestSkipCut: of an archive that is cut, what is before the cut is there.
func TestSkipCut(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 500)
	whole := writeTar(t, tar.FormatPAX, []member{file("1", data), file("2", data), file("3", data)})
	for cut, want := range map[int]int{len(whole) - 1024: 3, 2*5632 + 512: 2, 2*5632 + 700: 2, 5632 + 3000: 1, 5632: 1, 700: 0} {
		s := newRack(t, 2, "/src/*.tar", Options{OnError: OnErrorSkip})
		s.archive("b.tar", "b", 2, "")
		s.fs.add("/src/a.tar", source.TypeRegular|0o600, whole[:cut])
		for i := range want {
			s.want[fmt.Sprint(i+1)] = string(data)
		}
		s.check()
		if isCut := cut%5632 != 0 && want < 3; len(s.skips) != 0 != isCut {
			t.Errorf("cut at %d: left out %+v", cut, s.skips)
		}
	}
}
