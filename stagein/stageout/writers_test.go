package stageout

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestTakenForLost: a writer whose temporary file was removed or replaced reports it and leaves the other file alone.
func TestTakenForLost(t *testing.T) {
	for _, others := range []bool{false, true} {
		s := newScratch()
		s.add(metadata.RootIno, "f", source.TypeRegular|0o600, []byte("whole"))
		cfg := s.config(t.TempDir(), 0, 1)
		tmp := filepath.Join(cfg.To, temporary("f", cfg.Writer))
		cfg.Read = func(ctx context.Context, a metadata.Attr, p []byte, off int64) (int, error) {
			if err := os.Remove(tmp); err != nil {
				t.Error(err)
			}
			if others {
				if err := os.WriteFile(tmp, []byte("part"), 0o600); err != nil {
					t.Error(err)
				}
			}
			return s.readAt(ctx, a, p, off)
		}
		var failed []error
		cfg.Failed = func(f Failure) { failed = append(failed, f.Err) }
		if r, _ := Run(context.Background(), cfg); r.Failed != 1 || len(failed) != 1 || !errors.Is(failed[0], syscall.EBUSY) {
			t.Errorf("another's %v: %+v, %v, want EBUSY", others, r, failed)
		}
		if _, err := os.Lstat(filepath.Join(cfg.To, "f")); err == nil {
			t.Errorf("another's %v: f is there", others)
		}
		if got, _ := os.ReadFile(tmp); others && string(got) != "part" {
			t.Errorf("the file of the other has %q", got)
		}
	}
}

// TestTwoWritersOfAFile: nodes that disagree on which of them copies a file, as while one is lost, and jobs with the
// same target copy it concurrently. Only a whole copy appears under its name; leftovers of lost writers are removed.
func TestTwoWritersOfAFile(t *testing.T) {
	s := newScratch()
	s.add(metadata.RootIno, "f", source.TypeRegular|0o600, stageintest.RandBytes(stageintest.Rand(t), 3<<20))
	s.targets[s.add(metadata.RootIno, "link", source.TypeSymlink|0o777, nil)] = "f"
	one, two := s.config(t.TempDir(), 0, 1), s.config("", 0, 1)
	two.To, two.Writer = one.To, "1"
	ctx, cancel := context.WithCancel(context.Background())
	writing, ended := make(chan struct{}), make(chan error)
	two.Read = func(ctx context.Context, _ metadata.Attr, _ []byte, _ int64) (int, error) {
		close(writing) // its file exists, still empty
		<-ctx.Done()
		return 0, ctx.Err()
	}
	first := true
	one.Read = func(ctx context.Context, a metadata.Attr, p []byte, off int64) (int, error) {
		if first {
			first = false
			go func() { _, err := Run(ctx, two); ended <- err }()
			<-writing
		}
		return s.readAt(ctx, a, p, off)
	}
	whole := func(when string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(one.To, "f")); err != nil || string(got) != string(s.data[s.entries[metadata.RootIno][0].Ino]) {
			t.Errorf("%s: f has %d bytes that are not those of scratch, %v", when, len(got), err)
		}
	}
	run := func(cfg Config) error { _, err := Run(ctx, cfg); return err }
	if err := run(one); err != nil {
		t.Errorf("the first writer: %v", err)
	}
	whole("while the second writes")
	left := filepath.Join(one.To, temporary("g", "1")) // from an earlier run of the second
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the second writer was stopped, and reports no error")
	}
	three := s.config(one.To, 0, 1)
	three.Gone = []string{"1"}
	if r := s.run(t, three); r.Kept != 1 {
		t.Errorf("again: %+v, want one kept", r)
	}
	s.checkOut(t, one.To, metadata.RootIno)
	if _, err := os.Lstat(left); err == nil {
		t.Errorf("%s was left behind", strings.TrimPrefix(left, one.To))
	}
}

// TestLateHelper: what a helper writes after it was given up reaches no file under its own name, whether it opened the
// temporary file before or opens it during a later attempt or run.
func TestLateHelper(t *testing.T) {
	s := newScratch()
	old := stageintest.RandBytes(stageintest.Rand(t), 4<<20)
	ino := s.add(metadata.RootIno, "large", source.TypeRegular|0o600, old)
	cfg := s.config(t.TempDir(), 0, 2)
	cfg.Self = (&out{cfg: cfg}).owner("large")
	cfg.Piece = 1 << 20
	other := func(_ context.Context, _ metadata.Attr, p []byte, _ int64) (int, error) {
		for i := range p {
			p[i] = 0xee
		}
		return len(p), nil
	}
	opened, renamed, wrote := make(chan struct{}), make(chan struct{}), make(chan error)
	var late Piece
	var asked atomic.Int64
	cfg.Help = func(_ context.Context, _ int, p Piece) error {
		if asked.Add(1) == 1 {
			late = p
			go func() {
				wrote <- CopyPiece(context.Background(), func(ctx context.Context, a metadata.Attr, b []byte, off int64) (int, error) {
					if off == p.Off {
						close(opened)
						<-renamed
					}
					return other(ctx, a, b, off)
				}, p)
			}()
			<-opened
		}
		return ErrUnfinished
	}
	s.run(t, cfg)
	close(renamed)
	if err := <-wrote; err != nil {
		t.Errorf("the late helper: %v: it wrote nothing, so this test shows nothing", err)
	}
	s.checkOut(t, cfg.To, metadata.RootIno)
	s.change(ino, stageintest.RandBytes(stageintest.Rand(t), 4<<20))
	cfg.Help = func(ctx context.Context, _ int, p Piece) error {
		if err := CopyPiece(ctx, s.readAt, p); err != nil {
			return err
		}
		if err := CopyPiece(ctx, other, late); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a helper of an earlier run: %v, want that its file is not there", err)
		}
		return nil
	}
	s.run(t, cfg)
	s.checkOut(t, cfg.To, metadata.RootIno)
}

// TestHelpIsCancelled: a copy cancelled while a helper works ends.
func TestHelpIsCancelled(t *testing.T) {
	s := newScratch()
	s.add(metadata.RootIno, "large", source.TypeRegular|0o600, make([]byte, 4<<20))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for self := range 2 {
		cfg := s.config(t.TempDir(), self, 2)
		cfg.Piece = 1 << 20
		cfg.Help = func(context.Context, int, Piece) error {
			cancel()
			return ErrUnfinished
		}
		_, _ = Run(ctx, cfg) // only one of the two owns the file
	}
	if ctx.Err() == nil {
		t.Error("no node was asked for help")
	}
}

// TestLeftOfOneFile: a target that gets a single file is cleared of leftovers of lost writers and killed attempts.
func TestLeftOfOneFile(t *testing.T) {
	s := newScratch()
	ino := s.add(metadata.RootIno, "f", source.TypeRegular|0o600, make([]byte, 4<<20))
	to := t.TempDir()
	for _, name := range []string{temporary("f", "lost"), temporaryOnce("f", "lost"), temporaryOnce("f", "0"), temporaryOnce("f", "1")} {
		if err := os.WriteFile(filepath.Join(to, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for self := range 2 {
		cfg := s.config(to, self, 2)
		cfg.Root, cfg.Name, cfg.Piece, cfg.Gone = ino, "f", 1<<20, []string{"lost"}
		cfg.Help = func(ctx context.Context, _ int, p Piece) error { return CopyPiece(ctx, s.readAt, p) }
		s.run(t, cfg)
	}
	found, err := os.ReadDir(to)
	if err != nil || len(found) != 2 { // f, and the temporaryOnce file of node 1, which copies nothing
		t.Errorf("the target has %v, %v", found, err)
	}
}
