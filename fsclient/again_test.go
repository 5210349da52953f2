package fsclient_test

import (
	"bytes"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestHomesAreToldAgain: a home that was away when it should have heard of what was
// written, or that an append is complete, hears of it when it is back, also if
// nobody writes any more.
func TestHomesAreToldAgain(t *testing.T) {
	t.Run("what was gathered", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		l.home.away.Store(true)
		want := gathered(t, l.f.Writer())
		eventually(t, "the home is to be told", func() bool { return l.home.asked.Load() > 0 })
		l.home.away.Store(false)
		eventually(t, "another node sees it", func() bool { return bytes.Equal(read(t, l.cs[1], l.f.Ino()), want) })
	})
	t.Run("an append", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		g := open(t, l.cs[1], l.f.Ino())
		w := l.f.Writer()
		must(t, 10)(w.Append(ctx, pattern(10)))
		l.home.awayAfter.Store(true) // it gives the next one its place
		must(t, 10)(w.Append(ctx, pattern(20)[10:]))
		eventually(t, "the home is to be told", func() bool { return l.home.asked.Load() > 0 })
		l.home.away.Store(false)
		eventually(t, "another node sees it", func() bool { return bytes.Equal(read(t, l.cs[1], l.f.Ino()), pattern(20)) })
		must(t, 10)(g.Writer().Append(ctx, pattern(10)))
		eventually(t, "and what it has appended itself", func() bool { return len(read(t, l.cs[1], l.f.Ino())) == 30 })
		closed(t, g)
	})
}
