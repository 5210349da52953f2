package fill_test

import (
	"context"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/jobtest"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// TestPackedDoesNotFit: a compressed tar for which the nodes have no room is refused with what is needed, what there is and
// what to do, whatever its format.
func TestPackedDoesNotFit(t *testing.T) {
	r := stageintest.Rand(t)
	const each = 128 << 10
	for _, c := range append(stageintest.PartedCodecs[:len(stageintest.PartedCodecs):len(stageintest.PartedCodecs)], stageintest.Codecs...) {
		t.Run(c.Name, func(t *testing.T) {
			j := jobtest.PackedJob(c.Pack(t, stageintest.ManySmall(t, r, 80, 12_000)), each)
			j.Target = stageintest.TightTarget(each)
			_, err := j.Run(context.Background())
			if !stageintest.ErrorHas(err, "/src/a.tar", " needs room for ", "128.0 KiB", "capacity=", "a plain tar or a zip archive", "unpack=no", "no space left") {
				t.Errorf("%v, want a refusal", err)
			}
		})
	}
}
