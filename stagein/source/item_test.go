package source

import (
	"encoding/json"
	"testing"
)

func TestItemJSON(t *testing.T) {
	for _, it := range []Item{
		{}, {Path: "a", Mode: 0o100644, Size: 5, Mtime: -3, Off: 7}, {Path: "\xff", Target: "<\xfe>", Hardlink: "&\u2028"}, {Path: `{"bytes":"x"}`},
	} {
		b, err := json.Marshal(it)
		var got Item
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if err != nil || got != it {
			t.Errorf("%+v through %s = %+v, %v", it, b, got, err)
		}
	}
}
