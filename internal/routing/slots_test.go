package routing_test

import (
	"testing"

	. "lmwarden/internal/routing"
)

// What is in flight beyond the slots waits in the engine, so the automatic
// threshold is not above them.
func TestSlotsBoundTheAutomaticThreshold(t *testing.T) {
	tests := []struct {
		name      string
		threshold int
		slots     [2]int
		at0       int
		want      int // the threshold in force
		reason    Reason
	}{
		{"a slot is free", 0, [2]int{4, 4}, 3, 4, Stayed},
		{"no slot is free", 0, [2]int{4, 4}, 4, 4, Spilled},
		{"one replica has fewer", 0, [2]int{6, 2}, 2, 2, Spilled},
		{"one does not tell", 0, [2]int{0, 3}, 3, 3, Spilled},
		{"more slots than the threshold", 0, [2]int{64, 64}, 7, 8, Stayed},
		{"a threshold of its own", 6, [2]int{4, 4}, 5, 6, Stayed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBoxWith(t, Options{Policy: "affinity", Replicas: separate(2), SpillThreshold: test.threshold})
			for i, n := range test.slots {
				b.core.Observe(b.now, i, Load{Slots: n, Epoch: 1})
			}
			b.serve(turn(0)) // home 0
			b.fill(0, test.at0)
			if _, d := b.open(turn(0)); d.Reason != test.reason {
				t.Errorf("decision %+v, want %v", d, test.reason)
			}
			if got := b.view().SpillThreshold; got != test.want {
				t.Errorf("threshold %d, want %d", got, test.want)
			}
		})
	}
}

// However much cache is free, a request waits at the gateway for a slot, where it
// can still go elsewhere.
func TestPatienceWaitsForASlot(t *testing.T) {
	b := newBox(t, "patience", separate(1))
	b.core.Observe(b.now, 0, Load{Capacity: 1_000_000, Slots: 2, Epoch: 1})
	first, _ := b.open(sized(0, 100))
	b.open(sized(1, 100))
	id, _ := b.hold(sized(2, 100))
	if got := b.end(first, complete(100, 0, 10)); got[id] != 0 || len(got) != 1 {
		t.Errorf("started %v when a slot was free, want %d at 0", got, id)
	}
}
