package ingest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// everyFormat runs f on the same members in every format that can hold them.
func everyFormat(t *testing.T, f func(t *testing.T, archive []byte), members ...stageintest.Member) {
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatGNU, tar.FormatPAX} {
		t.Run(format.String(), func(t *testing.T) { f(t, stageintest.WriteTar(t, format, members)) })
	}
}

// onEveryCut stages with 1 to 7 nodes; exact means that no byte may be read twice.
func onEveryCut(exact bool, set ...func(*jobtest.Job)) func(*testing.T, []byte) {
	return func(t *testing.T, archive []byte) {
		t.Helper()
		for nodes := 1; nodes <= 7; nodes++ {
			if read := checkTar(t, archive, nodes, set...); exact && read != int64(len(archive)) {
				t.Errorf("%d nodes read %d bytes of %d", nodes, read, len(archive))
			}
		}
	}
}

func TestTarGiantMember(t *testing.T) {
	r := stageintest.Rand(t)
	for _, size := range []int{20_000, 20_480, 100_001} {
		members := []stageintest.Member{stageintest.TarFile("a", stageintest.RandBytes(r, 700)), stageintest.TarFile("giant", stageintest.RandBytes(r, size)), stageintest.TarFile("z", stageintest.RandBytes(r, 700))}
		everyFormat(t, onEveryCut(true), members...)
		// The same, striped.
		everyFormat(t, onEveryCut(true, func(j *jobtest.Job) { j.Stripe = 4096 }), members...)
		// A single member, larger than the search may keep in memory.
		everyFormat(t, onEveryCut(true, func(j *jobtest.Job) { j.Memory = 1 }), members[1])
	}
}

// TestTarGiantSeamIsEarly: no byte of a giant member is stored before all readers know its boundary.
func TestTarGiantSeamIsEarly(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("giant", stageintest.RandBytes(r, 100_000)), stageintest.TarFile("z", nil)})
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		j := jobtest.TarJob(archive, 5)
		all, left := make(chan struct{}), 4
		j.Sent = func(int) {
			j.FS.Mu.Lock()
			defer j.FS.Mu.Unlock()
			if left--; left == 0 {
				close(all)
			}
		}
		j.Target = &stageintest.MemTarget{OnPut: func(metadata.NodeID, metadata.Ino, int) error {
			select {
			case <-all:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		if _, err := j.Run(ctx); err != nil {
			t.Errorf("%v: a region waited for the data of the one before", err)
		}
		cancel()
	}
}

func TestTarStripesOverNodes(t *testing.T) {
	r := stageintest.Rand(t)
	big := stageintest.RandBytes(r, 3*stagein.StripeChunk+12345)
	archive := stageintest.WriteTar(t, tar.FormatPAX, []stageintest.Member{stageintest.TarFile("a", stageintest.RandBytes(r, 5000)), stageintest.TarFile("big", big), stageintest.TarFile("z", nil)})
	for _, nodes := range []int{1, 3, 4} {
		checkTar(t, archive, nodes, func(j *jobtest.Job) {
			j.Lim, j.Memory, j.Stripe, j.Region = jobtest.Bounds{}, 0, 8<<20, 1<<20
		})
	}
}

func TestTarOnlyDirectories(t *testing.T) {
	var members []stageintest.Member
	for i := range 40 {
		members = append(members, stageintest.TarDir(fmt.Sprintf("d%d/", i)))
	}
	everyFormat(t, onEveryCut(true), members...)
}

func TestTarEmptyFiles(t *testing.T) {
	var members []stageintest.Member
	for i := range 40 {
		members = append(members, stageintest.TarFile(fmt.Sprintf("f%d", i), nil))
	}
	everyFormat(t, onEveryCut(true), members...)
}

// TestTarLongNamesOnTheCut moves every part of a header group over a boundary.
func TestTarLongNamesOnTheCut(t *testing.T) {
	r := stageintest.Rand(t)
	for _, format := range []tar.Format{tar.FormatGNU, tar.FormatPAX} {
		for shift := range 12 {
			members := []stageintest.Member{stageintest.TarFile("first", stageintest.RandBytes(r, shift*512))}
			for i := range 8 {
				long := strings.Repeat(strings.Repeat("n", 200)+"/", 4) + fmt.Sprint(i)
				members = append(members, stageintest.TarFile(long, stageintest.RandBytes(r, 300)), stageintest.Member{Header: tar.Header{
					Name: long + "link", Linkname: strings.Repeat("t/", 300), Typeflag: tar.TypeSymlink}})
			}
			onEveryCut(false)(t, stageintest.WriteTar(t, format, members))
		}
	}
}

// TestTarInTar stages data that contains headers of no real members.
func TestTarInTar(t *testing.T) {
	r := stageintest.Rand(t)
	var inner []stageintest.Member
	for i := range 30 {
		inner = append(inner, stageintest.TarFile(fmt.Sprintf("inner%d", i), stageintest.RandBytes(r, 300)))
	}
	payload := stageintest.WriteTar(t, tar.FormatPAX, inner)
	nested := stageintest.WriteTar(t, tar.FormatGNU, []stageintest.Member{stageintest.TarFile("x", payload), stageintest.TarFile("y.tar", stageintest.WriteTar(t, tar.FormatGNU, inner))})
	wrong := int64(0)
	for _, stripe := range []int64{1 << 20, 4096} {
		everyFormat(t, func(t *testing.T, archive []byte) {
			for nodes := 1; nodes <= 7; nodes++ {
				read := checkTar(t, archive, nodes, func(j *jobtest.Job) { j.Stripe = stripe })
				wrong += read - int64(len(archive))
				if read > 2*int64(len(archive)) {
					t.Errorf("%d nodes: %d bytes were read of %d: more than twice", nodes, read, len(archive))
				}
			}
		}, stageintest.TarFile("before", stageintest.RandBytes(r, 100)), stageintest.TarFile("nested.tar", nested), stageintest.TarFile("after", stageintest.RandBytes(r, 3000)))
	}
	if wrong == 0 {
		t.Error("no speculation was wrong: this tests nothing")
	}
}

func TestTarGlobalHeader(t *testing.T) {
	r := stageintest.Rand(t)
	at := time.Unix(1234567890, 0)
	global := func(records map[string]string) stageintest.Member {
		return stageintest.Member{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: records}}
	}
	var members []stageintest.Member
	for i := range 20 {
		members = append(members, stageintest.TarFile(fmt.Sprint("f", i), stageintest.RandBytes(r, 700)))
	}
	comment := stageintest.WriteTar(t, tar.FormatPAX, append([]stageintest.Member{global(map[string]string{"comment": "from git"})}, members...))
	onEveryCut(true)(t, comment)
	stamped := stageintest.WriteTar(t, tar.FormatPAX, append([]stageintest.Member{global(map[string]string{"mtime": "1234567890"})}, members...))
	for nodes := 1; nodes <= 7; nodes++ {
		j := jobtest.TarJob(stamped, nodes)
		got, err := j.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for p, e := range got {
			if e.Mtime != metadata.TimeOf(at) {
				t.Errorf("%d nodes: %s has %v, want %v", nodes, p, e.Mtime.Time(), at)
			}
		}
	}
	for _, key := range []string{"path", "size"} {
		j := jobtest.TarJob(stageintest.WriteTar(t, tar.FormatPAX, append([]stageintest.Member{global(map[string]string{key: "7"})}, members...)), 3)
		if _, err := j.Run(context.Background()); !stageintest.ErrorHas(err, key) {
			t.Errorf("global %s: %v, want a refusal", key, err)
		}
	}
}

// TestTarProgram stages archives written by the tar program.
func TestTarProgram(t *testing.T) {
	program, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("no tar program")
	}
	r := stageintest.Rand(t)
	dir := t.TempDir()
	write := func(name string, n int) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, stageintest.RandBytes(r, n), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, time.Time{}, time.Unix(r.Int64N(1<<31), r.Int64N(1e9))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		write(fmt.Sprintf("s/d%d/f%d", i%5, i), r.IntN(3000))
	}
	write("s/"+strings.Repeat("long/", 60)+strings.Repeat("n", 250), 100)
	write("s/new\nline \xff\xfe", 10)
	write("s/giant", 60_000)
	for _, err := range []error{
		os.Symlink("../"+strings.Repeat("t", 200), filepath.Join(dir, "s/link")),
		os.Link(filepath.Join(dir, "s/giant"), filepath.Join(dir, "s/d0/hard")),
		os.Mkdir(filepath.Join(dir, "s/empty"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []string{"gnu", "posix", "oldgnu", "ustar", "v7"} {
		t.Run(format, func(t *testing.T) {
			args := []string{"-C", dir, "--format=" + format}
			if format == "ustar" || format == "v7" {
				args = append(args, "--exclude=long", "--exclude=link")
			}
			args = append(args, "-cf", "-", "s")
			var stderr bytes.Buffer
			cmd := exec.Command(program, args...)
			cmd.Stderr = &stderr
			archive, err := cmd.Output()
			if err != nil {
				t.Fatalf("tar: %v: %s", err, &stderr)
			}
			// If a region begins between the giant's extended header and its own header, that region is read again: its
			// end is too far away to wait for.
			onEveryCut(format != "posix")(t, archive)
		})
	}
}

// TestTarSlowNeighbour lets nodes read their whole regions before a boundary arrives.
func TestTarSlowNeighbour(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatPAX, stageintest.RandomMembers(r, tar.FormatPAX, 100))
	checkTar(t, archive, 4, func(j *jobtest.Job) {
		read, first := make(chan struct{}), true
		j.Order = func(part int) {
			if part == 0 {
				<-read
			}
		}
		j.FS.OnRead = func(_ string, off int64) {
			j.FS.Mu.Lock()
			defer j.FS.Mu.Unlock()
			if off+int64(j.Lim.Piece) >= int64(len(archive)) && first {
				first = false
				close(read)
			}
		}
	})
}

// TestTarSums checks that checksums are present where they should be.
func TestTarSums(t *testing.T) {
	r := stageintest.Rand(t)
	var members []stageintest.Member
	for i := range 50 {
		members = append(members, stageintest.TarFile(fmt.Sprint("f", i), stageintest.RandBytes(r, r.IntN(900))))
	}
	members = append(members, stageintest.TarFile("giant", stageintest.RandBytes(r, 30_000)))
	j := jobtest.TarJob(stageintest.WriteTar(t, tar.FormatGNU, members), 5)
	j.Lim.Carry = 2048
	got, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for p, e := range got {
		// CheckTree compares their values.
		if joined := strings.HasPrefix(string(e.Sum[:]), "crc-32c of b"); joined != (p == "giant") {
			t.Errorf("%s: sum %x", p, e.Sum)
		}
	}
}

func TestTarPutFails(t *testing.T) {
	r := stageintest.Rand(t)
	archive := stageintest.WriteTar(t, tar.FormatPAX, stageintest.RandomMembers(r, tar.FormatPAX, 100))
	for part := range 4 {
		j := jobtest.TarJob(archive, 4)
		j.Target = &stageintest.MemTarget{OnPut: func(node metadata.NodeID, ino metadata.Ino, n int) error {
			if int(ino.Part()) == part && ino.Seq() > 3 {
				return syscall.ENOSPC
			}
			return nil
		}}
		_, err := j.Run(context.Background())
		if !stageintest.ErrorHas(err, "no space left", " to n") {
			t.Errorf("part %d: %v, want ENOSPC that names file and node", part, err)
		}
	}
}
