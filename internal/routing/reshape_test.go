package routing_test

import (
	"slices"
	"strings"
	"testing"

	. "lmwarden/internal/routing"
)

// reshape gives the box another list of replicas, new ones Ready.
func (b *box) reshape(replicas []Replica, was ...int) {
	b.t.Helper()
	if err := b.core.Reshape(b.now, replicas, was); err != nil {
		b.t.Fatal(err)
	}
	for i, old := range was {
		if old == None {
			b.set(i, Ready)
		}
	}
}

func TestConversationsFollowTheirReplica(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	for n := range 3 {
		b.serve(turn(n)) // at home on replica n
	}
	b.reshape(separate(3), 2, None, 0)
	for n, want := range map[int]int{2: 0, 0: 2} {
		if d := b.serve(turn(n)); d.Reason != Stayed || d.Replica != want {
			t.Errorf("conversation %d: %v on %d, want stayed on %d", n, d.Reason, d.Replica, want)
		}
	}
	live := []int{}
	for _, r := range b.view().Replicas {
		live = append(live, r.LiveConversations)
	}
	if !slices.Equal(live, []int{1, 0, 1}) {
		t.Errorf("live conversations %v", live)
	}
	// Its home is gone, so it moves, and then stays.
	if d := b.serve(turn(1)); d.Reason != Moved || d.Why != HomeRemoved || d.Replica != 1 || d.From != None {
		t.Errorf("conversation 1: %+v, want it moved to the empty replica", d)
	}
	if d := b.serve(turn(1)); d.Reason != Stayed || b.home(1).Moves != 1 {
		t.Errorf("conversation 1: %v after %d moves", d.Reason, b.home(1).Moves)
	}
}

func TestCountsFollowTheirReplica(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.core.Observe(b.now, 1, Load{KVUsed: 0.5, Capacity: 1000, Epoch: 3})
	b.fill(0, 1)
	b.fill(1, 2)
	b.set(1, Draining)
	before := b.view()
	b.reshape(separate(3), None, 1, 0)
	after := b.view()
	if after.InFlight != before.InFlight || after.Replicas[1] != before.Replicas[1] || after.Replicas[2] != before.Replicas[0] {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if r := after.Replicas[0]; r.InFlight != 0 || r.ClientPinned != 0 {
		t.Errorf("the new replica has %+v", r)
	}
}

func TestRequestsOnARemovedReplicaEndOnce(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	ends, d := b.open(turn(0))
	if d.Replica != 0 {
		t.Fatalf("placed on %d", d.Replica)
	}
	b.finish(ends, complete(100, 0, 10))
	ends, _ = b.open(turn(0))
	retried, _ := b.open(turn(0))
	b.reshape(separate(1), 1)
	if v := b.view(); v.InFlight != 2 || v.Replicas[0].InFlight != 0 {
		t.Errorf("in flight %d, of them on the other replica %d; want 2 and 0", v.InFlight, v.Replicas[0].InFlight)
	}
	b.finish(ends, complete(100, 0, 10))
	if d := b.retry(retried); d.Replica != 0 || d.Reason != Moved || d.Why != HomeRemoved {
		t.Errorf("retried: %+v", d)
	}
	b.finish(retried, complete(100, 0, 10))
	b.finish(ends, Outcome{})
	if v := b.view(); v.InFlight != 0 || v.Replicas[0].InFlight != 0 || v.Replicas[0].MovedIn != 1 {
		t.Errorf("at the end: %+v", v)
	}
}

func TestAServerMayGainAndLoseRanks(t *testing.T) {
	b := newBox(t, "affinity", []Replica{{0}, {0}, {1}})
	id, _ := b.open(Request{Pin: None, Blind: []bool{true, false}})
	b.reshape([]Replica{{0}, {1}, {1}, {1}}, 2, 0, None, None) // the other way round
	blind := Request{Pin: 1, Blind: []bool{false, true}}
	if d := b.serve(blind); d.Reason != Engine || d.Server != 1 {
		t.Errorf("on a server that ignores the rank: %+v", d)
	}
	if d := b.retry(id); d.Server == 1 && b.view().EngineChosen > 1 {
		t.Errorf("retried where it had failed: %+v", d)
	}
	b.finish(id, Outcome{})
	if v := b.view(); v.InFlight != 0 {
		t.Errorf("in flight %d", v.InFlight)
	}
}

func TestAServerOfOneRankLeftLeavesItsEngineNoChoice(t *testing.T) {
	b := newBox(t, "affinity", ranks(3))
	blind := Request{Key: key(0), Pin: None, Blind: []bool{true}}
	if d := b.serve(blind); d.Reason != Engine {
		t.Fatalf("%+v", d)
	}
	b.reshape(ranks(1), 1)
	if d := b.serve(blind); d.Reason != Placed || d.Replica != 0 {
		t.Errorf("%+v", d)
	}
}

// A failed attempt gives the home back that it had moved, under its new number.
func TestARetryGivesTheHomeBackThatWasRenumbered(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	home := b.serve(turn(0)).Replica
	b.set(home, Down)
	id, d := b.open(turn(0))
	if d.Reason != Moved {
		t.Fatalf("%+v", d)
	}
	b.set(home, Ready)
	b.reshape(separate(3), 2, 1, 0)
	if d := b.retry(id); d.Reason != Stayed || d.Replica != 2-home {
		t.Errorf("%+v, want the turn back on replica %d", d, 2-home)
	}
}

func TestTheContextOfLostHomesStillCounts(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.serve(turn(0))
	b.serve(turn(1))
	before := b.view()
	b.reshape(separate(1), 0)
	after := b.view()
	if after.Live != 2 || after.WorkingSet.Tokens != before.WorkingSet.Tokens {
		t.Errorf("%d live with %d tokens, before %d with %d", after.Live, after.WorkingSet.Tokens, before.Live, before.WorkingSet.Tokens)
	}
	b.serve(turn(0))
	b.serve(turn(1))
	if v := b.view(); v.Replicas[0].LiveConversations != 2 || v.WorkingSet.Tokens != before.WorkingSet.Tokens {
		t.Errorf("placed again: %d live on the replica, %d tokens", v.Replicas[0].LiveConversations, v.WorkingSet.Tokens)
	}
}

func TestReshapeRefusesWhatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		replicas []Replica
		was      []int
		want     string
	}{
		"none":             {nil, nil, "no replicas"},
		"another number":   {separate(2), []int{0}, "2 replicas"},
		"no such replica":  {separate(2), []int{0, 7}, "was 7"},
		"one twice":        {separate(2), []int{0, 0}, "becomes two"},
		"a server too far": {[]Replica{{0}, {5}}, []int{0, 1}, "server 5"},
		"a server split":   {[]Replica{{0}, {1}, {2}}, []int{0, 1, 2}, "leaves its server"},
		"servers joined":   {[]Replica{{0}, {0}}, []int{0, 2}, "leaves its server"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "affinity", []Replica{{0}, {0}, {1}})
			b.serve(turn(0))
			before := b.view()
			err := b.core.Reshape(b.now, c.replicas, c.was)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if after := b.view(); !slices.Equal(after.Replicas, before.Replicas) {
				t.Errorf("changed nevertheless: %+v", after.Replicas)
			}
		})
	}
}

// What is kept out for a while is left alone, and not given up.
func TestAnEjectedHomeKeepsItsConversations(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	d := b.serve(turn(0))
	b.set(d.Replica, Ejected)
	spilled := b.serve(turn(0))
	if spilled.Reason != Spilled || spilled.Why != HomeDown || spilled.Replica == d.Replica {
		t.Errorf("while its home is ejected: %+v", spilled)
	}
	if again := b.serve(turn(0)); again.Replica != spilled.Replica {
		t.Errorf("the next turn went to %d, not where its history is by now", again.Replica)
	}
	pin := turn(1)
	pin.Pin = d.Replica
	if why := b.refuse(pin); why != PinDown {
		t.Errorf("a pin there: %v", why)
	}
	for n := range 10 {
		if p := b.serve(turn(10 + n)); p.Replica == d.Replica {
			t.Error("a new conversation was placed there")
		}
	}
	b.set(d.Replica, Ready)
	if back := b.serve(turn(0)); back.Reason != Stayed {
		t.Errorf("after its return: %+v", back)
	}

	for i := range 3 {
		b.set(i, Ejected)
	}
	if all := b.serve(turn(0)); all.Reason != Stayed {
		t.Errorf("with nothing better up: %+v", all)
	}
	if d := b.serve(pin); d.Reason != Pinned {
		t.Errorf("a pin with nothing better up: %+v", d)
	}
}
