package bench

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/bench/results"
	"lmwarden/internal/routing"
)

// turn is a record that was sent at a time and took TTFB and whole time, in
// seconds; 100 prompt tokens, of which some were cached, and 11 output tokens.
func turn(session uint64, client, n int, sent, ttfb, took float64, cached, replica int, reason routing.Reason) Record {
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return Record{Session: session, Client: client, N: n, Known: 65 * min(n-1, 1), Result: Result{
		End: Finished, Sent: at(sent), First: at(sent + ttfb), Token: at(sent + ttfb), Last: at(sent + took),
		Prompt: 100, Cached: cached, Output: 11, Replica: replica, Reason: string(reason),
	}}
}

func observation(records ...Record) Observation {
	return Observation{
		Length: time.Minute, Records: records, Busy: 1.5,
		Ended: []EndedSession{{1, 0, 30 * time.Second}, {2, 0, 10 * time.Second}},
		Moved: Counters{PromptTokens: 1000, CachedTokens: 250, Preemptions: 3},
	}
}

func f(v float64) *float64 { return &v }

func TestMeasures(t *testing.T) {
	cutLate := turn(2, 1, 3, 20, 9, 0, 0, 2, routing.Moved)
	cutLate.End, cutLate.Token = Cut, -1 // its answer had begun, with nothing in it
	cutEarly := turn(2, 1, 4, 25, 0, 0, 0, 2, routing.Stayed)
	cutEarly.End, cutEarly.First, cutEarly.Token = Cut, -1, -1
	failed := turn(3, 1, 1, 25, 0, 0, -1, -1, "")
	failed.End, failed.First, failed.Token = Failed, -1, -1
	beside := turn(0, 0, 0, 3, 50, 51, 0, 3, routing.Unbound)
	o := observation(
		turn(1, 0, 1, 0, 1, 2, 0, 0, routing.Placed),
		turn(1, 0, 2, 2, 2, 5, 64, 0, routing.Stayed),
		turn(1, 0, 3, 7, 3, 6, 16, 1, routing.Spilled),
		turn(2, 1, 1, 0, 4, 6, 0, 0, routing.Placed),
		cutLate, cutEarly, failed, beside,
	)
	got := measure(o, 2, 4, 16)
	want := results.Measures{
		SessionsPerHour: f(120), OutputTokensPerMin: f(55), // four turns and the request beside
		TTFBP50: f(3), TTFBP95: f(9), TTFBP99: f(9), TTFBMax: f(9), TTFBMean: f(3.8), // 1 2 3 4 9
		TTFTP50: f(2), TTFTP95: f(4), // 1 2 3 4
		ReplicasBusy: f(1.5), PrefixHitPercent: f(25), StayedPercent: f(50), // of stay, spill, move and stay
		ITLMean: f(1000 * (0.1 + 0.3 + 0.3 + 0.2) / 4), E2EP50: f(5), E2EP95: f(6), SessionMean: f(20),
		Turns: f(5), Cut: f(2), Failed: f(1),
		Jain:         f(0.8), // 3 and 1 turns: 16 / (2 x 10)
		RereadTokens: f(48),  // the third turn knew 65 tokens, 4 whole blocks, and found one
		Spills:       f(1), Moves: f(1),
		FirstTurnSpread: f(4), // both on one of four
		Preemptions:     f(3),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An engine without counts, and a router that does not say where a turn went.
func TestWhatIsNotKnownIsNotMeasured(t *testing.T) {
	a, b := turn(1, 0, 1, 0, 1, 2, -1, -1, routing.Off), turn(1, 0, 2, 2, 1, 2, -1, -1, routing.Off)
	a.Prompt, a.Output, b.Output = -1, -1, -1
	o := observation(a, b)
	nan := math.NaN()
	o.Moved, o.Busy, o.Ended = Counters{nan, nan, nan, nan}, nan, nil
	m := measure(o, 1, 4, 16)
	for name, v := range map[string]*float64{
		"tokens/min": m.OutputTokensPerMin, "busy": m.ReplicasBusy, "hits": m.PrefixHitPercent, "stayed": m.StayedPercent,
		"ITL": m.ITLMean, "session": m.SessionMean, "re-read": m.RereadTokens, "spread": m.FirstTurnSpread, "preemptions": m.Preemptions,
	} {
		if v != nil {
			t.Errorf("%s is %v, but cannot be known", name, *v)
		}
	}
	if *m.Turns != 2 || *m.TTFBP50 != 1 || *m.Spills != 0 || *m.SessionsPerHour != 0 {
		t.Errorf("what is known: %v turns, TTFB %v, %v spills, %v sessions/h", *m.Turns, *m.TTFBP50, *m.Spills, *m.SessionsPerHour)
	}
	if parts := byReplica(o, 4); len(parts) != 0 {
		t.Errorf("parts by replica: %+v", parts)
	}
}

func TestNothingHappened(t *testing.T) {
	m := measure(Observation{Length: time.Minute}, 2, 4, 16)
	if m.TTFBP50 != nil || m.Jain != nil || m.PrefixHitPercent != nil || *m.Turns != 0 || *m.OutputTokensPerMin != 0 {
		t.Errorf("%+v", m)
	}
}

// The engine's balancer gives no homes: who stays is who meets the same replica
// again, in the order of sending.
func TestStayedWithoutHomes(t *testing.T) {
	o := observation(
		turn(1, 0, 2, 5, 1, 2, 0, 1, routing.Off), // ended before the first turn was recorded
		turn(1, 0, 1, 0, 1, 2, 0, 1, routing.Off),
		turn(1, 0, 3, 9, 1, 2, 0, 2, routing.Off),
		turn(2, 0, 1, 0, 1, 2, 0, 2, routing.Off),
		turn(2, 0, 2, 3, 1, 2, 0, 3, routing.Off),
	)
	if got := *measure(o, 1, 4, 16).StayedPercent; got != 33.3333 {
		t.Errorf("stayed %v%%, want one of three", got)
	}
}

func TestParts(t *testing.T) {
	agent := turn(9, 0, 1, 1, 7, 8, 10, 0, routing.Placed)
	agent.Parent = 1
	o := observation(
		turn(1, 0, 1, 0, 1, 2, 0, 0, routing.Placed),
		turn(1, 0, 2, 2, 2, 5, 64, 0, routing.Stayed),
		turn(2, 0, 1, 2, 3, 5, 20, 2, routing.Placed),
		agent,
	)
	if diff := cmp.Diff([]results.Part{
		{Index: 0, Turns: f(3), FirstTurns: f(2), PrefixHitPercent: f(24.6667), TTFBP50: f(2)},
		{Index: 2, Turns: f(1), FirstTurns: f(1), PrefixHitPercent: f(20), TTFBP50: f(3)},
	}, byReplica(o, 4)); diff != "" {
		t.Errorf("by replica (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]results.Part{
		{Index: 1, Turns: f(2), FirstTurns: f(2), PrefixHitPercent: f(10), TTFBP50: f(1)},
		{Index: 2, Turns: f(1), FirstTurns: f(0), PrefixHitPercent: f(64), TTFBP50: f(2)},
	}, byTurn(o)); diff != "" {
		t.Errorf("by turn (-want +got):\n%s", diff)
	}
}

func TestQuantileIsTheNearestRank(t *testing.T) {
	values := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for q, want := range map[float64]float64{0: 1, 0.05: 1, 0.5: 5, 0.51: 6, 0.95: 10, 1: 10} {
		if got := *quantile(values, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}
