package routing_test

import (
	"slices"
	"testing"

	. "lmwarden/internal/routing"
)

// counted is the sum of all reasons' counters.
func (b *box) counted() int64 {
	v := b.view()
	n := v.EngineChosen
	for _, r := range v.Replicas {
		n += r.Placed + r.Sticky + r.SpilledIn + r.MovedIn + r.ClientPinned + r.Unbound
	}
	return n
}

func TestAFailedFirstTurnIsPlacedElsewhereAndCountsOnce(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	id, d := b.open(turn(0))
	b.set(d.Replica, Down)
	d2 := b.retry(id)
	if d2.Reason != Placed || d2.Replica == d.Replica || d2.From != None || d2.Home != d2.Replica {
		t.Errorf("retry %+v, want placed elsewhere", d2)
	}
	v := b.view()
	if v.Replicas[d.Replica].Placed != 0 || v.Replicas[d2.Replica].Placed != 1 || b.counted() != 1 {
		t.Errorf("placed at the first %d, at the second %d, in all %d; want 0, 1, 1",
			v.Replicas[d.Replica].Placed, v.Replicas[d2.Replica].Placed, b.counted())
	}
	if v.Replicas[d.Replica].InFlight != 0 || v.Replicas[d2.Replica].InFlight != 1 {
		t.Errorf("in flight %v", b.inFlight())
	}
	if h := b.home(0); h.Turns != 1 || h.Moves != 0 || h.Replica != d2.Replica {
		t.Errorf("home %+v, want one turn, no move", h)
	}
}

func TestOneFailedAttemptDoesNotCostAHomeThatIsUp(t *testing.T) {
	tests := []struct {
		name       string
		after      State // of the home after the attempt failed
		wantReason Reason
		wantWhy    Why
	}{
		{"ready", Ready, Spilled, Failed},
		{"not heard from", Unknown, Spilled, Failed},
		{"down", Down, Moved, Failed},
		{"draining", Draining, Moved, Failed},
		{"stuck", Stuck, Moved, HomeStuck},
	}
	for _, policy := range []string{"affinity", "session-hash"} {
		for _, test := range tests {
			t.Run(policy+"/"+test.name, func(t *testing.T) {
				b := newBox(t, policy, separate(2))
				home := b.serve(turn(0)).Replica
				id, _ := b.open(turn(0))
				b.set(home, test.after)
				d := b.retry(id)
				wantHome := home
				if test.wantReason == Moved {
					wantHome = 1 - home
				}
				if d.Reason != test.wantReason || d.Why != test.wantWhy || d.Replica != 1-home || d.Home != wantHome || d.From != home {
					t.Errorf("retry %+v, want %v (%s) at %d, home %d", d, test.wantReason, test.wantWhy, 1-home, wantHome)
				}
				if v := b.view(); v.Replicas[home].Sticky != 0 || b.counted() != 2 {
					t.Errorf("sticky at home %d, counted %d; want 0 and 2", v.Replicas[home].Sticky, b.counted())
				}
				if h := b.home(0); h.Turns != 2 || h.Moves+h.Spills != 1 {
					t.Errorf("home %+v, want two turns, one move or spill", h)
				}
			})
		}
	}
}

func TestARetryLeavesTheFailureDomain(t *testing.T) {
	b := newBox(t, "affinity", ranks(4, 1))
	b.fill(4, 6)
	id, d := b.open(turn(0))
	if d.Server != 0 {
		t.Fatalf("placed at server %d", d.Server)
	}
	if d := b.retry(id); d.Server != 1 {
		t.Errorf("retry at server %d, want 1: all ranks of 0 are one failure domain", d.Server)
	}
	if a := b.one(id, b.core.Retry(b.now, id)); a.Kind != Refuse || a.Why != NoReplica {
		t.Errorf("second retry %+v, want a refusal: no server is left", a)
	}
	if a := b.one(id, b.core.Retry(b.now, id)); a.Kind != Refuse {
		t.Errorf("retry of a refused request: %+v, want a refusal", a)
	}
	if v := b.view(); v.InFlight != 6 || b.counted() != 7 {
		t.Errorf("in flight %d, counted %d; want 6 and 7", v.InFlight, b.counted())
	}
	b.finish(id, Outcome{})
	if h := b.home(0); h.InFlight != 0 || h.Replica != None {
		t.Errorf("home %+v, want none: its first turn was never served", h)
	}
	if d := b.serve(turn(0)); d.Reason != Placed {
		t.Errorf("next try: %v, want placed", d.Reason)
	}
}

func TestAFailedMoveIsMovedOnFromTheOldHome(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	b.serve(turn(0)) // home 0
	b.set(0, Down)
	id, d := b.open(turn(0))
	first := d.Replica
	b.set(first, Down)
	d = b.retry(id)
	if d.Reason != Moved || d.Why != HomeDown || d.From != 0 || d.Replica == first {
		t.Errorf("retry %+v, want moved from 0", d)
	}
	if h := b.home(0); h.Moves != 1 || h.Replica != d.Replica {
		t.Errorf("home %+v, want one move", h)
	}
}

func TestAFailedSpillIsForgotten(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	b.serve(turn(0))
	b.fill(0, 8)
	id, d := b.open(turn(0))
	if d.Reason != Spilled {
		t.Fatalf("%v, want spilled", d.Reason)
	}
	d2 := b.retry(id)
	if d2.Reason != Spilled || d2.Why != HomeFull || d2.Replica == d.Replica || d2.Replica == 0 {
		t.Errorf("retry %+v, want spilled to the third", d2)
	}
	if h := b.home(0); h.Spills != 1 || h.LastSpill != d2.Replica || h.Replica != 0 {
		t.Errorf("home %+v, want one spill, to %d", h, d2.Replica)
	}
}

func TestASpillThatWasNotServedIsNotTheLastSpill(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	b.serve(turn(0)) // home 0
	b.fill(0, 8)
	served := b.serve(turn(0)).Replica
	b.set(served, Down)
	id, d := b.open(turn(0))
	if d.Reason != Spilled || d.Replica == served {
		t.Fatalf("%+v, want spilled to the third", d)
	}
	if d := b.retry(id); d.Reason != Stayed || d.Replica != 0 {
		t.Errorf("retry %+v, want stayed: nothing else is left", d)
	}
	if h := b.home(0); h.Spills != 1 || h.LastSpill != served {
		t.Errorf("home %+v, want one spill, to %d", h, served)
	}
}

func TestAHomeThatAnotherRequestUsedSurvivesAFailedFirstTurn(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	first, d := b.open(turn(0))
	b.serve(turn(0)) // a second request of the conversation is answered there
	if d2 := b.retry(first); d2.Reason != Spilled || d2.Home != d.Replica {
		t.Errorf("retry %+v, want a spill: the home has proved itself", d2)
	}
}

func TestAPinIsNeverServedElsewhere(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	r := turn(0)
	r.Pin = 1
	id, _ := b.open(r)
	if a := b.one(id, b.core.Retry(b.now, id)); a.Kind != Refuse || a.Why != Failed {
		t.Errorf("retry of a pin: %+v, want refused, attempt failed", a)
	}
	b.finish(id, Outcome{})
	if _, ok := b.core.Home(key(0)); !ok || b.home(0).Replica != None {
		t.Errorf("home %+v, want none: the pinned turn failed", b.home(0))
	}
	id, _ = b.open(r)
	b.set(1, Down)
	if a := b.one(id, b.core.Retry(b.now, id)); a.Kind != Refuse || a.Why != PinDown {
		t.Errorf("retry of a pin to a replica that is down: %+v", a)
	}
}

func TestRetriesUnderOtherPolicies(t *testing.T) {
	for _, policy := range Policies() {
		t.Run(policy, func(t *testing.T) {
			b := newBox(t, policy, separate(3))
			id, d := b.open(turn(0))
			seen := []int{d.Server}
			for range 2 {
				d = b.retry(id)
				if slices.Contains(seen, d.Server) {
					t.Errorf("server %d was tried before (%v)", d.Server, seen)
				}
				seen = append(seen, d.Server)
			}
			if a := b.one(id, b.core.Retry(b.now, id)); a.Kind != Refuse {
				t.Errorf("fourth attempt %+v, want a refusal", a)
			}
			b.finish(id, Outcome{})
			if v := b.view(); v.InFlight != 0 || b.counted() != 1 {
				t.Errorf("in flight %d, counted %d; want 0 and 1", v.InFlight, b.counted())
			}
		})
	}
}

func TestAllDownIsRefusedAndCountsNothing(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.set(0, Down)
	b.set(1, Down)
	if why := b.refuse(turn(0)); why != NoReplica {
		t.Errorf("why %q, want no replica", why)
	}
	if v := b.view(); v.InFlight != 0 || v.Known != 0 || b.counted() != 0 {
		t.Errorf("in flight %d, known %d, counted %d; want none", v.InFlight, v.Known, b.counted())
	}
}

func TestFinishCountsOnce(t *testing.T) {
	b := newBox(t, "affinity", separate(1))
	id, _ := b.open(turn(0))
	b.finish(id, Outcome{})
	b.finish(id, Outcome{})
	b.finish(999, Outcome{OK: true})
	if got := b.inFlight(); got[0] != 0 {
		t.Errorf("in flight %v, want 0", got)
	}
	if a := b.one(id, b.core.Retry(b.now, id)); a.Kind != Refuse {
		t.Errorf("retry of a finished request: %+v, want a refusal", a)
	}
}

func TestAnIDUsedTwiceLeaksNothing(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	r := turn(0)
	r.ID = 7
	b.core.Arrive(b.now, r)
	b.core.Arrive(b.now, r)
	if v := b.view(); v.InFlight != 1 {
		t.Errorf("in flight %d, want 1", v.InFlight)
	}
	b.finish(7, Outcome{})
	if v := b.view(); v.InFlight != 0 || b.home(0).InFlight != 0 {
		t.Errorf("in flight %d, want 0", v.InFlight)
	}
}

func TestCallsAboutReplicasThatDoNotExistAreIgnored(t *testing.T) {
	b := newBox(t, "affinity", separate(1))
	for _, i := range []int{-1, 1} {
		b.set(i, Down)
		b.core.Observe(b.now, i, Load{KVUsed: 1})
	}
	b.set(0, State(9))
	if d := b.serve(turn(0)); d.Replica != 0 {
		t.Errorf("decision %+v", d)
	}
	if got := State(9).String(); got != "state 9" {
		t.Errorf("state 9 prints %q", got)
	}
}
