package job

import (
	"errors"
	"strconv"
	"strings"

	"github.com/bivouacfs/bivouac/metadata"
)

// Reserve is the part of a node's capacity that datasets leave to scratch. The zero value means no reserve.
type Reserve struct {
	Percent int   `json:"percent,omitempty"` // of the capacity
	Bytes   int64 `json:"bytes,omitempty"`   // the reserve without Percent, its maximum with Percent
}

// DefaultReserve is the reserve if neither site nor user sets one.
var DefaultReserve = Reserve{Percent: 10, Bytes: 64 << 30}

// Of returns the reserve of a node with that capacity, in bytes.
func (r Reserve) Of(capacity int64) int64 {
	if r.Percent == 0 {
		return min(r.Bytes, capacity)
	}
	p := int64(r.Percent)
	n := capacity/100*p + capacity%100*p/100
	if r.Bytes > 0 {
		n = min(n, r.Bytes)
	}
	return n
}

// String returns the text that ParseReserve parses, and the maximum of a percentage.
func (r Reserve) String() string {
	switch {
	case r.Percent == 0:
		return metadata.FormatBytes(r.Bytes)
	case r.Bytes > 0:
		return strconv.Itoa(r.Percent) + "%, at most " + metadata.FormatBytes(r.Bytes)
	}
	return strconv.Itoa(r.Percent) + "%"
}

// ParseReserve parses a size, with size, or a percentage such as "15%"; an empty text is the default.
func ParseReserve(v string, size func(string) (int64, error)) (Reserve, error) {
	if v == "" {
		return DefaultReserve, nil
	}
	if p, ok := strings.CutSuffix(v, "%"); ok {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 || n > 90 {
			return Reserve{}, errors.New("want 0% to 90%")
		}
		return Reserve{Percent: n}, nil
	}
	n, err := size(v)
	return Reserve{Bytes: n}, err
}
