package routing_test

import (
	"cmp"
	"runtime"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	. "lmwarden/internal/routing"
)

func TestIdleConversationsFallOutOfTheLiveOnesAndAreForgotten(t *testing.T) {
	b := newBoxWith(t, Options{
		Policy: "affinity", Replicas: separate(2), LiveFor: time.Minute, IdleFor: 3 * time.Minute,
	})
	check := func(when string, live, known int) {
		t.Helper()
		if v := b.view(); v.Live != live || v.Known != known {
			t.Errorf("%s: live %d, known %d; want %d, %d", when, v.Live, v.Known, live, known)
		}
	}
	b.serve(turn(0))
	id, _ := b.open(turn(1))
	b.now = b.now.Add(time.Minute - 1)
	check("just under a minute", 2, 2)
	b.now = b.now.Add(1)
	check("a minute", 1, 2)
	b.now = b.now.Add(time.Hour)
	check("an hour, one request still open", 1, 1)
	b.finish(id, Outcome{OK: true})
	check("right after its end", 1, 1)
	b.now = b.now.Add(time.Minute)
	check("a minute later", 0, 1)
	if d := b.serve(turn(1)); d.Reason != Stayed {
		t.Errorf("a turn of a conversation that is not live: %v, want stayed", d.Reason)
	}
	check("after another turn", 1, 1)
	b.now = b.now.Add(3 * time.Minute)
	b.core.Tick(b.now)
	if _, ok := b.core.Home(key(1)); ok {
		t.Error("known after three idle minutes")
	}
	if d := b.serve(turn(1)); d.Reason != Placed {
		t.Errorf("a turn after that: %v, want placed", d.Reason)
	}
}

func TestTimeThatRunsBackwardsIsTakenAsStandingStill(t *testing.T) {
	b := newBox(t, "affinity", separate(1))
	b.serve(turn(0))
	b.now = b.now.Add(-time.Hour)
	b.serve(turn(1))
	if seen, want := b.home(1).LastSeen, b.now.Add(time.Hour); !seen.Equal(want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
	b.now = b.now.Add(time.Hour + 9*time.Minute)
	if v := b.view(); v.Live != 2 {
		t.Errorf("live %d, want 2", v.Live)
	}
}

func TestWhatIsForgottenIsNotLive(t *testing.T) {
	b := newBoxWith(t, Options{Policy: "affinity", Replicas: separate(1), LiveFor: time.Hour, IdleFor: time.Minute})
	b.serve(turn(0))
	b.now = b.now.Add(time.Minute)
	if v := b.view(); v.Known != 0 || v.Live != 0 {
		t.Errorf("known %d, live %d; want 0", v.Known, v.Live)
	}
}

func TestTheTableIsBoundedAndTheLongestIdleLeavesFirst(t *testing.T) {
	b := newBoxWith(t, Options{Policy: "affinity", Replicas: separate(2), MaxConversations: 3})
	open, _ := b.open(turn(0))
	for n := 1; n <= 4; n++ {
		b.now = b.now.Add(time.Second)
		b.serve(turn(n))
	}
	var known []int
	for n := range 5 {
		if _, ok := b.core.Home(key(n)); ok {
			known = append(known, n)
		}
	}
	if want := []int{0, 3, 4}; !slices.Equal(known, want) {
		t.Errorf("known %v, want %v: the open one and the two latest", known, want)
	}
	b.finish(open, Outcome{})

	var ids []RequestID
	for n := 10; n < 15; n++ {
		id, _ := b.open(turn(n))
		ids = append(ids, id)
	}
	if v := b.view(); v.Known != 5 || v.Live != 5 {
		t.Errorf("known %d, live %d; want 5: those with an open request are never forgotten", v.Known, v.Live)
	}
	b.finishAll(ids)
	if v := b.view(); v.Known != 3 || v.Live != 3 {
		t.Errorf("known %d, live %d; want 3 when they are done", v.Known, v.Live)
	}
}

func TestReleasePlacesTheNextTurnAnew(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.serve(turn(0)) // home 0
	id, _ := b.open(turn(0))
	if !b.core.Release(key(0)) {
		t.Error("known conversation: Release reports false")
	}
	if b.core.Release(key(1)) {
		t.Error("unknown conversation: Release reports true")
	}
	b.finish(id, complete(1, 0, 1))
	if h := b.home(0); h.Replica != None || h.InFlight != 0 {
		t.Errorf("home %+v, want none", h)
	}
	b.fill(0, 1)
	if d := b.serve(turn(0)); d.Reason != Placed || d.Replica != 1 {
		t.Errorf("next turn %+v, want placed at 1", d)
	}
}

func TestReleaseForgetsTheLastSpillToo(t *testing.T) {
	b := newBox(t, "affinity", separate(2))
	b.serve(turn(0)) // home 0
	full := b.fill(0, 8)
	if d := b.serve(turn(0)); d.Reason != Spilled {
		t.Fatalf("%v, want spilled", d.Reason)
	}
	b.finishAll(full)
	b.core.Release(key(0))
	b.fill(1, 1)
	if d := b.serve(turn(0)); d.Replica != 0 {
		t.Errorf("placed at %d, want 0, the least loaded", d.Replica)
	}
}

func TestForgottenConversationsMakeRoomForNewOnes(t *testing.T) {
	b := newBoxWith(t, Options{Policy: "affinity", Replicas: separate(1), MaxConversations: 1000})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	b.placedAt(0, 2000)
	before := heap()
	b.placedAt(2000, 50_000)
	if after := heap(); after > before+1<<20 {
		t.Errorf("heap grew from %d to %d bytes while 1000 conversations were known", before, after)
	}
	runtime.KeepAlive(b)
}

func TestRehomeMovesTheNextTurn(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	b.serve(turn(0)) // home 0
	if err := b.core.Rehome(b.now, key(0), 2); err != nil {
		t.Fatal(err)
	}
	if v := b.view(); v.Replicas[0].LiveConversations != 0 || v.Replicas[2].LiveConversations != 1 {
		t.Error("the live conversation is not counted at its new home")
	}
	id, d := b.open(turn(0))
	if d.Reason != Moved || d.Why != ByOperator || d.Replica != 2 || d.From != 0 || d.Home != 2 {
		t.Errorf("next turn %+v, want moved to 2 by the operator", d)
	}
	if d := b.retry(id); d.Reason != Spilled || d.Why != Failed || d.Home != 2 {
		t.Errorf("retry %+v, want spilled", d)
	}
	b.finish(id, Outcome{OK: true})
	if d := b.serve(turn(0)); d.Reason != Moved || d.Why != ByOperator {
		t.Errorf("the turn after %+v, want moved: it is the first one there", d)
	}
	if d := b.serve(turn(0)); d.Reason != Stayed || d.Replica != 2 {
		t.Errorf("then %+v, want stayed", d)
	}
	if h := b.home(0); h.Moves != 1 || h.Spills != 1 || h.Turns != 4 {
		t.Errorf("home %+v, want one move, one spill, four turns", h)
	}
}

func TestRehomeRefusesWhatCannotBe(t *testing.T) {
	b := newBox(t, "affinity", separate(3))
	b.serve(turn(0))
	b.set(1, Down)
	b.set(2, Draining)
	for name, err := range map[string]error{
		"unknown conversation": b.core.Rehome(b.now, key(5), 0),
		"replica too high":     b.core.Rehome(b.now, key(0), 3),
		"no replica":           b.core.Rehome(b.now, key(0), None),
		"down":                 b.core.Rehome(b.now, key(0), 1),
		"draining":             b.core.Rehome(b.now, key(0), 2),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := b.core.Rehome(b.now, key(0), 0); err != nil {
		t.Errorf("to its own home: %v", err)
	}
	if d := b.serve(turn(0)); d.Reason != Stayed {
		t.Errorf("after the refusals: %v, want stayed", d.Reason)
	}
}

func sorted(rows []Home) []Home {
	slices.SortFunc(rows, func(a, b Home) int { return cmp.Compare(string(a.Key[:]), string(b.Key[:])) })
	return rows
}

func TestARestartScattersNobody(t *testing.T) {
	b := newBox(t, "affinity", separate(4))
	for n := range 20 {
		b.now = b.now.Add(20 * time.Second)
		b.serve(turn(n))
	}
	b.fill(0, 8)
	b.serve(turn(0)) // spills
	b.core.Release(key(19))
	rows := b.core.Snapshot()
	if len(rows) != 19 {
		t.Fatalf("snapshot of %d rows, want 19: one has no home", len(rows))
	}

	core, err := New(Options{Policy: "affinity", Replicas: separate(4)})
	if err != nil {
		t.Fatal(err)
	}
	after := &box{t: t, core: core, now: b.now.Add(5 * time.Second)}
	if dropped := core.Restore(after.now, rows); dropped != 0 {
		t.Errorf("dropped %d, want 0", dropped)
	}
	if diff := gocmp.Diff(sorted(rows), sorted(core.Snapshot())); diff != "" {
		t.Errorf("restored table (-before +after):\n%s", diff)
	}
	was, is := b.view(), after.view()
	for i := range 4 {
		w, g := was.Replicas[i], is.Replicas[i]
		if n := g.LiveConversations; i != b.home(18).Replica && n != w.LiveConversations {
			t.Errorf("replica %d: %d live conversations, want %d", i, n, w.LiveConversations)
		}
	}
	// Replica 0 answers first; the homes of the others are not heard from yet.
	after.set(0, Ready)
	for n := range 19 {
		if d := after.serve(turn(n)); d.Reason != Stayed || d.Replica != b.home(n).Replica {
			t.Errorf("conversation %d of home %d: %+v, want stayed", n, b.home(n).Replica, d)
		}
	}
}

func TestRestoreLeavesOutWhatDoesNotFit(t *testing.T) {
	b := newBoxWith(t, Options{Policy: "affinity", Replicas: separate(2), MaxConversations: 3})
	b.serve(turn(0)) // home 0
	row := func(n, replica int, ago time.Duration) Home {
		return Home{Key: key(n), Replica: replica, Turns: 1, LastSeen: b.now.Add(-ago), LastSpill: 9}
	}
	dropped := b.core.Restore(b.now, []Home{
		row(5, 1, 30*time.Minute),
		row(1, 1, time.Minute),
		row(2, 2, time.Minute), // no such replica
		row(3, None, time.Minute),
		row(4, 1, 2*time.Hour),    // idle too long
		row(0, 1, 0),              // known already
		row(6, 0, 40*time.Minute), // too many: the oldest leaves
		row(7, 1, -time.Hour),     // in the future
	})
	if dropped != 2 {
		t.Errorf("dropped %d, want the 2 without a replica", dropped)
	}
	var known []int
	for n := range 8 {
		if _, ok := b.core.Home(key(n)); ok {
			known = append(known, n)
		}
	}
	if want := []int{0, 1, 7}; !slices.Equal(known, want) {
		t.Errorf("known %v, want %v", known, want)
	}
	if h := b.home(0); h.Replica != 0 {
		t.Errorf("known conversation now at %d, want 0", h.Replica)
	}
	if h := b.home(7); h.LastSeen.After(b.now) || h.LastSpill != None {
		t.Errorf("restored %+v, want seen by now, no last spill", h)
	}
	if v := b.view(); v.Live != 3 {
		t.Errorf("live %d, want 3", v.Live)
	}
	b.now = b.now.Add(9*time.Minute + 30*time.Second)
	if v := b.view(); v.Live != 2 {
		t.Errorf("live %d, want 2: one was seen a minute before the restart", v.Live)
	}
}

func TestAFailedTurnLeavesTheContextAsItWas(t *testing.T) {
	b := newBox(t, "affinity", separate(1))
	b.serve(turn(0))
	id, _ := b.open(turn(0))
	b.finish(id, Outcome{Known: true, Prompt: 5000, Completion: 5})
	if h := b.home(0); h.Tokens != 1100 {
		t.Errorf("tokens %d, want 1100 of the complete turn", h.Tokens)
	}
	id, _ = b.open(turn(0))
	b.finish(id, Outcome{OK: true})
	if h := b.home(0); h.Tokens != 1100 {
		t.Errorf("tokens %d after a turn without counts, want 1100", h.Tokens)
	}
}

func TestAnEstimateIsNotShownAsMeasured(t *testing.T) {
	b := newBox(t, "affinity", separate(1))
	id, _ := b.open(turn(0))
	if h, v := b.home(0), b.view(); h.Tokens != 0 || v.WorkingSet.Tokens != -1 || v.Replicas[0].LiveTokens != 1000 {
		t.Errorf("tokens %d, working set %d, live tokens %d; want 0, -1, and the estimate 1000",
			h.Tokens, v.WorkingSet.Tokens, v.Replicas[0].LiveTokens)
	}
	b.finish(id, complete(1200, 0, 50))
	if h, v := b.home(0), b.view(); h.Tokens != 1250 || v.WorkingSet.Tokens != 1250 || v.Replicas[0].LiveTokens != 1250 {
		t.Errorf("tokens %d, working set %d, live tokens %d; want 1250",
			h.Tokens, v.WorkingSet.Tokens, v.Replicas[0].LiveTokens)
	}
}
