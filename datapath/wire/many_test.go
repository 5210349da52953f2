package wire

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

func TestReadManySplit(t *testing.T) {
	q := &ReadManyReq{Files: []ReadReq{{Len: 3}, {Len: 9}, {Len: 2}}}
	for name, c := range map[string]struct {
		files []ManyFile
		data  string
		want  []string // nil means EPROTO
	}{
		"all":                   {[]ManyFile{{Len: 3}, {Len: 9}, {Len: 2}}, "abcdefghijklmn", []string{"abc", "defghijkl", "mn"}},
		"one short, one failed": {[]ManyFile{{Len: 1}, {Status: syscall.EAGAIN}, {Len: 2}}, "abc", []string{"a", "", "bc"}},
		"too few files":         {[]ManyFile{{Len: 3}, {Len: 9}}, "abcdefghijkl", nil},
		"too many files":        {[]ManyFile{{}, {}, {}, {}}, "", nil},
		"longer than wanted":    {[]ManyFile{{Len: 4}, {Len: 9}, {Len: 2}}, "abcdefghijklmno", nil},
		"bytes with an error":   {[]ManyFile{{Len: 3, Status: syscall.EIO}, {}, {}}, "abc", nil},
		"more than came":        {[]ManyFile{{Len: 3}, {Len: 9}, {Len: 2}}, "abc", nil},
		"less than came":        {[]ManyFile{{Len: 3}, {}, {}}, "abcd", nil},
	} {
		var got []string
		err := (&ReadManyResp{Files: c.files}).Split(q, []byte(c.data), func(_ int, _ *ManyFile, b []byte) { got = append(got, string(b)) })
		if c.want == nil {
			if !errors.Is(err, syscall.EPROTO) || got != nil {
				t.Errorf("%s: %q, %v, want EPROTO before any file", name, got, err)
			}
			continue
		}
		if err != nil || !equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func equal(a, b []string) bool {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestReadManyCheck(t *testing.T) {
	ino := metadata.SealedIno(1, 0, 7)
	for name, c := range map[string]struct {
		files []ReadReq
		want  int64 // -1 means EINVAL
	}{
		"some":         {[]ReadReq{{Ino: ino, Len: 5}, {Ino: ino, Off: 9, Len: 6}}, 11},
		"all there is": {[]ReadReq{{Ino: ino, Len: MaxMany}}, MaxMany},
		"too much":     {[]ReadReq{{Ino: ino, Len: MaxMany}, {Ino: ino, Len: 1}}, -1},
		"overflow":     {[]ReadReq{{Ino: ino, Len: 1<<32 - 1}, {Ino: ino, Len: 1<<32 - 1}}, -1},
		"live file":    {[]ReadReq{{Ino: 5, Len: 5}}, 5},
		"with copies":  {[]ReadReq{{Ino: metadata.Ino(5).Moved(0), Len: 5}}, -1},
		"negative":     {[]ReadReq{{Ino: ino, Off: -1, Len: 5}}, -1},
	} {
		n, err := (&ReadManyReq{Files: c.files}).Check()
		if c.want < 0 && !errors.Is(err, syscall.EINVAL) || c.want >= 0 && (n != c.want || err != nil) {
			t.Errorf("%s: %d, %v, want %d", name, n, err, c.want)
		}
	}
}

// FuzzReadMany splits arbitrary data by arbitrary replies: no byte is used twice, and none beyond the data.
func FuzzReadMany(f *testing.F) {
	f.Add(Append(nil, &ReadManyResp{Files: []ManyFile{{Len: 2}, {Status: 5}}}), []byte("ab"), uint32(7))
	f.Fuzz(func(t *testing.T, reply, data []byte, n uint32) {
		var m ReadManyResp
		if Parse(reply, &m) != nil {
			return
		}
		q := &ReadManyReq{Files: make([]ReadReq, len(m.Files))}
		for i := range q.Files {
			q.Files[i].Len = n
		}
		var got []byte
		if m.Split(q, data, func(_ int, _ *ManyFile, b []byte) { got = append(got, b...) }) == nil && !bytes.Equal(got, data) {
			t.Fatalf("%d bytes of %d", len(got), len(data))
		}
	})
}
