package stagein

import "testing"

func TestSum(t *testing.T) {
	p := Sum([]Progress{{Bytes: 100, Files: 1, Done: true}, {Bytes: 300, Files: 2, Done: true}, {SourceBytes: 7}})
	if want := (Progress{Bytes: 400, Files: 3, SourceBytes: 7, Shares: 3, Most: 300}); p != want {
		t.Errorf("Sum = %+v, want %+v", p, want)
	}
	if x := p.Imbalance(); x != 2.25 {
		t.Errorf("Imbalance = %v, want 300 of a mean of 133", x)
	}
	if x := (&Progress{}).Imbalance(); x != 0 {
		t.Errorf("Imbalance of nothing = %v", x)
	}
}
