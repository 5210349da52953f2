package stagein

import (
	"slices"
	"testing"
)

// TestPlanAgain: each try of a part has its own inode number range, and Void lists the ranges of failed tries.
func TestPlanAgain(t *testing.T) {
	p := &Plan{Parts: []Part{{Index: 0, Node: 4}, {Index: 1, Node: 5}, {Index: 2, Node: 6}}}
	q := p.Retry(1, 7).Retry(1, 8).Retry(2, 4)
	if p.Parts[1].Try != 0 || p.Parts[1].Node != 5 {
		t.Errorf("the first plan has become %+v", p.Parts[1])
	}
	var numbers []int
	for _, x := range q.Parts {
		numbers = append(numbers, x.Number(len(q.Parts)))
	}
	if want := []int{0, 7, 5}; !slices.Equal(numbers, want) {
		t.Errorf("numbers %v, want %v", numbers, want)
	}
	if got, want := q.Void([]Try{{1, 9}, {7, 3}}), []Try{{4, 0}, {1, 9}, {2, 0}}; !slices.Equal(got, want) {
		t.Errorf("Void() = %v, want %v", got, want)
	}
	if q.Parts[1].Node != 8 || q.Parts[2].Node != 4 {
		t.Errorf("parts %+v", q.Parts)
	}
}
