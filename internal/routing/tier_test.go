package routing_test

import (
	"testing"
	"time"

	. "lmwarden/internal/routing"
)

// With a tier of the caches in the host's memory patience decides as affinity
// does, and says so.
func TestPatienceLeavesItToATier(t *testing.T) {
	tests := []struct {
		name   string
		option HostTier
		told   [2]bool
		down   bool // the second replica
		held   bool
	}{
		{"none tells of one", TierTold, [2]bool{false, false}, false, true},
		{"all tell of one", TierTold, [2]bool{true, true}, false, false},
		{"one has none", TierTold, [2]bool{true, false}, false, true},
		{"the one without is down", TierTold, [2]bool{true, false}, true, false},
		{"the operator knows of one", TierOn, [2]bool{false, false}, false, false},
		{"the operator wants none", TierOff, [2]bool{true, true}, false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBoxWith(t, Options{Policy: "patience", Replicas: separate(2), HostTier: test.option})
			for i, told := range test.told {
				b.core.Observe(b.now, i, Load{Capacity: 10_000, Epoch: 1, HostTier: told})
			}
			if test.down {
				b.set(1, Down)
			}
			b.pass(time.Second)
			b.open(sized(0, 9000))
			b.open(sized(1, 9000))
			_, a := b.try(sized(2, 9000))
			if held := a.Kind == Hold; held != test.held {
				t.Errorf("%+v, want held to be %v", a, test.held)
			}
			instead, why := "affinity", TierServes
			if test.held {
				instead, why = "", ""
			}
			if v := b.view(); v.Instead != instead || v.InsteadWhy != why {
				t.Errorf("%q decides in place of patience because of %q, want %q and %q", v.Instead, v.InsteadWhy, instead, why)
			}
		})
	}
}

// A tier that has lost what the cache has lost is too small, and patience holds
// again until it is large enough.
func TestATierMustFindWhatWasLost(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	tell := func(tier bool) {
		b.core.Observe(b.now, 0, Load{Capacity: 10_000, Epoch: 1, HostTier: tier})
		b.pass(time.Second)
	}
	tell(true)
	// Turns of three conversations in turn, of which the cache holds one.
	for n := range 3 {
		id, _ := b.open(sized(n, 8000))
		b.finish(id, complete(8000, 0, 0))
	}
	rounds := func(found int64) {
		for n := range 60 {
			id, _ := b.open(sized(n%3, 8000))
			b.finish(id, complete(8000, found, 0))
		}
		b.pass(time.Second)
	}
	decides := func(want string) {
		t.Helper()
		if v := b.view(); v.Instead != want {
			t.Errorf("%q decides in place of patience, want %q (found %+v)", v.Instead, want, v.Learned.Found)
		}
	}
	rounds(8000)
	decides("affinity")
	rounds(6000) // three quarters
	decides("")
	rounds(7200) // nine tenths are too few to come back to affinity
	decides("")
	rounds(8000)
	decides("affinity")
	rounds(7200) // and enough to stay there
	decides("affinity")
	for n := range 60 { // a changed history says nothing
		id, _ := b.open(sized(n%3, 8000))
		b.finish(id, complete(7000, 0, 1000))
	}
	b.pass(time.Second)
	decides("affinity")
	tell(false)
	decides("")
	if f := b.view().Learned.Found; f.Samples != 0 {
		t.Errorf("%+v is known of a tier that is gone", f)
	}
}

// Where reading takes next to nothing a wait saves nothing: patience decides as
// affinity does, says so, and holds again when reading takes its time.
func TestPatienceLeavesItToQuickReplicas(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	next := 0
	turns := func(n int, reading time.Duration) {
		for range n {
			next++
			id, _ := b.open(sized(next, 8000))
			b.pass(reading)
			b.core.FirstByte(b.now, id)
			b.pass(time.Second)
			b.finish(id, complete(8000, 0, 10))
		}
		b.pass(time.Second)
	}
	check := func(when string, held bool) {
		t.Helper()
		next += 2
		first, _ := b.open(sized(next-1, 8000))
		second, a := b.try(sized(next, 8000))
		if (a.Kind == Hold) != held {
			t.Errorf("%s: %+v, want held to be %v", when, a, held)
		}
		if v := b.view(); held != (v.Instead == "") || !held && (v.Instead != "affinity" || v.InsteadWhy != ReadsQuickly) {
			t.Errorf("%s: %q decides in place of patience because of %q", when, v.Instead, v.InsteadWhy)
		}
		b.finish(second, Outcome{})
		b.finish(first, Outcome{})
	}
	turns(10, time.Millisecond)
	check("little was measured", true)
	turns(10, time.Millisecond)
	check("quick", false)
	turns(100, 70*time.Millisecond)
	check("not slow enough", false)
	turns(100, 500*time.Millisecond)
	check("slow", true)
	turns(100, 70*time.Millisecond)
	check("not quick enough", true)
}
