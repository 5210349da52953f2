package stagein

import (
	"cmp"
	"slices"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// TestNeighboursShareCuts: files that have stayed in a compressed tar and are read one after the
// other, or at once, do not unpack each time what is before them.
func TestNeighboursShareCuts(t *testing.T) {
	r := seed(t)
	plain := manySmall(t, r, 500, 6000)
	want, err := twin(plain)
	checked(t, err)
	for name, read := range map[string]func(stays []manifest.Record, one func(manifest.Record)){
		"in their order": func(stays []manifest.Record, one func(manifest.Record)) {
			for _, x := range stays {
				one(x)
			}
		},
		"at once": func(stays []manifest.Record, one func(manifest.Record)) {
			var wg sync.WaitGroup
			for _, x := range stays {
				wg.Go(func() { one(x) })
			}
			wg.Wait()
		},
	} {
		for kind, archive := range map[string][]byte{"frames": trusting(t, plain, 50_000), "one member": oneMember.pack(t, plain)} {
			t.Run(name+", "+kind, func(t *testing.T) {
				fsys := new(flipFS)
				f, stays := spilt(t, archive, fsys, quiet())
				if len(stays) < 50 {
					t.Fatalf("%d files stay", len(stays))
				}
				slices.SortFunc(stays, func(a, b manifest.Record) int { return cmp.Compare(a.From.Off, b.From.Off) })
				was := fsys.memFS.read.Load()
				read(stays, func(x manifest.Record) {
					if got, err := readWindow(f, x.Attr.Ino, x.Attr.Size); err != nil || got != want[x.Path].Data {
						t.Errorf("%s: %d bytes, %v", x.Path, len(got), err)
					}
				})
				if n := fsys.memFS.read.Load() - was; n > 4*int64(len(archive)) {
					t.Errorf("%d bytes were read of %d, for %d files", n, len(archive), len(stays))
				}
				if out := f.bufs.in.Out() + f.bufs.out.Out(); out != 0 {
					t.Errorf("%d buffers were not released", out)
				}
			})
		}
	}
}
