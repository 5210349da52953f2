package stagein

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

func TestParseOrder(t *testing.T) {
	for s, want := range map[string]Order{
		"": {}, "shuffled": {Kind: OrderShuffled}, "source": {Kind: OrderSource},
		"seed:0": {Kind: OrderSeed}, "seed:18446744073709551615": {Kind: OrderSeed, Seed: 1<<64 - 1},
		"random:4": {Kind: OrderRandom, Seed: 4}, "loader:5,ranks=2,epochs=3,root=a//b,drop_last": {Kind: OrderLoader, Seed: 5, Ranks: 2, Epochs: 3, Root: "a/b", DropLast: true},
		"list:/a//b": {Kind: OrderList, List: "/a/b"},
	} {
		got, err := ParseOrder(s)
		if err != nil || got != want {
			t.Errorf("ParseOrder(%q) = %+v, %v, want %+v", s, got, err, want)
		}
		if again, err := ParseOrder(got.String()); err != nil || again != want {
			t.Errorf("ParseOrder(%q) = %+v, %v, want %+v", got, again, err, want)
		}
	}
	for _, s := range []string{"random", "seed", "seed:", "seed:-1", "seed:x", "list", "list:", "shuffled:1", "source:", ":"} {
		want := "shuffled, source, seed:S, random:S, loader:S or list:FILE"
		if strings.HasPrefix(s, "seed:") {
			want = "the seed must be a whole number from 0 to"
		}
		if o, err := ParseOrder(s); !stageintest.ErrorHas(err, want) {
			t.Errorf("ParseOrder(%q) = %+v, %v", s, o, err)
		}
	}
}

func TestOrderCheck(t *testing.T) {
	for _, o := range []Order{{}, {Kind: OrderSource}, {Kind: OrderSeed, Seed: 3, Ranks: 4, Root: "a"}, {Kind: OrderShuffled, Seed: 5}, {Kind: OrderList, List: "/x"}} {
		if err := o.check(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []Order{{Kind: "x"}, {Kind: OrderList}, {Kind: OrderList, List: "x"}, {Kind: OrderList, List: "/x\x00"}, {List: "/x"}, {Kind: OrderSource, Ranks: 2}, {Kind: OrderSeed, Root: "/a"}, {Kind: OrderSeed, List: "/x"}} {
		if err := o.check(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v, want EINVAL", o, err)
		}
	}
}

func FuzzParseOrder(f *testing.F) {
	for _, s := range []string{"", "shuffled", "seed:7", "list:/x", "seed:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOrder(s)
		if err != nil {
			return
		}
		if again, err := ParseOrder(o.String()); err != nil || again != o {
			t.Errorf("ParseOrder(%q) = %+v, %v, want %+v", o, again, err, o)
		}
	})
}
