package stagein

import (
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

func TestParseSpec(t *testing.T) {
	for _, c := range []struct{ spec, source, name string }{
		{"/a/b.tar", "/a/b.tar", "b"}, {"/a/b/", "/a/b", "b"}, {"/a/b.tar:x", "/a/b.tar", "x"}, {"/a:b/c", "/a:b/c", "c"},
		{"/a/.tar", "/a/.tar", ".tar"}, {"/a//b/../c", "/a/c", "c"},
		{"/a/x.tar.gz", "/a/x.tar.gz", "x"}, {"/a/x.tgz", "/a/x.tgz", "x"}, {"/a/x.tar.zst", "/a/x.tar.zst", "x"}, {"/a/x.tar.xz", "/a/x.tar.xz", "x"},
		{"/a/x.tar.bz2", "/a/x.tar.bz2", "x"}, {"/a/x.zip", "/a/x.zip", "x"}, {"/a/.zip", "/a/.zip", ".zip"}, {"/a/x.gz", "/a/x.gz", "x.gz"},
		{"/a/x.tar.tar", "/a/x.tar.tar", "x.tar"}, {"/a/x.tar.gz:y.zip", "/a/x.tar.gz", "y.zip"}, {"/a/x.h5", "/a/x.h5", "x.h5"},
		{"/a/x.h5,unpack=no", "/a/x.h5", "x"}, {"/a/x.csv.gz,unpack=no", "/a/x.csv.gz", "x.csv"}, {"/a/x.tar.gz,unpack=no", "/a/x.tar.gz", "x"},
		{"/a/x.h5.tar,unpack=no", "/a/x.h5.tar", "x.h5"}, {"/a/v1.2,unpack=no", "/a/v1.2", "v1.2"}, {"/a/.h5,unpack=no", "/a/.h5", ".h5"},
		{"/a/x.,unpack=no", "/a/x.", "x."}, {"/a/x.h5:x.h5,unpack=no", "/a/x.h5", "x.h5"}, {"/a/s.d/*.tar,unpack=no", "/a/s.d/*.tar", "s.d"},
	} {
		r, err := ParseSpec(c.spec, "/wd")
		if err != nil || r.Source != c.source || r.Name != c.name {
			t.Errorf("ParseSpec(%q) = %+v, %v", c.spec, r, err)
		}
	}
	for _, url := range []string{"s3://bucket/set", "https://host/set.tar:x", "gs://b/{0..9}.tar,unpack=no"} {
		if r, err := ParseSpec(url, "/wd"); !stageintest.ErrorHas(err, url[:strings.Index(url, ":")]+":// URLs cannot be staged", "copy the data") {
			t.Errorf("ParseSpec(%q) = %+v, %v", url, r, err)
		}
	}
	for _, bad := range []string{"", ":x", "/a/b:", "/a/b:..", "/", "/a/b:" + strings.Repeat("n", 256), "/a\x00b"} {
		if r, err := ParseSpec(bad, "/wd"); err == nil {
			t.Errorf("ParseSpec(%q) = %+v", bad, r)
		}
	}
}
