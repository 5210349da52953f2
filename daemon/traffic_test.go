package daemon

import (
	"testing"
	"time"
)

func TestMeter(t *testing.T) {
	var m meter
	at := time.Unix(1000, 0)
	m.take(at)
	if got, r := m.read(at); got != (Traffic{}) || r != (Rates{}) {
		t.Errorf("before there is a mount = %+v, %+v", got, r)
	}
	moved := int64(0)
	m.now = func() Activity { return Activity{Traffic: Traffic{ReadLocal: moved, WriteRemote: 2 * moved}} }
	for i := range 2 * samples { // 100 bytes a second, 300 in the last ten
		m.take(at)
		moved += 100
		if i >= samples {
			moved += 200
		}
		at = at.Add(time.Second)
	}
	got, r := m.read(at)
	if got.ReadLocal != moved || r.ReadLocal != 300 || r.WriteRemote != 600 || r.ReadRemote != 0 {
		t.Errorf("= %+v, %+v, want %d bytes, 300/s and 600/s", got, r, moved)
	}
	if len(m.past) != samples {
		t.Errorf("%d samples are kept, want %d", len(m.past), samples)
	}
	if _, r := m.read(m.past[0].at); r != (Rates{}) {
		t.Errorf("in no time = %+v", r)
	}
}

// TestTrafficFromSource: reads through from the source do not count as reads of this node's drives.
func TestTrafficFromSource(t *testing.T) {
	var m meter
	m.set(func() Activity { return Activity{Traffic: Traffic{ReadLocal: 12, ReadRemote: 3}} }, func() int64 { return 5 })
	got, _ := m.read(time.Now())
	if want := (Traffic{ReadLocal: 7, ReadRemote: 3, ReadSource: 5}); got != want {
		t.Errorf("traffic %+v, want %+v", got, want)
	}
}
