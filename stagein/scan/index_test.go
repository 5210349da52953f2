package scan_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/scan"
	"github.com/bivouacfs/bivouac/stagein/source"
	srctar "github.com/bivouacfs/bivouac/stagein/source/tar"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// indexJob returns a job for an archive whose index is kept in a directory.
func indexJob(t *testing.T, archive []byte) (j *jobtest.Job, log *bytes.Buffer) {
	t.Helper()
	j, log = jobtest.TarJob(archive, 3), &bytes.Buffer{}
	j.Opts = stagein.Options{Index: stagein.IndexCache, Cache: source.Name(filepath.Join(t.TempDir(), "cache"))}
	j.FS.Nodes[j.Path].Info.UID = uint32(os.Getuid())
	l := logrus.New()
	l.SetOutput(log)
	j.Log = logrus.NewEntry(l)
	return j, log
}

// indexFile returns the only file in the directory of the indexes.
func indexFile(t *testing.T, j *jobtest.Job) string {
	t.Helper()
	all, err := os.ReadDir(string(j.Opts.Cache))
	if err != nil || len(all) != 1 {
		t.Fatalf("the cache has %v, %v, want one file", all, err)
	}
	return filepath.Join(string(j.Opts.Cache), all[0].Name())
}

// stagedAs runs the job and compares the tree with want.
func stagedAs(t *testing.T, j *jobtest.Job, want map[string]stageintest.Entry) {
	t.Helper()
	j.FS.Read.Store(0)
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
	if j.Scanned != nil && len(j.Scanned.Indexes) == 1 {
		j.Found = scan.ItemsOf(t, j.Scanned.Indexes)
	}
	if read := j.FS.Read.Load(); j.Sum.SourceBytes != read {
		t.Errorf("%d bytes were read, %d counted", read, j.Sum.SourceBytes)
	}
}

// TestIndexSavesScan: the second job gives the same tree, and reads no headers before the files.
func TestIndexSavesScan(t *testing.T) {
	r := stageintest.Rand(t)
	for i, format := range []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX, tar.FormatPAX} {
		archive := stageintest.WriteTar(t, format, append(stageintest.RandomMembers(r, format, 60), stageintest.TarFile("last", stageintest.RandBytes(r, 40_000))))
		want, err := stageintest.TwinTar(archive)
		if err != nil {
			t.Fatal(err)
		}
		j, log := indexJob(t, archive)
		if i%2 == 1 {
			j.Stripe = 1000 // pieces that do not begin behind headers
		}
		if i > 1 {
			j.Swarm = jobtest.NewSwarm(j)
		}
		stagedAs(t, j, want)
		if j.Scanned == nil || len(j.Scanned.Indexes) != 1 {
			t.Fatal("the scan made no index")
		}
		j.Scanned.Indexes.Save(j.Log)
		stagedAs(t, j, want)
		if j.Scanned == nil || len(j.Scanned.Indexes) != 0 || !strings.Contains(log.String(), "archives not scanned") {
			t.Fatalf("the index was not used: %s", log)
		}
		if most := int64(2*16<<10 + 2*source.BlockSize); j.Scanned.Read > most {
			t.Errorf("with an index %d bytes were read before the manifest, want %d", j.Scanned.Read, most)
		}
		if read, most := j.Sum.SourceBytes, int64(len(archive)+32<<10+2*source.BlockSize); read > most {
			t.Errorf("%d bytes were read of an archive of %d", read, len(archive))
		}
	}
}

// TestIndexUnusable: an index that is outdated, damaged or of another archive is named in the log and the archive is
// scanned; the next index is right.
func TestIndexUnusable(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("a", stageintest.RandBytes(r, 30_000)), stageintest.TarFile("b", stageintest.RandBytes(r, 50_000))})
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(t *testing.T, j *jobtest.Job, path string){
		"stale": func(_ *testing.T, j *jobtest.Job, _ string) { j.FS.Nodes[j.Path].Info.Mtime++ },
		"cut":   func(t *testing.T, _ *jobtest.Job, path string) { stageintest.NoError(t, os.Truncate(path, 60)) },
		"empty": func(t *testing.T, _ *jobtest.Job, path string) { stageintest.NoError(t, os.Truncate(path, 0)) },
		"other": func(t *testing.T, _ *jobtest.Job, path string) {
			stageintest.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 500), 0o600))
		},
		"a link": func(t *testing.T, _ *jobtest.Job, path string) {
			stageintest.NoError(t, os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		},
		"a directory": func(t *testing.T, _ *jobtest.Job, path string) {
			stageintest.NoError(t, os.Remove(path), os.Mkdir(path, 0o700), os.WriteFile(path+"/x", nil, 0o600))
		},
		"another user's": func(t *testing.T, _ *jobtest.Job, path string) {
			if os.Getuid() != 0 {
				t.Skip("only root can give a file away")
			}
			stageintest.NoError(t, os.Chown(path, 4321, 4321))
		},
		"short": func(t *testing.T, j *jobtest.Job, path string) { // without its last member
			key, err := srctar.KeyOf(bytes.NewReader(archive), "", j.FS.Nodes[j.Path].Info)
			stageintest.NoError(t, err)
			var b bytes.Buffer
			stageintest.NoError(t, srctar.WriteIndex(&b, key, scan.EachOf(j.Found[:1])), os.WriteFile(path, b.Bytes(), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, log := indexJob(t, archive)
			stagedAs(t, j, want)
			j.Scanned.Indexes.Save(j.Log)
			spoil(t, j, indexFile(t, j))
			stagedAs(t, j, want)
			if !strings.Contains(log.String(), "index not usable; the archive is scanned instead") {
				t.Errorf("the log says %s", log)
			}
			j.Scanned.Indexes.Save(j.Log) // tries to replace a directory; the failure is no error
			log.Reset()
			stagedAs(t, j, want)
			if used := strings.Contains(log.String(), "archives not scanned"); used == (name == "a directory") {
				t.Errorf("the new index was used: %v: %s", used, log)
			}
		})
	}
}

// TestIndexWrong: an index that contradicts a member's headers is detected when the member is read; the index is
// removed, and the next job scans.
func TestIndexWrong(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{
		stageintest.TarFile("a", stageintest.RandBytes(r, 3000)), stageintest.TarFile("b", stageintest.RandBytes(r, 5000)), stageintest.TarFile("c", stageintest.RandBytes(r, 1000)), stageintest.TarFile("d", stageintest.RandBytes(r, 1000)),
	})
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(all []source.Item) []source.Item{
		"name":     func(all []source.Item) []source.Item { all[1].Path = "else"; return all },
		"size":     func(all []source.Item) []source.Item { all[1].Size -= 7; return all },
		"mode":     func(all []source.Item) []source.Item { all[1].Mode ^= 0o100; return all },
		"time":     func(all []source.Item) []source.Item { all[1].Mtime++; return all },
		"left out": func(all []source.Item) []source.Item { return slices.Delete(all, 2, 3) },
		"one too few": func(all []source.Item) []source.Item { // the bytes of the removed member go to the one before
			all[1].Size += source.Padded(all[2].Size) + source.BlockSize
			return slices.Delete(all, 2, 3)
		},
	} {
		for _, together := range []bool{false, true} {
			j, _ := indexJob(t, archive)
			if together {
				j.Swarm = jobtest.NewSwarm(j)
			}
			stagedAs(t, j, want)
			n := j.Scanned.Indexes
			scan.SetItems(t, n, change(j.Found))
			n.Save(j.Log)
			path := indexFile(t, j)
			if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, j.Path, path, "it is removed: stage in again") {
				t.Errorf("%s, together %v: the job says %v", name, together, err)
			}
			stagedAs(t, j, want)
		}
	}
}

// TestIndexPlaces: the places where an index is looked for, and where it is saved.
func TestIndexPlaces(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "set.tar")
	for _, c := range []struct {
		index stagein.Index
		cache source.Name
		at    []string
		keep  string
	}{
		{stagein.IndexAuto, "/c", []string{"/c/set.tar-", archive + scan.Beside}, "/c/set.tar-"},
		{stagein.IndexAuto, "", []string{"", archive + scan.Beside}, ""},
		{stagein.IndexCache, "/c", []string{"/c/set.tar-"}, "/c/set.tar-"},
		{stagein.IndexBeside, "/c", []string{archive + scan.Beside}, archive + scan.Beside},
		{stagein.IndexOff, "/c", nil, ""},
		{stagein.Index(dir + "/mine"), "/c", []string{dir + "/mine"}, dir + "/mine"},
		{stagein.Index(dir), "/c", []string{dir + "/set.tar-"}, dir + "/set.tar-"},
	} {
		o := stagein.Options{Index: c.index, Cache: c.cache}
		at, keep := scan.IndexPaths(&o, archive, false)
		same := len(at) == len(c.at) && strings.HasPrefix(keep, c.keep) && (keep == "") == (c.keep == "")
		for i := range at {
			same = same && strings.HasPrefix(at[i], c.at[i])
		}
		if !same {
			t.Errorf("index=%s, cache %s: %v, %q, want %v, %q", c.index, c.cache, at, keep, c.at, c.keep)
		}
	}
}

// TestIndexBeside: the index is readable by exactly the users that can read the archive; no temporary file is left.
func TestIndexBeside(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarFile("a", stageintest.RandBytes(r, 3000))})
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o640, 0o600, 0o444} {
		path := filepath.Join(dir, "a.tar")
		stageintest.NoError(t, os.WriteFile(path, archive, 0o600), os.Chmod(path, mode))
		cfg := &scan.Config{
			FS: source.OS{}, Request: stagein.Request{Source: path, Name: "ds", Options: stagein.Options{Index: stagein.IndexBeside}}, Dataset: 3, Map: stageintest.ClusterMap(1),
			UID: uint32(os.Getuid()), Log: stageintest.QuietLog(),
		}
		s, err := scan.Run(context.Background(), cfg, io.Discard)
		stageintest.NoError(t, err)
		s.Indexes.Save(stageintest.QuietLog())
		st, err := os.Stat(path + scan.Beside)
		stageintest.NoError(t, err)
		if want := mode&0o644 | 0o600; st.Mode() != want {
			t.Errorf("the index of an archive of mode %o has %o, want %o", mode, st.Mode(), want)
		}
		all, err := os.ReadDir(dir)
		stageintest.NoError(t, err, os.Remove(path), os.Remove(path+scan.Beside))
		if len(all) != 2 {
			t.Errorf("there are %v", all)
		}
	}
}

// TestIndexOfSeveral: each of several archives has its own index, which lists all members whatever was selected.
func TestIndexOfSeveral(t *testing.T) {
	r := stageintest.Rand(t)
	j, log := indexJob(t, nil)
	delete(j.FS.Nodes, j.Path)
	j.Path = "/src/*.tar"
	j.FS.Add("/src", source.TypeDir|0o755, nil)
	all := map[string]stageintest.Entry{}
	for _, name := range []string{"a", "b"} {
		archive := stageintest.WriteTar(t, tar.FormatUSTAR, []stageintest.Member{stageintest.TarDir("d"), stageintest.TarFile("d/x", stageintest.RandBytes(r, 3000)), stageintest.TarFile("y", stageintest.RandBytes(r, 200))})
		j.FS.Add("/src/"+name+".tar", source.TypeRegular|0o644, archive).Info.UID = uint32(os.Getuid())
		tree, err := stageintest.TwinTar(archive)
		stageintest.NoError(t, err)
		for path, e := range tree {
			all[name+"/"+path] = e
		}
	}
	j.Opts.Unpack, j.Opts.Exclude = stagein.UnpackApart, []source.Name{"y"}
	some := maps.Clone(all)
	maps.DeleteFunc(some, func(path string, _ stageintest.Entry) bool { return strings.HasSuffix(path, "/y") })
	stagedAs(t, j, some)
	j.Scanned.Indexes.Save(j.Log)
	j.Opts.Exclude = nil
	stagedAs(t, j, all)
	if !strings.Contains(log.String(), "archives not scanned") || !strings.Contains(log.String(), "archives=2") {
		t.Errorf("the log says %s", log)
	}
}
