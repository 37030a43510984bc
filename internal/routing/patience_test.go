package routing_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	. "lmwarden/internal/routing"
)

// newPatient is a box under patience whose replicas each hold so many tokens.
func newPatient(t testing.TB, replicas []Replica, capacity int64) *box {
	t.Helper()
	b := newBox(t, "patience", replicas)
	for i := range replicas {
		b.core.Observe(b.now, i, Load{Capacity: capacity, Epoch: 1})
	}
	return b
}

// sized is a request of the n-th conversation with a prompt of so many tokens.
// With it comes an answer of up to 100.
func sized(n int, tokens int64) Request {
	return Request{Key: key(n), Pin: None, Tokens: tokens, MaxOutput: 100}
}

// hold sends a request that must be held.
func (b *box) hold(r Request) (RequestID, Action) {
	b.t.Helper()
	id, a := b.try(r)
	if a.Kind != Hold {
		b.t.Fatalf("request %+v: %+v, want a hold", r, a)
	}
	return id, a
}

// end finishes a request and returns which held ones started where.
func (b *box) end(id RequestID, o Outcome) map[RequestID]int {
	b.t.Helper()
	return started(b.t, b.core.Finish(b.now, id, o))
}

func (b *box) pass(d time.Duration) map[RequestID]int {
	b.t.Helper()
	b.now = b.now.Add(d)
	return started(b.t, b.core.Tick(b.now))
}

func started(t testing.TB, actions []Action) map[RequestID]int {
	t.Helper()
	at := map[RequestID]int{}
	for _, a := range actions {
		if a.Kind != Dispatch {
			t.Fatalf("%+v, want only starts", a)
		}
		at[a.ID] = a.Decision.Replica
	}
	return at
}

// Many at once of one conversation do not all stay at a home where they fit, while
// other replicas are idle.
func TestManyAtOnceOfOneConversation(t *testing.T) {
	b := newPatient(t, separate(3), 1_000_000)
	b.serve(sized(0, 5000))
	home := b.home(0).Replica
	var ids []RequestID
	for range 12 {
		id, _ := b.open(sized(0, 5000))
		ids = append(ids, id)
	}
	at := b.inFlight()
	if rest := 12 - at[home]; at[home] != 8 || rest != 4 {
		t.Errorf("in flight by replica: %v, want 8 at the home %d", at, home)
	}
	b.finishAll(ids)
	if d := b.serve(sized(0, 5000)); d.Replica != home || d.Reason != Stayed {
		t.Errorf("the next turn: %+v, want it at %d", d, home)
	}
}

func TestAHomeOfUnknownSizeIsFullAtTheThreshold(t *testing.T) {
	b := newPatient(t, separate(2), 0)
	home := b.serve(turn(1)).Replica
	for range 8 {
		if _, d := b.open(turn(1)); d.Replica != home || d.Reason != Stayed {
			t.Fatalf("%+v", d)
		}
	}
	if _, d := b.open(turn(1)); d.Reason != Spilled || d.Replica == home {
		t.Errorf("the ninth: %+v", d)
	}
}

// While the caches hold everything, the decisions are those of affinity, with
// their receipts.
func TestPatienceIsAffinityWhileEverythingFits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rs := ranks(rapid.SliceOfN(rapid.IntRange(1, 3), 1, 3).Draw(rt, "servers")...)
		threshold := rapid.IntRange(0, 4).Draw(rt, "threshold")
		boxes := [2]*box{}
		for i, policy := range []string{"affinity", "patience"} {
			boxes[i] = newBoxWith(t, Options{Policy: policy, Replicas: rs, SpillThreshold: threshold})
		}
		now, last := boxes[0].now, RequestID(0)
		var open []RequestID
		both := func(do func(c *Core) any) {
			rt.Helper()
			if diff := cmp.Diff(do(boxes[0].core), do(boxes[1].core), nanEqual()); diff != "" {
				rt.Fatalf("affinity and patience differ (-affinity +patience):\n%s", diff)
			}
		}
		for i := range rs {
			both(func(c *Core) any { c.Observe(now, i, Load{Capacity: 1_000_000, KVUsed: 0.2, Epoch: 1}); return nil })
		}
		for range rapid.IntRange(1, 80).Draw(rt, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "ms")) * time.Millisecond)
			switch event := rapid.IntRange(0, 9).Draw(rt, "event"); {
			case event < 5 && len(open) < 7: // with more, the automatic thresholds differ
				last++
				r := Request{
					ID: last, Pin: None, Tokens: int64(rapid.IntRange(0, 9000).Draw(rt, "tokens")),
					Tenant: key(rapid.IntRange(0, 2).Draw(rt, "tenant")), Class: Class(rapid.IntRange(0, 1).Draw(rt, "class")),
				}
				if n := rapid.IntRange(-1, 8).Draw(rt, "conversation"); n >= 0 {
					r.Key = key(n)
					if rapid.Bool().Draw(rt, "agent") {
						r.Parent = key(rapid.IntRange(0, 8).Draw(rt, "parent"))
					}
				}
				open = append(open, last)
				both(func(c *Core) any { return c.Arrive(now, r) })
			case event < 8 && len(open) > 0:
				i := rapid.IntRange(0, len(open)-1).Draw(rt, "which")
				id := open[i]
				open = slices.Delete(open, i, i+1)
				prompt := int64(rapid.IntRange(1, 9000).Draw(rt, "prompt"))
				o := complete(prompt, prompt/2, int64(rapid.IntRange(1, 300).Draw(rt, "answer")))
				both(func(c *Core) any { c.FirstByte(now, id); return c.Finish(now, id, o) })
			default:
				both(func(c *Core) any { return c.Tick(now) })
			}
		}
	})
}

func TestWhatDoesNotFitWaits(t *testing.T) {
	b := newPatient(t, separate(2), 10_000)
	first, _ := b.open(sized(0, 6000))
	b.open(sized(1, 6000))
	id, a := b.hold(sized(2, 6000))
	if a.Position != 1 || a.Why != NoRoom {
		t.Errorf("%+v, want the first place and %q", a, NoRoom)
	}
	if got := b.core.Waiting(b.now); len(got) != 1 || got[0].ID != id || got[0].Key != key(2) {
		t.Errorf("waiting %+v", got)
	}
	b.now = b.now.Add(3 * time.Second)
	actions := b.core.Finish(b.now, first, complete(6000, 0, 100))
	if len(actions) != 1 || actions[0].ID != id || actions[0].Decision.Waited != 3*time.Second || actions[0].Decision.Held != NoRoom {
		t.Fatalf("%+v, want request %d after 3 s", actions, id)
	}
	if d := actions[0].Decision; d.Reason != Placed || d.Replica != 0 || len(d.Candidates) == 0 {
		t.Errorf("%+v, want placed at 0 with the numbers compared", d)
	}
	// A smaller one passes where the bigger waits.
	b.hold(sized(3, 6000))
	b.open(sized(4, 1000))
}

func TestAnEmptyReplicaTakesWhatFitsNowhere(t *testing.T) {
	b := newPatient(t, separate(2), 10_000)
	b.open(sized(0, 50_000))
	b.open(sized(1, 50_000))
	b.hold(sized(2, 50_000))
}

func TestWhoIsOverdueGetsAReplica(t *testing.T) {
	b := newPatient(t, separate(2), 10_000)
	if err := b.core.SetLimits(Limits{Patience: 20 * time.Second}); err != nil {
		t.Fatal(err)
	}
	a, _ := b.open(sized(0, 5000))
	b.open(sized(1, 5000))
	c, _ := b.open(sized(2, 3000)) // beside 0
	b.open(sized(3, 3000))
	big, _ := b.hold(sized(4, 9000))
	b.pass(21 * time.Second) // it claims replica 0, which has least in flight, or 1
	if got := b.end(c, complete(3000, 0, 100)); len(got) != 0 {
		t.Fatalf("%v started in the room that is kept", got)
	}
	// Nobody else starts there now, though there is room for this one.
	_, d := b.open(sized(5, 500))
	if claimed := 0; d.Replica == claimed {
		t.Errorf("%+v: started on the replica that is kept for another", d)
	}
	if got := b.end(a, complete(5000, 0, 100)); !cmp.Equal(got, map[RequestID]int{big: 0}) {
		t.Errorf("started %v, want %d at 0", got, big)
	}
}

func TestTenantsTakeTurns(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	running, _ := b.open(sized(0, 9000))
	var flood []RequestID
	for n := range 10 {
		r := sized(10+n, 9000)
		r.Tenant = key(100)
		id, _ := b.hold(r)
		flood = append(flood, id)
	}
	r := sized(50, 9000)
	r.Tenant = key(101)
	late, _ := b.hold(r)
	batch := sized(60, 9000)
	batch.Class, batch.Tenant = Batch, key(102)
	last, a := b.hold(batch)
	if a.Position != 12 {
		t.Errorf("batch has place %d, want the last, 12", a.Position)
	}
	want := append([]RequestID{flood[0], late}, append(flood[1:], last)...)
	var got []RequestID
	for range want {
		for id := range b.end(running, Outcome{OK: true}) {
			got, running = append(got, id), id
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// A fan-out of sub-agents leaves the others their turn.
func TestATreeTakesItsShare(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	running, _ := b.open(sized(0, 9000))
	agents := map[RequestID]bool{}
	for n := range 10 {
		r := sized(10+n, 2000)
		r.Parent = key(1)
		id, _ := b.hold(r)
		agents[id] = true
	}
	other, a := b.hold(sized(50, 2000))
	if a.Position != 2 {
		t.Errorf("another conversation has place %d, want the second", a.Position)
	}
	got := b.end(running, complete(9000, 0, 100))
	if _, ok := got[other]; !ok || len(got) < 2 || len(got) > 4 {
		t.Errorf("started %v: want the other conversation %d and some of the sub-agents", got, other)
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	if err := b.core.SetLimits(Limits{Waiting: 2}); err != nil {
		t.Fatal(err)
	}
	b.open(sized(0, 9000))
	b.hold(sized(1, 9000))
	gone, _ := b.hold(sized(2, 9000))
	id, a := b.try(sized(3, 9000))
	if a.Kind != Refuse || a.Why != QueueFull || a.RetryAfter < time.Second || a.RetryAfter > 30*time.Second {
		t.Errorf("%+v, want refused with a time from 1 to 30 s", a)
	}
	if got := b.end(id, Outcome{}); len(got) != 0 {
		t.Errorf("the end of a refused request starts %v", got)
	}
	b.end(gone, Outcome{}) // its client left
	b.hold(sized(4, 9000))
	if err := b.core.SetLimits(Limits{Patience: -1}); err == nil {
		t.Error("a negative patience is accepted")
	}
}

func TestWaitingRequestsAndTheirReplica(t *testing.T) {
	setup := func(t *testing.T) (b *box, id RequestID) {
		b = newPatient(t, separate(2), 10_000)
		b.serve(turn(0))
		b.serve(turn(1))
		b.open(sized(10, 8500))
		b.open(sized(11, 8500))
		id, _ = b.hold(sized(0, 3000))
		return b, id
	}
	t.Run("another policy lets all go", func(t *testing.T) {
		b, id := setup(t)
		if err := b.core.SetPolicy("affinity"); err != nil {
			t.Fatal(err)
		}
		if got := b.pass(time.Second); len(got) != 1 {
			t.Errorf("started %v, want %d", got, id)
		}
	})
	t.Run("all replicas down refuses", func(t *testing.T) {
		b, id := setup(t)
		b.set(0, Down)
		actions := b.core.SetState(b.now, 1, Down)
		if len(actions) != 1 || actions[0].Kind != Refuse || actions[0].ID != id || actions[0].Why != NoReplica {
			t.Errorf("%+v, want %d refused", actions, id)
		}
	})
	t.Run("its home goes", func(t *testing.T) {
		b, id := setup(t)
		home := b.home(0).Replica
		if err := b.core.Reshape(b.now, separate(1), []int{1 - home}); err != nil {
			t.Fatal(err)
		}
		if got := b.pass(time.Second); len(got) != 0 {
			t.Fatalf("started %v beside a request that fills the replica", got)
		}
		if err := b.core.Reshape(b.now, separate(2), []int{0, None}); err != nil {
			t.Fatal(err)
		}
		b.set(1, Ready)
		if h := b.home(0); h.InFlight != 1 || h.Replica != 1 {
			t.Errorf("%+v (request %d), want it started on the new replica", h, id)
		}
	})
}

// Others' requests, which reach the engine past the gateway, take room.
func TestBypassTrafficTakesRoom(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	b.finish(must(b.open(sized(0, 3000))), complete(3000, 0, 100))
	open, _ := b.open(sized(1, 3000))
	for range 2 {
		b.core.Observe(b.now, 0, Load{Capacity: 10_000, Running: 3, Waiting: 1, Epoch: 1})
	}
	id, _ := b.hold(sized(2, 3000))
	for range 2 {
		b.core.Observe(b.now, 0, Load{Capacity: 10_000, Running: 1, Epoch: 1})
	}
	if got := b.pass(time.Second); got[id] != 0 || len(got) != 1 {
		t.Errorf("started %v when the others had left, want %d", got, id)
	}
	b.end(open, Outcome{})
}

func must(id RequestID, _ Decision) RequestID { return id }

func TestWhatWasLearnedSurvives(t *testing.T) {
	b := newPatient(t, separate(2), 40_000)
	for n := range 200 {
		id, _ := b.open(sized(n%20, 1000))
		b.now = b.now.Add(100 * time.Millisecond)
		b.core.FirstByte(b.now, id)
		b.pass(time.Second)
		b.finish(id, complete(4000, 1000, 50))
		b.pass(300 * time.Millisecond)
	}
	l := b.view().Learned
	if s := l.Estimated; s.Samples != 200 || s.Value < 0.24 || s.Value > 0.26 {
		t.Errorf("the estimate is %+v of a prompt, want a quarter", s)
	}
	if r := l.ReadingRate; r.Value < 29_000 || r.Value > 31_000 {
		t.Errorf("reads %+v a second, want 3000 in 0.1 s", r)
	}
	if p := l.Place; p.Value < 1 || p.Value > 1.2 {
		t.Errorf("a place is taken for %+v s, want 1.1", p)
	}
	next := newPatient(t, separate(2), 40_000)
	next.core.RestoreLearned(l)
	got := next.view().Learned
	l.Throughput, l.Rereading, got.Throughput, got.Rereading = Measured{}, Measured{}, Measured{}, Measured{} // of the last minute
	if diff := cmp.Diff(l, got); diff != "" {
		t.Errorf("restored (-before +after):\n%s", diff)
	}
}

// Whatever comes, nobody waits for ever, and what is charged is given back.
func TestEverybodyStarts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newPatient(t, separate(1+rng.IntN(4)), 4000+rng.Int64N(40_000))
		type running struct {
			id RequestID
			at time.Time
		}
		var open []running
		waiting := map[RequestID]bool{}
		take := func(actions []Action) {
			for _, a := range actions {
				if a.Kind != Hold {
					delete(waiting, a.ID)
				}
				if a.Kind == Dispatch {
					open = append(open, running{a.ID, b.now.Add(time.Duration(rng.IntN(5000)) * time.Millisecond)})
				}
			}
		}
		for step := range 300 {
			b.now = b.now.Add(100 * time.Millisecond)
			if step < 250 && rng.IntN(4) == 0 {
				b.last++
				r := sized(rng.IntN(40), 500+rng.Int64N(8000))
				r.ID, r.Tenant, r.Class = b.last, key(rng.IntN(3)), Class(rng.IntN(2))
				if rng.IntN(3) == 0 {
					r.Parent = key(rng.IntN(5))
				}
				waiting[r.ID] = true
				take(b.core.Arrive(b.now, r))
			}
			var ended []running
			open = slices.DeleteFunc(open, func(o running) bool {
				if b.now.Before(o.at) {
					return false
				}
				ended = append(ended, o)
				return true
			})
			for _, o := range ended {
				take(b.core.Finish(b.now, o.id, complete(500+rng.Int64N(8000), 0, 100)))
			}
			take(b.core.Tick(b.now))
		}
		for i := 0; i < 4000 && len(waiting) > 0; i++ {
			b.now = b.now.Add(100 * time.Millisecond)
			for _, o := range open {
				open = open[1:]
				take(b.core.Finish(b.now, o.id, Outcome{}))
			}
			take(b.core.Tick(b.now))
		}
		if len(waiting) > 0 {
			rt.Fatalf("%d requests never start", len(waiting))
		}
	})
}

func nanEqual() cmp.Option {
	return cmp.Comparer(func(x, y float64) bool { return x == y || x != x && y != y })
}

// crowded is a box on which n requests wait.
func crowded(t testing.TB, replicas, n int) *box {
	b := newPatient(t, separate(replicas), 40_000)
	if err := b.core.SetLimits(Limits{Waiting: n, Wait: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	for i := range replicas * 4 {
		b.open(sized(i, 9000))
	}
	for i := range n {
		b.hold(sized(1000+i, 9000))
	}
	return b
}

// With a thousand requests waiting, an end that lets one of them start, and the
// arrival of the next: at most 20 µs each.
func BenchmarkTurnWhileManyWait(bench *testing.B) {
	for _, replicas := range []int{4, 64} {
		bench.Run(fmt.Sprintf("%d replicas", replicas), func(bench *testing.B) {
			b := crowded(bench, replicas, 1000)
			running := make([]RequestID, replicas*4)
			for i := range running {
				running[i] = RequestID(i + 1)
			}
			bench.ReportAllocs()
			for n := 0; bench.Loop(); n++ {
				b.now = b.now.Add(10 * time.Millisecond)
				i := n % len(running)
				for _, a := range b.core.Finish(b.now, running[i], complete(9000, 0, 100)) {
					running[i] = a.ID
				}
				b.last++
				r := sized(int(b.last)%100_000, 9000)
				r.ID = b.last
				b.core.Arrive(b.now, r)
			}
			if n := b.view().Queue.Waiting; n < 900 {
				bench.Fatalf("only %d wait", n)
			}
		})
	}
}

// A request that waits costs its body, which the gateway keeps, and at most 2 kB
// here: conversation, queue and tables included.
func TestAWaitingRequestTakesAtMost2kB(t *testing.T) {
	const n = 20_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	b := crowded(t, 4, n)
	each := (heap() - before) / n
	t.Logf("%d bytes per request that waits", each)
	if each > 2000 {
		t.Errorf("%d bytes per request that waits, want at most 2000", each)
	}
	runtime.KeepAlive(b)
}

// While everything fits, a turn under patience costs little more than one under
// affinity. Both take turns in one run, so that the ratio is worth something on a
// busy machine.
func BenchmarkTurnWhileNobodyWaits(bench *testing.B) {
	for _, replicas := range []int{4, 64} {
		bench.Run(fmt.Sprintf("%d replicas", replicas), func(bench *testing.B) {
			policies := [...]string{"affinity", "patience"}
			var boxes [len(policies)]*box
			var took [len(policies)]time.Duration
			for i, policy := range policies {
				boxes[i] = newBox(bench, policy, separate(replicas))
				for r := range replicas {
					boxes[i].core.Observe(boxes[i].now, r, Load{Capacity: 1_000_000, Epoch: 1})
				}
			}
			const block, conversations = 500, 1000
			blocks := (bench.N + block - 1) / block
			for n := range blocks {
				for i := range boxes {
					i = (i + n) % len(boxes)
					b, start := boxes[i], time.Now()
					for range block {
						b.last++
						r := turn(int(b.last) % conversations)
						r.ID = b.last
						b.now = b.now.Add(10 * time.Millisecond)
						b.core.Arrive(b.now, r)
						b.core.Finish(b.now, r.ID, complete(8000, 7000, 256))
					}
					took[i] += time.Since(start)
				}
			}
			for i, policy := range policies {
				bench.ReportMetric(float64(took[i].Nanoseconds())/float64(blocks*block), "ns/turn-"+policy)
			}
			bench.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
		})
	}
}
