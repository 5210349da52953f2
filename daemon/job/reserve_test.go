package job

import (
	"errors"
	"strconv"
	"testing"
)

func TestReserve(t *testing.T) {
	size := func(v string) (int64, error) { return strconv.ParseInt(v, 10, 64) }
	for _, c := range []struct {
		text     string
		capacity int64
		want     int64
		err      bool
	}{
		{"", 1005, 100, false},
		{"", 10 << 40, 64 << 30, false},
		{"25%", 4 << 40, 1 << 40, false},
		{"0", 1 << 30, 0, false},
		{"0%", 1 << 30, 0, false},
		{"4096", 1 << 30, 4096, false},
		{"4096", 1024, 1024, false},
		{"91%", 0, 0, true},
		{"-1%", 0, 0, true},
		{"x%", 0, 0, true},
		{"much", 0, 0, true},
	} {
		r, err := ParseReserve(c.text, size)
		if (err != nil) != c.err {
			t.Errorf("ParseReserve(%q): %v", c.text, err)
		}
		if got := r.Of(c.capacity); err == nil && got != c.want {
			t.Errorf("%q of %d = %d, want %d", c.text, c.capacity, got, c.want)
		}
	}
	if _, err := ParseReserve("1", func(string) (int64, error) { return 0, errors.New("no") }); err == nil {
		t.Error("an error of the size is lost")
	}
}
