package stagein

import (
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/stagein/source"
)

func TestOptions(t *testing.T) {
	for spec, want := range map[string]Request{
		"/a/b.tar":                            {Source: "/a/b.tar", Name: "b"},
		"/a/b.tar,unpack=no":                  {Source: "/a/b.tar", Name: "b", Options: Options{Unpack: UnpackNo}},
		"/a/b.tar:x,unpack=yes,on-error=fail": {Source: "/a/b.tar", Name: "x"},
		"/a/b.tar:x,unpack=apart,limit=7":     {Source: "/a/b.tar", Name: "x", Options: Options{Unpack: UnpackApart, Limit: 7}},
		"/a/wds/train-*.tar,unpack=apart":     {Source: "/a/wds/train-*.tar", Name: "wds", Options: Options{Unpack: UnpackApart}},
		"/a/{00..99}/x.tar":                   {Source: "/a/{00..99}/x.tar", Name: "a"},
		"/a/d,list=/b/l.txt,on-error=skip":    {Source: "/a/d", Name: "d", Options: Options{List: "/b/l.txt", OnError: OnErrorSkip}},
		"/a/d,list=l":                         {Source: "/a/d", Name: "d", Options: Options{List: "/wd/l"}},
		"/a/d,include=*.jpg,exclude=x,,y":     {Source: "/a/d", Name: "d", Options: Options{Include: []source.Name{"*.jpg"}, Exclude: []source.Name{"x,y"}}},
		"/a/d,include=a,include=b,include==":  {Source: "/a/d", Name: "d", Options: Options{Include: []source.Name{"a", "b", "="}}},
		"/a/d,replicas=2":                     {Source: "/a/d", Name: "d", Options: Options{Replicas: "2"}},
		"/a/d,replicas=none,limit=1":          {Source: "/a/d", Name: "d", Options: Options{Limit: 1}},
		"/a/b.tar,index=auto":                 {Source: "/a/b.tar", Name: "b"},
		"/a/b.tar,index=beside":               {Source: "/a/b.tar", Name: "b", Options: Options{Index: IndexBeside}},
		"/a/b.tar,index=./i":                  {Source: "/a/b.tar", Name: "b", Options: Options{Index: "/wd/i"}},
		"/a/b.tar,order=seed:3":               {Source: "/a/b.tar", Name: "b", Options: Options{Fill: Order{Kind: OrderSeed, Seed: 3}}},
		"/a/b.tar,root=t//,ranks=8,order=loader:3,epochs=9,limit=1,drop-last=yes": {Source: "/a/b.tar", Name: "b", Options: Options{Limit: 1,
			Fill: Order{Kind: OrderLoader, Seed: 3, Ranks: 8, Epochs: 9, Root: "t", DropLast: true}}},
		"/a/b.tar,order=list:l,drop-last=no": {Source: "/a/b.tar", Name: "b", Options: Options{Fill: Order{Kind: OrderList, List: "/wd/l"}}},
		"/a/x,y,z":                           {Source: "/a/x,y,z", Name: "x,y,z"},
		"/a/x,,y":                            {Source: "/a/x,,y", Name: "x,,y"},
		"/a/x,,year=2020":                    {Source: "/a/x,year=2020", Name: "x,year=2020"},
		"/a/x,,,limit=1":                     {Source: "/a/x,", Name: "x,", Options: Options{Limit: 1}},
		"/a/K=1,Year=2,limit=1":              {Source: "/a/K=1,Year=2", Name: "K=1,Year=2", Options: Options{Limit: 1}},
		"/a/\xff:y,include=\xfe":             {Source: "/a/\xff", Name: "y", Options: Options{Include: []source.Name{"\xfe"}}},
	} {
		got, err := ParseSpec(spec, "/wd")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseSpec(%q) = %+v, %v, want %+v", spec, got, err, want)
		}
	}
	for spec, part := range map[string]string{
		"/a,limit=0":                  "limit=0",
		"/a,limit=x":                  "number",
		"/a,limit=1,limit=2":          "twice",
		"/a,unpack=maybe":             "apart",
		"/a,on-error=ignore":          "skip",
		"/a,list=":                    "no value",
		"/a,list=\x00":                "absolute",
		"/a,include=[":                "pattern",
		"/a,index=besides":            "beside, off, or a path",
		"/a,index=/\x00":              "beside, off, or a path",
		"/a,replicas=some":            "a number of nodes, all, spare or none",
		"/a,foo=1":                    "known are drop-last, epochs, exclude, include, index, limit, list, on-error, order, overflow, ranks, replicas, root, unpack",
		"/a,order=seed:1,ranks=0":     "ranks must be a number from 1",
		"/a,order=seed:1,root=..":     "root=",
		"/a,ranks=2":                  "are for order=seed:S",
		"/a,order=list:l,root=x":      "are for order=seed:S",
		"/a,order=source,root=x":      "is not known",
		"/a,order=seed:1,drop-last=1": "want yes or no",
		"/a,limit=1,oops":             "comma inside a value twice",
		"/a,limit=1,":                 "comma inside a value twice",
		"/a/\xff":                     "SRC:NAME",
		"/*":                          "SRC:NAME",
		",limit=1":                    "no source",
	} {
		if r, err := ParseSpec(spec, "/wd"); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), part) {
			t.Errorf("ParseSpec(%q) = %+v, %v, want EINVAL with %q", spec, r, err, part)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{"/a:b,limit=1", "/a,,x=1,include=a,,b", "/{0..9}*,unpack=no", ",", "/:,=", "a,b=c=,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseSpec(s, "/wd")
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Errorf("ParseSpec(%q) = %+v, which is not valid: %v", s, r, err)
		}
	})
}
