package rpc

import (
	"fmt"
	"testing"
	"time"
)

// TestRefusals: one refusal a minute is logged for each host, with the number of refusals not logged.
func TestRefusals(t *testing.T) {
	var r refusals
	at := time.Unix(1000, 0)
	for i := range 2000 {
		if _, first := r.count("a", at.Add(time.Duration(i)*10*time.Millisecond)); first != (i == 0) {
			t.Fatalf("refusal %d is logged: %v", i, first)
		}
	}
	if _, first := r.count("b", at.Add(time.Second)); !first {
		t.Error("the first refusal of another host is not logged")
	}
	if more, first := r.count("a", at.Add(refusalEvery)); !first || more != 1999 {
		t.Errorf("after a minute it is logged: %v, with %d more, want 1999", first, more)
	}
	for i := range 3 * maxRefusals {
		r.count(fmt.Sprint(i), at)
	}
	if len(r.hosts) > maxRefusals {
		t.Errorf("%d hosts are remembered", len(r.hosts))
	}
}
