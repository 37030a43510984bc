package routing_test

import (
	"slices"
	"strings"
	"testing"

	. "lmwarden/internal/routing"
)

func TestAnUnknownPolicyIsAnErrorThatListsTheKnownOnes(t *testing.T) {
	_, err := New(Options{Policy: "afinity", Replicas: separate(1)})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range append(Policies(), "afinity") {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error %q does not name %q", err, name)
		}
	}
	b := newBox(t, "affinity", separate(1))
	if err := b.core.SetPolicy(""); err == nil {
		t.Error("SetPolicy of an empty name: no error")
	}
	if got := b.view().Policy; got != "affinity" {
		t.Errorf("policy after the error: %q, want affinity still", got)
	}
}

func TestEveryPolicyCanBeMade(t *testing.T) {
	if want := []string{"off", "round-robin", "least-inflight", "session-hash", "affinity", "patience"}; !slices.Equal(Policies(), want) {
		t.Errorf("policies %v, want %v", Policies(), want)
	}
	for _, name := range Policies() {
		newBox(t, name, separate(2)).serve(turn(0))
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for name, o := range map[string]Options{
		"no replicas":         {Policy: "off"},
		"negative threshold":  {Policy: "off", Replicas: separate(1), SpillThreshold: -1},
		"negative live time":  {Policy: "off", Replicas: separate(1), LiveFor: -1},
		"negative idle time":  {Policy: "off", Replicas: separate(1), IdleFor: -1},
		"negative table size": {Policy: "off", Replicas: separate(1), MaxConversations: -1},
		"server out of range": {Policy: "off", Replicas: []Replica{{Server: 1}}},
		"negative server":     {Policy: "off", Replicas: []Replica{{Server: -1}}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	b := newBox(t, "affinity", separate(1))
	if err := b.core.SetSpillThreshold(-1); err == nil {
		t.Error("SetSpillThreshold(-1): no error")
	}
}

func TestOff(t *testing.T) {
	t.Run("leaves the rank of a server to its engine", func(t *testing.T) {
		b := newBox(t, "off", ranks(4))
		_, d := b.open(turn(0))
		if d.Reason != Off || d.Replica != None || d.Server != 0 || d.Home != None || len(d.Candidates) != 0 {
			t.Errorf("decision %+v, want off at server 0, no replica, no home", d)
		}
		v := b.view()
		if v.InFlight != 1 || v.EngineChosen != 1 || !slices.Equal(b.inFlight(), []int{0, 0, 0, 0}) {
			t.Errorf("in flight %d (by replica %v), engine chose %d; want 1, none, 1", v.InFlight, b.inFlight(), v.EngineChosen)
		}
	})
	t.Run("tells the replica of a server that has one", func(t *testing.T) {
		b := newBox(t, "off", separate(2))
		_, d := b.open(turn(0))
		if d.Reason != Off || d.Replica != 0 || d.Home != None || !slices.Equal(b.inFlight(), []int{1, 0}) {
			t.Errorf("decision %+v, in flight %v; want off at 0, counted there", d, b.inFlight())
		}
	})
	t.Run("servers take turns by least in flight", func(t *testing.T) {
		b := newBox(t, "off", ranks(2, 2, 2))
		var went []int
		var ids []RequestID
		for range 6 {
			id, d := b.open(unbound())
			went, ids = append(went, d.Server), append(ids, id)
		}
		if want := []int{0, 1, 2, 0, 1, 2}; !slices.Equal(went, want) {
			t.Errorf("went to %v, want %v", went, want)
		}
		b.finish(ids[1], Outcome{})
		if _, d := b.open(unbound()); d.Server != 1 {
			t.Errorf("after an end at 1 the next went to %d", d.Server)
		}
	})
	t.Run("idle servers alternate", func(t *testing.T) {
		b := newBox(t, "off", separate(2))
		var went []int
		for range 4 {
			went = append(went, b.serve(turn(0)).Server)
		}
		if want := []int{0, 1, 0, 1}; !slices.Equal(went, want) {
			t.Errorf("went to %v, want %v", went, want)
		}
	})
	t.Run("idle servers of several ranks alternate", func(t *testing.T) {
		b := newBox(t, "off", ranks(2, 2))
		var went []int
		for range 4 {
			went = append(went, b.serve(unbound()).Server)
		}
		if want := []int{0, 1, 0, 1}; !slices.Equal(went, want) {
			t.Errorf("went to %v, want %v", went, want)
		}
	})
	t.Run("a server of four ranks gets four times as much", func(t *testing.T) {
		b := newBox(t, "off", ranks(4, 1))
		n := make([]int, 2)
		for range 20 {
			_, d := b.open(unbound())
			n[d.Server]++
		}
		if want := []int{16, 4}; !slices.Equal(n, want) {
			t.Errorf("went %v, want %v", n, want)
		}
	})
	t.Run("a server that is down gets nothing", func(t *testing.T) {
		b := newBox(t, "off", separate(2))
		b.set(0, Down)
		if _, d := b.open(unbound()); d.Server != 1 {
			t.Errorf("went to %d, want 1", d.Server)
		}
	})
	t.Run("conversations are known and live but have no home", func(t *testing.T) {
		b := newBox(t, "off", ranks(4))
		b.serve(turn(0))
		if v := b.view(); v.Live != 1 || v.Known != 1 || v.WorkingSet.Tokens != 1100 {
			t.Errorf("live %d, known %d, working set %+v; want 1, 1, 1100 tokens", v.Live, v.Known, v.WorkingSet)
		}
		if h := b.home(0); h.Replica != None || h.Turns != 1 {
			t.Errorf("home %+v, want none, one turn", h)
		}
	})
}

func TestRoundRobinTakesTurnsAndTheHomeFollows(t *testing.T) {
	b := newBox(t, "round-robin", separate(3))
	var reasons []Reason
	var went []int
	for range 4 {
		d := b.serve(turn(0))
		reasons, went = append(reasons, d.Reason), append(went, d.Replica)
		if h := b.home(0); h.Replica != d.Replica {
			t.Errorf("home %d after a turn at %d", h.Replica, d.Replica)
		}
		if d.Reason == Moved && d.Why != ByPolicy {
			t.Errorf("moved because %q, want policy", d.Why)
		}
	}
	if want := []int{0, 1, 2, 0}; !slices.Equal(went, want) {
		t.Errorf("went %v, want %v", went, want)
	}
	if want := []Reason{Placed, Moved, Moved, Moved}; !slices.Equal(reasons, want) {
		t.Errorf("reasons %v, want %v", reasons, want)
	}
	b.set(1, Down)
	if d := b.serve(unbound()); d.Replica != 2 || d.Reason != Unbound {
		t.Errorf("%v at %d, want unbound at 2: 1 is down", d.Reason, d.Replica)
	}
	b.set(0, Down)
	b.set(1, Ready)
	if d := b.serve(turn(0)); d.Reason != Moved || d.Why != HomeDown {
		t.Errorf("%v because %q, want moved, home down", d.Reason, d.Why)
	}
}

func TestLeastInFlightIgnoresHomes(t *testing.T) {
	b := newBox(t, "least-inflight", separate(3))
	b.serve(turn(0)) // home 0
	b.fill(0, 1)
	b.fill(2, 1)
	if d := b.serve(turn(0)); d.Reason != Moved || d.Why != ByPolicy || d.Replica != 1 {
		t.Errorf("decision %+v, want moved to 1 by policy", d)
	}
	b.fill(1, 1)
	b.fill(0, 1)
	b.fill(2, 1)
	if d := b.serve(turn(0)); d.Reason != Stayed || d.Replica != 1 {
		t.Errorf("decision %+v, want stayed: the least is where it was", d)
	}
	if got, _ := newBox(t, "least-inflight", separate(4)).burst(0, 40); !slices.Equal(got, []int{10, 10, 10, 10}) {
		t.Errorf("burst went %v", got)
	}
}

func TestSessionHash(t *testing.T) {
	t.Run("is the same whatever came before and whatever the load", func(t *testing.T) {
		a, b := newBox(t, "session-hash", separate(4)), newBox(t, "session-hash", separate(4))
		b.fill(0, 20)
		b.fill(1, 20)
		n := make([]int, 4)
		for i := range 400 {
			_, x := a.open(turn(i))
			_, y := b.open(turn(399 - i))
			n[x.Replica]++
			if x.Replica != b.homeOrNone(i) && b.homeOrNone(i) != None {
				t.Fatalf("conversation %d: %d and %d", i, x.Replica, b.homeOrNone(i))
			}
			if y.Reason != Placed || len(y.Candidates) != 0 {
				t.Fatalf("decision %+v, want placed, nothing compared", y)
			}
		}
		if slices.Min(n) < 70 {
			t.Errorf("400 conversations went %v, want about 100 each", n)
		}
	})
	t.Run("never spills for load", func(t *testing.T) {
		b := newBox(t, "session-hash", separate(2))
		home := b.serve(turn(0)).Replica
		b.fill(home, 20)
		if d := b.serve(turn(0)); d.Reason != Stayed {
			t.Errorf("%v, want stayed", d.Reason)
		}
	})
	t.Run("only the conversations of a lost replica are placed elsewhere", func(t *testing.T) {
		a, b := newBox(t, "session-hash", separate(4)), newBox(t, "session-hash", separate(4))
		b.set(2, Down)
		for i := range 100 {
			x, y := a.serve(turn(i)).Replica, b.serve(turn(i)).Replica
			if x != 2 && x != y {
				t.Errorf("conversation %d: %d, and %d without replica 2", i, x, y)
			}
		}
	})
	t.Run("sends what has no conversation to the least in flight", func(t *testing.T) {
		b := newBox(t, "session-hash", separate(2))
		b.fill(0, 1)
		if d := b.serve(unbound()); d.Replica != 1 || d.Reason != Unbound {
			t.Errorf("%v at %d, want unbound at 1", d.Reason, d.Replica)
		}
	})
}

func (b *box) homeOrNone(n int) int {
	h, ok := b.core.Home(key(n))
	if !ok {
		return None
	}
	return h.Replica
}

func TestPins(t *testing.T) {
	for _, policy := range Policies() {
		t.Run(policy, func(t *testing.T) {
			b := newBox(t, policy, ranks(2, 1))
			pin := func(n, replica int) Request {
				r := turn(n)
				r.Pin = replica
				return r
			}
			b.set(1, Draining)
			if d := b.serve(pin(0, 1)); d.Reason != Pinned || d.Replica != 1 || d.Home != None {
				t.Errorf("pin to a draining replica: %+v, want pinned at 1, and no home there", d)
			}
			b.set(1, Ready)
			b.fill(1, 9)
			if d := b.serve(pin(0, 1)); d.Reason != Pinned || d.Replica != 1 || d.Home != 1 || d.From != None {
				t.Errorf("pin of a conversation without a home: %+v, want pinned at 1, which becomes its home", d)
			}
			if d := b.serve(pin(0, 2)); d.Reason != Pinned || d.Replica != 2 || d.Home != 1 || d.From != 1 {
				t.Errorf("pin elsewhere: %+v, want pinned at 2, home unchanged", d)
			}
			b.set(2, Down)
			if why := b.refuse(pin(0, 2)); why != PinDown {
				t.Errorf("pin to a replica that is down: %q", why)
			}
			for _, replica := range []int{3, -2} {
				if why := b.refuse(pin(5, replica)); why != NoSuchReplica {
					t.Errorf("pin to %d: %q", replica, why)
				}
			}
			r := unbound()
			r.Pin = 0
			if d := b.serve(r); d.Reason != Pinned || d.Replica != 0 {
				t.Errorf("pin without a conversation: %+v", d)
			}
			v := b.view()
			if got := v.Replicas[1].ClientPinned; got != 11 {
				t.Errorf("client-pinned at 1: %d, want 11", got)
			}
			if v.Known != 1 {
				t.Errorf("known conversations %d, want 1: a refused request makes none", v.Known)
			}
		})
	}
}

func TestAPinnedFirstTurnGivesTheHome(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	r := turn(0)
	r.Pin = 2
	b.serve(r)
	if d := b.serve(turn(0)); d.Reason != Stayed || d.Replica != 2 {
		t.Errorf("next turn without the pin: %+v, want stayed at 2, where its cache is", d)
	}
}

func TestBlindRoutes(t *testing.T) {
	blind := func(r Request, servers ...bool) Request { r.Blind = servers; return r }
	t.Run("the engine of several ranks chooses", func(t *testing.T) {
		b := newBox(t, "affinity", ranks(4))
		_, d := b.open(blind(turn(0), true))
		if d.Reason != Engine || d.Replica != None || d.Server != 0 || d.Home != None {
			t.Errorf("decision %+v, want engine, no replica, no home", d)
		}
		v := b.view()
		if v.InFlight != 1 || v.EngineChosen != 1 || slices.Max(b.inFlight()) != 0 || v.Live != 1 {
			t.Errorf("view %+v, want one in flight at no replica, one live", v)
		}
	})
	t.Run("a server of one replica leaves no choice", func(t *testing.T) {
		b := newBox(t, "affinity", separate(2))
		if _, d := b.open(blind(turn(0), true, true)); d.Reason != Placed || d.Replica != 0 {
			t.Errorf("decision %+v, want placed at 0", d)
		}
	})
	t.Run("requests of unknown rank weigh on every rank of their server", func(t *testing.T) {
		for n, want := range map[int]int{1: 0, 3: 1} {
			b := newBox(t, "affinity", ranks(2, 1))
			r := blind(unbound(), true, false)
			r.Pin = 0
			for range n {
				b.open(r)
			}
			b.fill(2, 1)
			if _, d := b.open(turn(0)); d.Server != want {
				t.Errorf("%d/2 in flight per rank at server 0, 1 at server 1: placed at server %d, want %d", n, d.Server, want)
			}
		}
	})
	t.Run("a home is left alone, and its server used", func(t *testing.T) {
		b := newBox(t, "affinity", ranks(2, 2))
		home := b.serve(turn(0)).Replica
		b.fill(home, 3)
		d := b.serve(blind(turn(0), true, true))
		if d.Reason != Engine || d.Server != 0 || d.Home != home || d.From != home {
			t.Errorf("decision %+v, want engine at the home's server", d)
		}
		if v := b.view(); v.Replicas[home].Sticky != 0 {
			t.Error("counted as sticky")
		}
	})
	t.Run("without a home the server of the last turn is preferred", func(t *testing.T) {
		b := newBox(t, "affinity", ranks(2, 2, 2))
		want := b.serve(blind(turn(0), true, true, true)).Server
		b.fill(want*2, 1)
		for range 3 {
			if d := b.serve(blind(turn(0), true, true, true)); d.Server != want {
				t.Errorf("went to server %d, want %d again", d.Server, want)
			}
		}
		b.fill(want*2, 3)
		b.fill(want*2+1, 3)
		if d := b.serve(blind(turn(0), true, true, true)); d.Server == want {
			t.Errorf("went to server %d, which is busy", d.Server)
		}
	})
	t.Run("a pin is not honoured by the engine, and not counted as pinned", func(t *testing.T) {
		b := newBox(t, "affinity", ranks(2, 2))
		r := blind(turn(0), false, true)
		r.Pin = 3
		if d := b.serve(r); d.Reason != Engine || d.Server != 1 || d.Replica != None || d.Home != None {
			t.Errorf("decision %+v, want engine at server 1", d)
		}
	})
	t.Run("idle servers take turns", func(t *testing.T) {
		b := newBox(t, "affinity", ranks(2, 2))
		n := make([]int, 2)
		for range 8 {
			n[b.serve(blind(unbound(), true, true)).Server]++
		}
		if !slices.Equal(n, []int{4, 4}) {
			t.Errorf("went %v, want 4 each", n)
		}
	})
}
