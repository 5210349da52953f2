package fsclient_test

import (
	"bytes"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestUpdatesAreRetried: a home that was unreachable learns of writes and complete appends when it returns, even if no
// process writes any more.
func TestUpdatesAreRetried(t *testing.T) {
	t.Run("buffered writes", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		l.home.away.Store(true)
		want := buffered(t, l.f.Writer())
		eventually(t, "the home is called", func() bool { return l.home.asked.Load() > 0 })
		l.home.away.Store(false)
		eventually(t, "another node sees it", func() bool { return bytes.Equal(read(t, l.cs[1], l.f.Ino()), want) })
	})
	t.Run("an append", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		g := open(t, l.cs[1], l.f.Ino())
		w := l.f.Writer()
		must(t, 10)(w.Append(ctx, pattern(10)))
		l.home.awayAfter.Store(true) // unreachable once it has placed the next append
		must(t, 10)(w.Append(ctx, pattern(20)[10:]))
		eventually(t, "the home is called", func() bool { return l.home.asked.Load() > 0 })
		l.home.away.Store(false)
		eventually(t, "another node sees it", func() bool { return bytes.Equal(read(t, l.cs[1], l.f.Ino()), pattern(20)) })
		must(t, 10)(g.Writer().Append(ctx, pattern(10)))
		eventually(t, "its own append is visible, too", func() bool { return len(read(t, l.cs[1], l.f.Ino())) == 30 })
		closed(t, g)
	})
}
