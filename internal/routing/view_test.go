package routing_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "lmwarden/internal/routing"
)

func TestWorkingSet(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	check := func(when string, want WorkingSet) {
		t.Helper()
		if diff := cmp.Diff(want, b.view().WorkingSet); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	first := func(n int, prompt, cached, completion int64) {
		t.Helper()
		id, _ := b.open(turn(n))
		b.finish(id, complete(prompt, cached, completion))
	}
	check("at start", WorkingSet{-1, -1, -1, -1})

	b.core.Observe(b.now, 0, Load{Capacity: 40000, Epoch: 1})
	b.core.Observe(b.now, 1, Load{Capacity: 30000, Epoch: 1})
	check("capacity known", WorkingSet{-1, 70000, -1, -1})

	// The first conversation of a replica finds nothing and teaches nothing.
	first(0, 9000, 0, 1000)
	first(1, 9000, 0, 1000)
	check("no shared prefix known", WorkingSet{Tokens: 20000, Capacity: 70000, Fits: 7, Shared: -1})

	first(2, 9000, 3000, 1000)
	first(3, 13000, 3000, 1000)
	// 4 conversations of 44,000 tokens, of which 7,000, 7,000, 7,000 and 11,000
	// are their own, and the prefix on two replicas. Mean 8,000: 37000/8000 and
	// 27000/8000 fit.
	check("shared prefix known", WorkingSet{Tokens: 38000, Capacity: 70000, Fits: 4 + 3, Shared: 3000})

	b.set(1, Down)
	check("a replica down", WorkingSet{Tokens: 38000, Capacity: 40000, Fits: 4, Shared: 3000})
	b.set(1, Ready)
	b.core.Observe(b.now, 0, Load{Stale: true})
	check("a stale scrape", WorkingSet{Tokens: 38000, Capacity: 70000, Fits: 7, Shared: 3000})

	b.now = b.now.Add(11 * time.Minute)
	check("nobody live", WorkingSet{Tokens: 0, Capacity: 70000, Fits: -1, Shared: 3000})
}

func TestTheSharedPrefixIsAMedianOfFirstTurns(t *testing.T) {
	b := newBox(t, "affinity", separate(1))
	n := 0
	first := func(cached int64) {
		id, _ := b.open(turn(n))
		b.finish(id, complete(9000, cached, 10))
		n++
	}
	shared := func(want int64, when string) {
		t.Helper()
		if got := b.view().WorkingSet.Shared; got != want {
			t.Errorf("%s: shared %d, want %d", when, got, want)
		}
	}
	first(0)
	shared(-1, "only a cold first turn")
	for range 5 {
		first(3500)
	}
	first(8900) // the same conversation run again
	first(0)    // evicted
	shared(3500, "two outliers")

	fork := turn(1000)
	fork.Extends = key(0)
	for range 20 {
		id, _ := b.open(turn(0)) // later turns
		b.finish(id, complete(9000, 8000, 10))
		fork.Key = key(1000 + n)
		n++
		id, _ = b.open(fork) // continued histories
		b.finish(id, complete(9000, 8000, 10))
		id, _ = b.open(turn(n + 5000)) // failed ones
		b.finish(id, Outcome{Known: true, CachedKnown: true, Cached: 100})
		n++
	}
	shared(3500, "after turns that say nothing about the prefix")
	for range 15 {
		first(5000)
	}
	shared(5000, "after fifteen with another prefix")
	b.core.Observe(b.now, 0, Load{Epoch: 2})
	for range 15 {
		id, _ := b.open(turn(n))
		b.core.Observe(b.now, 0, Load{Epoch: 2 + n})
		b.finish(id, complete(9000, 0, 10))
		n++
	}
	shared(5000, "after first turns on an engine that just started")
}

func TestViewShowsTheLoadOfEachReplica(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	l := Load{Running: 3, Waiting: 1, KVUsed: 0.5, Capacity: 40000, Epoch: 2}
	b.core.Observe(b.now, 1, l)
	b.set(0, Stuck)
	v := b.view()
	if v.Replicas[0].State != Stuck || !v.Replicas[0].Observed.IsZero() {
		t.Errorf("replica 0: %+v, want stuck, never observed", v.Replicas[0])
	}
	if v.Replicas[1].Load != l || !v.Replicas[1].Observed.Equal(b.now) {
		t.Errorf("replica 1: %+v, want the load observed now", v.Replicas[1])
	}
	b.core.Observe(b.now, 1, Load{Stale: true})
	l.Stale = true
	if got := b.view().Replicas[1].Load; got != l {
		t.Errorf("stale load %+v, want the old numbers, marked", got)
	}
}

func TestTheViewEstimatesWhatIsCached(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	cached := func(want ...int64) {
		t.Helper()
		for i, r := range b.view().Replicas {
			if r.CachedTokens != want[i] {
				t.Errorf("replica %d has %d tokens cached, want %d", i, r.CachedTokens, want[i])
			}
		}
	}
	cached(0, 0)
	id, _ := b.open(turn(0))
	b.finish(id, complete(1200, 0, 50))
	cached(1250, 0)
	id, _ = b.open(turn(1))
	b.finish(id, complete(800, 0, 20))
	cached(1250, 820)
	b.core.Observe(b.now, 0, Load{Epoch: 1})
	b.core.Observe(b.now, 0, Load{Epoch: 2}) // its engine restarted
	cached(0, 820)
}
