package source

import (
	"slices"
	"testing"
)

// TestSparseMap compares the map, at every position, with a map of single bytes.
func TestSparseMap(t *testing.T) {
	for _, pairs := range [][]int64{nil, {0, 3}, {4, 2}, {0, 2, 5, 1, 6, 3, 12, 1}, {3, 0, 3, 4, 10, 0}, {14, 1}} {
		const size = 15
		var stored int64
		var at []int64 // position in the file, for each byte of data
		for i := 0; i < len(pairs); i += 2 {
			stored += pairs[i+1]
			for k := range pairs[i+1] {
				at = append(at, pairs[i]+k)
			}
		}
		m, err := NewSparse(pairs, size, stored)
		if err != nil {
			t.Fatalf("NewSparse(%v): %v", pairs, err)
		}
		for pos := range int64(size) {
			if got, want := m.Data(pos), slices.Contains(at, pos); got != want {
				t.Errorf("%v: Data(%d) = %v", pairs, pos, got)
			}
			for end := pos; end <= size; end++ {
				from, to := m.Within(pos, end)
				var want []int64
				for i, p := range at {
					if p >= pos && p < end {
						want = append(want, int64(i))
					}
				}
				if to-from != int64(len(want)) || len(want) > 0 && from != want[0] {
					t.Errorf("%v: Within(%d, %d) = %d, %d, want %v", pairs, pos, end, from, to, want)
				}
			}
		}
		for a := range stored {
			for n := int64(1); a+n <= stored; n++ {
				var got []int64
				err := m.Pour(a, make([]byte, n), func(b []byte, pos int64) error {
					for i := range b {
						got = append(got, pos+int64(i))
					}
					return nil
				})
				if err != nil || !slices.Equal(got, at[a:a+n]) {
					t.Errorf("%v: Pour(%d, %d) = %v, %v, want %v", pairs, a, n, got, err, at[a:a+n])
				}
				if _, end := m.Span(a, n); a+n < stored {
					if next, _ := m.Span(a+n, 1); next != end {
						t.Errorf("%v: Span(%d, %d) ends at %d, the next begins at %d", pairs, a, n, end, next)
					}
				}
			}
		}
	}
}
