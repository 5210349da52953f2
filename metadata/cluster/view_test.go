package cluster

import "testing"

func TestActive(t *testing.T) {
	v := View{Datasets: []Dataset{{ID: 1, Name: "a", Phase: Failed}, {ID: 2, Name: "a", Phase: Removed}, {ID: 3, Name: "a"}, {ID: 4, Name: "c", Phase: Removed}}}
	if ds, ok := v.Active("a"); !ok || ds.ID != 3 {
		t.Errorf("Active(a) = %+v, %v, want dataset 3", ds, ok)
	}
	for _, name := range []string{"b", "c"} {
		if ds, ok := v.Active(name); ok {
			t.Errorf("Active(%s) = %+v, want none", name, ds)
		}
	}
}
