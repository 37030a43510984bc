package routing_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	. "lmwarden/internal/routing"
)

func TestABurstOfFirstTurnsSpreadsEvenly(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	got, ids := b.burst(0, 40)
	if want := []int{10, 10, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("burst went %v, want %v", got, want)
	}
	b.finishAll(ids)
	if got := b.view().InFlight; got != 0 {
		t.Errorf("in flight after the burst: %d, want 0", got)
	}
}

func TestABurstOverTheRanksOfOneServerSpreadsEvenly(t *testing.T) {
	b := newBox(t, "affinity", ranks(4))
	got, _ := b.burst(0, 40)
	if want := []int{10, 10, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("burst went %v, want %v", got, want)
	}
}

func TestIdleSessionsSpreadEvenlyAndStay(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	if got, want := b.placedAt(0, 40), []int{10, 10, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("placed %v, want %v", got, want)
	}
	for range 5 {
		for n := range 40 {
			home := b.home(n).Replica
			if d := b.serve(turn(n)); d.Reason != Stayed || d.Replica != home {
				t.Fatalf("conversation %d of home %d: %v at %d, want stayed", n, home, d.Reason, d.Replica)
			}
		}
	}
	for i, r := range b.view().Replicas {
		if r.Sticky != 50 || r.MovedIn != 0 || r.SpilledIn != 0 {
			t.Errorf("replica %d: sticky %d, moved %d, spilled %d; want 50, 0, 0", i, r.Sticky, r.MovedIn, r.SpilledIn)
		}
	}
}

func TestSmallDifferencesInLengthDoNotUpsetTheSpread(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	placed := make([]int, 4)
	for n := range 40 {
		id, d := b.open(turn(n))
		placed[d.Replica]++
		b.finish(id, complete(7200+int64(n*37%300), 0, 256))
	}
	if want := []int{10, 10, 10, 10}; !slices.Equal(placed, want) {
		t.Errorf("placed %v, want %v", placed, want)
	}
}

func TestPlacementComparesInOrder(t *testing.T) {
	kv := func(used float64) Load { return Load{KVUsed: used, Capacity: 40000, Epoch: 1} }
	tests := []struct {
		name  string
		setup func(b *box)
		want  int
	}{
		{"fewest in flight", func(b *box) { b.fill(0, 1); b.fill(1, 1) }, 2},
		{"in flight before live context", func(b *box) {
			for n := range 4 {
				r := turn(100 + n)
				r.Pin = 2
				b.serve(r)
			}
			b.fill(0, 1)
			b.fill(1, 1)
		}, 2},
		{"lighter live context at equal in flight", func(b *box) {
			for replica, tokens := range []int64{50000, 20000, 60000} {
				r := turn(100 + replica)
				r.Pin = replica
				id, _ := b.open(r)
				b.finish(id, complete(tokens, 0, 0))
			}
			r := turn(103) // a second, light conversation at 1: still the lightest
			r.Pin = 1
			id, _ := b.open(r)
			b.finish(id, complete(500, 0, 0))
		}, 1},
		{"a context nobody measured weighs as the estimate", func(b *box) {
			for replica, tokens := range []int64{30000, 30000, 5000} {
				r := turn(100 + replica)
				r.Pin, r.Tokens = replica, tokens
				id, _ := b.open(r)
				b.finish(id, Outcome{OK: true})
			}
		}, 2},
		{"fewer conversations at nearly equal context", func(b *box) {
			for n, c := range []struct {
				replica int
				tokens  int64
			}{{0, 10000}, {1, 4990}, {1, 4990}, {2, 20000}, {2, 10000}} {
				r := turn(100 + n)
				r.Pin = c.replica
				id, _ := b.open(r)
				b.finish(id, complete(c.tokens, 0, 0))
			}
		}, 0},
		{"a context nobody knows weighs as the mean", func(b *box) {
			for n, c := range []struct {
				replica int
				tokens  int64
			}{{1, 3000}, {2, 9000}, {0, 0}} {
				r := turn(100 + n)
				r.Pin, r.Tokens = c.replica, c.tokens
				b.finish(first(b.open(r)), Outcome{OK: true})
			}
		}, 1},
		{"fewer conversations at equal context", func(b *box) {
			for n, replica := range []int{0, 0, 1, 2, 2} {
				r := turn(100 + n)
				r.Pin, r.Tokens = replica, 10
				b.serve(r)
			}
			for replica := range 3 { // heavy ones, so that the light ones do not count
				r := turn(200 + replica)
				r.Pin = replica
				id, _ := b.open(r)
				b.finish(id, complete(100000, 0, 0))
			}
		}, 1},
		{"a nearly full cache is avoided before in flight counts", func(b *box) {
			b.core.Observe(b.now, 0, kv(0.95))
			b.fill(1, 2)
			b.fill(2, 1)
		}, 2},
		{"a full replica is avoided", func(b *box) {
			b.core.Observe(b.now, 0, kv(0.1))
			b.core.Observe(b.now, 1, kv(0.99))
			b.core.Observe(b.now, 2, kv(0.1))
			b.fill(0, 7)
			b.fill(2, 8)
		}, 0},
		{"lower KV use of otherwise equal replicas", func(b *box) {
			b.core.Observe(b.now, 0, kv(0.8))
			b.core.Observe(b.now, 1, kv(0.5))
			b.core.Observe(b.now, 2, kv(0.1))
		}, 2},
		{"KV use known of some decides among those", func(b *box) {
			b.core.Observe(b.now, 0, kv(0.8))
			b.core.Observe(b.now, 1, kv(0.5))
		}, 1},
		{"stale KV use decides nothing", func(b *box) {
			b.core.Observe(b.now, 0, kv(0.95))
			b.core.Observe(b.now, 0, Load{Stale: true})
		}, 0},
		{"impossible KV use decides nothing", func(b *box) {
			b.core.Observe(b.now, 0, kv(95))
		}, 0},
		{"unknown replicas are not used while one is ready", func(b *box) {
			b.set(0, Unknown)
			b.set(1, Unknown)
			b.fill(2, 3)
		}, 2},
		{"unknown replicas are used when none is ready", func(b *box) {
			b.set(0, Draining)
			b.set(1, Unknown)
			b.set(2, Down)
		}, 1},
		{"draining is better than stuck", func(b *box) {
			b.set(0, Down)
			b.set(1, Stuck)
			b.set(2, Draining)
		}, 2},
		{"stuck is better than refusing", func(b *box) {
			b.set(0, Down)
			b.set(1, Stuck)
			b.set(2, Down)
		}, 1},
		{"nothing goes to a stuck replica while another is ready", func(b *box) {
			b.set(0, Stuck)
			b.set(1, Stuck)
			b.fill(2, 9)
		}, 2},
		{"the least recently chosen of equals", func(b *box) {
			b.finishAll(b.fill(0, 1))
			b.finishAll(b.fill(1, 1))
			b.finishAll(b.fill(2, 1))
			b.finishAll(b.fill(0, 1))
		}, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBox(t, "affinity", separate(3))
			test.setup(b)
			_, d := b.open(turn(0))
			if d.Replica != test.want || d.Reason != Placed || d.Home != test.want || d.From != None {
				t.Errorf("decision %+v, want placed at %d", d, test.want)
			}
		})
	}
}

func first(id RequestID, _ Decision) RequestID { return id }

func TestAReceiptHoldsTheNumbersCompared(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	b.set(2, Down)
	r := turn(9)
	r.Pin = 0
	b.serve(r)
	b.fill(1, 2)
	b.core.Observe(b.now, 0, Load{KVUsed: 0.25, Epoch: 1})
	_, d := b.open(turn(0))
	want := []Candidate{
		{Replica: 0, InFlight: 0, KVUsed: 0.25, LiveConversations: 1, LiveTokens: 1100},
		{Replica: 1, InFlight: 2, KVUsed: float32(math.NaN())},
	}
	if diff := cmp.Diff(want, d.Candidates, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
	if _, d := b.open(turn(9)); d.Reason != Stayed || d.Candidates != nil {
		t.Errorf("a turn at a home with room: %+v, want stayed and nothing compared", d)
	}
}

func TestSpillOnlyAtTheThresholdAndOnlyToAReplicaWithFewer(t *testing.T) {
	tests := []struct {
		name       string
		threshold  int
		at0, at1   int
		wantReason Reason
	}{
		{"under the automatic threshold", 0, 7, 0, Stayed},
		{"at the automatic threshold", 0, 8, 0, Spilled},
		{"at the threshold, the other has one fewer", 0, 8, 7, Spilled},
		{"at the threshold, the other has as many", 0, 8, 8, Stayed},
		{"over the threshold, the other over it with fewer", 0, 12, 9, Spilled},
		{"at a threshold of its own", 2, 2, 0, Spilled},
		{"under a threshold of its own", 20, 19, 0, Stayed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBoxWith(t, Options{Policy: "affinity", Replicas: separate(2), SpillThreshold: test.threshold})
			b.serve(turn(0)) // home 0
			b.fill(0, test.at0)
			b.fill(1, test.at1)
			_, d := b.open(turn(0))
			if d.Reason != test.wantReason || d.Home != 0 || d.From != 0 {
				t.Errorf("decision %+v, want %v, home 0", d, test.wantReason)
			}
			if d.Reason == Spilled && (d.Why != HomeFull || d.Replica != 1 || len(d.Candidates) != 2) {
				t.Errorf("spill %+v, want to 1, home full, two compared", d)
			}
		})
	}
}

func TestASpillLeavesTheHomeAndIsRemembered(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	b.serve(turn(0)) // home 0
	full := b.fill(0, 8)
	others := append(b.fill(1, 1), b.fill(2, 1)...)
	first := b.serve(turn(0))
	if first.Reason != Spilled || first.Replica != 3 {
		t.Fatalf("first spill %+v, want to 3", first)
	}
	if h := b.home(0); h.Replica != 0 || h.Spills != 1 || h.LastSpill != 3 || h.Moves != 0 {
		t.Errorf("home %+v, want home 0, one spill, to 3", h)
	}
	b.finishAll(others)

	busy := b.fill(3, 5)
	if d := b.serve(turn(0)); d.Replica != 3 {
		t.Errorf("second spill to %d, want 3 again although others are idle", d.Replica)
	}
	busy = append(busy, b.fill(3, 3)...)
	if d := b.serve(turn(0)); d.Reason != Spilled || d.Replica == 3 {
		t.Errorf("third spill %+v, want elsewhere: 3 is at the threshold", d)
	}
	b.finishAll(busy)

	b.finishAll(full)
	if d := b.serve(turn(0)); d.Reason != Stayed || d.Replica != 0 {
		t.Errorf("after the pressure: %+v, want stayed at 0", d)
	}
}

func TestAReplicaThatEmptiedSinceItsScrapeIsNotAvoidedAsFull(t *testing.T) {
	for name, c := range map[string]struct {
		running int // as scraped, beside one request of ours
		want    int
	}{
		"all of it left":              {running: 1, want: 0},
		"others remain in the engine": {running: 50, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "affinity", separate(2))
			ours := b.fill(0, 1)
			b.core.Observe(b.now, 0, Load{KVUsed: 0.99, Running: c.running, Capacity: 40000, Epoch: 1})
			b.core.Observe(b.now, 1, Load{KVUsed: 0.05, Capacity: 40000, Epoch: 1})
			b.finishAll(ours)
			busy := b.fill(1, 1)
			if d := b.serve(turn(1)); d.Replica != c.want {
				t.Errorf("placed on %d, want %d: %+v", d.Replica, c.want, d.Candidates)
			}
			b.finishAll(busy)
		})
	}
}

// The same of requests whose rank the engine chose.
func TestARankThatTheEnginesOwnRequestsLeftIsNotAvoidedAsFull(t *testing.T) {
	for name, c := range map[string]struct {
		running, leave int // on rank 0 as scraped; of the eight in all
		want           int
	}{
		"all of them left":            {running: 4, leave: 8, want: 0},
		"half of them left":           {running: 4, leave: 4, want: 0},
		"none left":                   {running: 4, leave: 0, want: 1},
		"others remain in the engine": {running: 200, leave: 8, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "affinity", ranks(2))
			var chosen []RequestID
			for range 8 {
				id, _ := b.open(Request{Pin: None, Blind: []bool{true}})
				chosen = append(chosen, id)
			}
			b.core.Observe(b.now, 0, Load{KVUsed: 0.95, Running: c.running, Capacity: 40000, Epoch: 1})
			b.core.Observe(b.now, 1, Load{KVUsed: 0.05, Running: 4, Capacity: 40000, Epoch: 1})
			b.finishAll(chosen[:c.leave])
			b.fill(1, 1)
			if d := b.serve(turn(1)); d.Replica != c.want {
				t.Errorf("placed on %d, want %d: %+v", d.Replica, c.want, d.Candidates)
			}
		})
	}
}

// A page is older than the look at it: what left in between is not counted as
// others' requests, which would make the replica look full until the next page.
func TestWhatLeftWhileThePageWasReadIsNotOthers(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.finishAll(b.fill(0, 5))
	b.core.Observe(b.now, 0, Load{KVUsed: 0.99, Running: 5, Capacity: 40000, Epoch: 1})
	b.core.Observe(b.now, 1, Load{KVUsed: 0.05, Capacity: 40000, Epoch: 1})
	b.fill(1, 1)
	if _, d := b.open(turn(1)); d.Replica != 0 || d.Candidates[0].KVUsed != 0 {
		t.Errorf("placed on %d, want 0 with nothing in use: %+v", d.Replica, d.Candidates)
	}
}

func TestALostConversationMovesWhereItSpilledWhileThatHasRoom(t *testing.T) {
	for busy, want := range map[int]int{2: 3, 3: 1} {
		b := newBox(t, "affinity", separate(4))
		b.serve(turn(0)) // home 0
		full := append(b.fill(0, 8), append(b.fill(1, 1), b.fill(2, 1)...)...)
		if d := b.serve(turn(0)); d.Reason != Spilled || d.Replica != 3 {
			t.Fatalf("%+v, want spilled to 3", d)
		}
		b.finishAll(full)
		b.set(0, Down)
		b.fill(3, busy)
		if d := b.serve(turn(0)); d.Reason != Moved || d.Replica != want {
			t.Errorf("with %d in flight at 3: %v to %d, want moved to %d", busy, d.Reason, d.Replica, want)
		}
	}
}

func TestASpillAvoidsWhatIsNotReady(t *testing.T) {
	for _, s := range []State{Unknown, Draining, Stuck, Down} {
		b := newBox(t, "affinity", separate(2))
		b.serve(turn(0))
		b.set(1, s)
		b.fill(0, 9)
		if _, d := b.open(turn(0)); d.Reason != Stayed {
			t.Errorf("other replica %v: %v, want stayed", s, d.Reason)
		}
	}
}

func TestDisplacedConversationsSpreadOverTheSurvivors(t *testing.T) {
	for _, mode := range []string{"one after the other", "at once"} {
		t.Run(mode, func(t *testing.T) {
			b := newBox(t, "affinity", separate(4))
			b.placedAt(0, 20)
			b.set(3, Down)
			before := make([]int, 20)
			for n := range 20 {
				before[n] = b.home(n).Replica
			}
			gained := make([]int, 4)
			var ids []RequestID
			for n := range 20 {
				if before[n] != 3 {
					continue
				}
				id, d := b.open(turn(n))
				if d.Reason != Moved || d.Why != HomeDown || d.From != 3 || d.Home != d.Replica {
					t.Fatalf("displaced conversation: %+v, want moved from 3, home down", d)
				}
				gained[d.Replica]++
				if mode == "at once" {
					ids = append(ids, id)
				} else {
					b.finish(id, complete(1000, 0, 100))
				}
			}
			b.finishAll(ids)
			slices.Sort(gained)
			if want := []int{0, 1, 2, 2}; !slices.Equal(gained, want) {
				t.Errorf("the survivors gained %v, want 2, 2 and 1", gained)
			}
			for n := range 20 {
				if before[n] != 3 {
					if d := b.serve(turn(n)); d.Reason != Stayed {
						t.Errorf("conversation %d of home %d: %v, want stayed: its home did not fail", n, before[n], d.Reason)
					}
				}
			}

			b.set(3, Ready)
			for n := range 20 {
				if d := b.serve(turn(n)); d.Reason != Stayed || d.Replica == 3 {
					t.Errorf("after the return conversation %d: %+v, want stayed where it is", n, d)
				}
			}
			placed := b.placedAt(100, 140)
			for i, n := range placed[:3] {
				if n >= placed[3]*2/3 {
					t.Errorf("of 40 new conversations replica %d got %d, the returned one %d: want most there", i, n, placed[3])
				}
			}
		})
	}
}

func TestWhatBecomesOfAConversationAtItsHome(t *testing.T) {
	tests := []struct {
		name       string
		home       State
		other      State
		wantReason Reason
		wantWhy    Why
	}{
		{"ready", Ready, Ready, Stayed, ""},
		{"down", Down, Ready, Moved, HomeDown},
		{"down, only an unknown left", Down, Unknown, Moved, HomeDown},
		{"down, only a stuck one left", Down, Stuck, Moved, HomeDown},
		{"draining", Draining, Ready, Moved, HomeDraining},
		{"draining, nothing better", Draining, Stuck, Stayed, ""},
		{"draining, nothing known to be better", Draining, Unknown, Stayed, ""},
		{"stuck", Stuck, Ready, Stayed, ""},
		{"not heard from yet", Unknown, Ready, Stayed, ""},
	}
	for _, policy := range []string{"affinity", "session-hash"} {
		for _, test := range tests {
			t.Run(policy+"/"+test.name, func(t *testing.T) {
				b := newBox(t, policy, separate(2))
				home := b.serve(turn(0)).Replica
				b.set(home, test.home)
				b.set(1-home, test.other)
				_, d := b.open(turn(0))
				wantAt := home
				if test.wantReason == Moved {
					wantAt = 1 - home
				}
				if d.Reason != test.wantReason || d.Why != test.wantWhy || d.Replica != wantAt || d.Home != wantAt || d.From != home {
					t.Errorf("decision %+v, want %v (%q) at %d", d, test.wantReason, test.wantWhy, wantAt)
				}
			})
		}
	}
}

func TestADeadReplicaWithNothingInFlightAttractsNobody(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	b.placedAt(0, 16)
	for i := range 3 {
		b.fill(i, 5)
	}
	b.set(3, Down)
	for n := range 16 {
		if home := b.home(n).Replica; home != 3 {
			if _, d := b.open(turn(n)); d.Replica == 3 || d.Reason == Moved {
				t.Errorf("conversation %d of home %d: %+v, want no move", n, home, d)
			}
		}
	}
}

func TestAForkGoesWhereItsHistoryIs(t *testing.T) {
	tests := []struct {
		name  string
		setup func(b *box)
		want  int
	}{
		{"idle", func(b *box) {}, 0},
		{"two more in flight than the least", func(b *box) { b.fill(0, 2) }, 0},
		{"three more", func(b *box) { b.fill(0, 3) }, 1},
		{"at the threshold", func(b *box) { b.fill(0, 8); b.fill(1, 7); b.fill(2, 8) }, 1},
		{"cache nearly full", func(b *box) { b.core.Observe(b.now, 0, Load{KVUsed: 0.97}) }, 1},
		{"draining", func(b *box) { b.set(0, Draining) }, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBox(t, "affinity", separate(3))
			b.serve(turn(0)) // home 0
			test.setup(b)
			r := turn(1)
			r.Extends, r.Parent = key(0), key(77)
			if _, d := b.open(r); d.Replica != test.want || d.Reason != Placed {
				t.Errorf("decision %+v, want placed at %d", d, test.want)
			}
		})
	}
}

func TestSubAgentsStartBesideTheirParentButAFanOutSpreads(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	b.serve(turn(0)) // home 0
	placed := make([]int, 4)
	for n := range 10 {
		r := turn(1 + n)
		r.Parent = key(0)
		_, d := b.open(r)
		if n == 0 && d.Replica != 0 {
			t.Errorf("first sub-agent at %d, want 0, beside its parent", d.Replica)
		}
		placed[d.Replica]++
	}
	if slices.Max(placed)-slices.Min(placed) > 2 {
		t.Errorf("fan-out of ten went %v, want it spread", placed)
	}
	if _, d := b.open(turn(0)); d.Reason != Stayed {
		t.Errorf("parent's next turn: %v, want stayed", d.Reason)
	}
}

func TestExtendsIsPreferredBeforeParent(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	for n := range 2 {
		r := turn(n)
		r.Pin = 2 + n
		b.serve(r)
	}
	r := turn(5)
	r.Parent, r.Extends = key(0), key(1)
	if _, d := b.open(r); d.Replica != 3 {
		t.Errorf("placed at %d, want 3, where the history is", d.Replica)
	}
}

func TestAnUnboundRequestGoesByLoadAlone(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.serve(turn(0)) // home 0
	b.fill(0, 1)
	r := unbound()
	r.Parent, r.Extends = key(0), key(0)
	if _, d := b.open(r); d.Replica != 1 {
		t.Errorf("went to %d, want 1, the least loaded", d.Replica)
	}
}

func TestTheReceiptOfASpillHoldsTheHomeWhateverItsState(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	b.finishAll(b.fill(0, 1))
	b.serve(turn(0)) // home 1
	b.set(1, Stuck)
	b.fill(1, 8)
	_, d := b.open(turn(0))
	var compared []int32
	for _, c := range d.Candidates {
		compared = append(compared, c.Replica)
	}
	if d.Reason != Spilled || !slices.Equal(compared, []int32{0, 1, 2}) {
		t.Errorf("%v, compared %v; want spilled, all compared", d.Reason, compared)
	}
}

func TestAnUnboundRequestBindsNothing(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.fill(0, 1)
	d := b.serve(unbound())
	if d.Reason != Unbound || d.Replica != 1 || d.Home != None || d.From != None {
		t.Errorf("decision %+v, want unbound at 1 without a home", d)
	}
	if v := b.view(); v.Known != 0 || v.Replicas[1].Unbound != 1 {
		t.Errorf("known %d, unbound at 1: %d; want 0 and 1", v.Known, v.Replicas[1].Unbound)
	}
}

func TestARestartOfTheEngineMakesItsConversationsCold(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	epoch := func(n int) { b.core.Observe(b.now, 0, Load{Epoch: n}) }
	cold := func(want bool, when string) {
		t.Helper()
		if d := b.serve(turn(0)); d.Reason != Stayed || d.Cold != want {
			t.Errorf("%s: %v, cold %v; want stayed, cold %v", when, d.Reason, d.Cold, want)
		}
	}
	b.serve(turn(0)) // before the first scrape: epoch unknown
	epoch(1)
	cold(false, "first scrape")
	cold(false, "same epoch")
	epoch(2)
	id, d := b.open(turn(0))
	if !d.Cold {
		t.Error("first turn after the restart is not cold")
	}
	b.finish(id, Outcome{})
	cold(true, "after a turn that failed")
	cold(false, "after a turn that was served")
	b.core.Observe(b.now, 0, Load{Stale: true, Epoch: 9})
	cold(false, "a stale scrape says nothing of epochs")
	epoch(3)
	if d := b.serve(turn(0)); d.Replica != 0 {
		t.Errorf("cold conversation went to %d, want its home 0", d.Replica)
	}
}

func TestThresholdAndPolicyChangeWithTheNextRequest(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.serve(turn(0))
	b.fill(0, 3)
	if err := b.core.SetSpillThreshold(3); err != nil {
		t.Fatal(err)
	}
	if d := b.serve(turn(0)); d.Reason != Spilled {
		t.Errorf("at the new threshold: %v, want spilled", d.Reason)
	}
	if v := b.view(); v.SpillThreshold != 3 || v.SpillAuto {
		t.Errorf("threshold %d, auto %v; want 3, false", v.SpillThreshold, v.SpillAuto)
	}
	if err := b.core.SetSpillThreshold(0); err != nil {
		t.Fatal(err)
	}
	if v := b.view(); v.SpillThreshold != 8 || !v.SpillAuto {
		t.Errorf("threshold %d, auto %v; want 8, true", v.SpillThreshold, v.SpillAuto)
	}
	if err := b.core.SetPolicy("off"); err != nil {
		t.Fatal(err)
	}
	if d := b.serve(turn(0)); d.Reason != Off {
		t.Errorf("off: %v", d.Reason)
	}
	if err := b.core.SetPolicy("affinity"); err != nil {
		t.Fatal(err)
	}
	if d := b.serve(turn(0)); d.Reason != Stayed || d.Replica != 0 {
		t.Errorf("affinity again: %+v, want stayed at the home from before", d)
	}
}

func TestConversationsThatAreNotLiveDoNotWeigh(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	for n := range 6 {
		r := turn(n)
		r.Pin = 0
		b.serve(r)
	}
	b.now = b.now.Add(10 * time.Minute)
	r := turn(6)
	r.Pin = 1
	b.serve(r)
	if d := b.serve(turn(7)); d.Replica != 0 {
		t.Errorf("placed at %d, want 0: its conversations are not live any more", d.Replica)
	}
}

func TestLightRequestsAreNotInFlight(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.serve(turn(0)) // home 0
	for range 26 {
		if _, d := b.open(Request{Pin: None, Light: true}); d.Reason != Unbound {
			t.Fatalf("%+v, want unbound", d)
		}
	}
	if d := b.serve(turn(0)); d.Reason != Stayed {
		t.Errorf("beside 26 light requests: %+v, want stayed", d)
	}
	if v := b.view(); v.InFlight != 0 || v.Replicas[0].Unbound+v.Replicas[1].Unbound != 26 {
		t.Errorf("in flight %d, unbound %d and %d; want 0 and 26 in all", v.InFlight, v.Replicas[0].Unbound, v.Replicas[1].Unbound)
	}
}

func TestARequestWithoutAConversationIsUnboundOnABlindRouteToo(t *testing.T) {
	b := newBox(t, "affinity", []Replica{{Server: 0}, {Server: 0}})
	id, d := b.open(Request{Pin: None, Blind: []bool{true}})
	if d.Reason != Unbound || d.Replica != None {
		t.Errorf("%+v, want unbound on no replica", d)
	}
	b.finish(id, Outcome{OK: true})
	if v := b.view(); v.EngineChosen != 1 || v.InFlight != 0 {
		t.Errorf("engine chosen %d, in flight %d; want 1 and 0", v.EngineChosen, v.InFlight)
	}
}
