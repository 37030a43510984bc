package routing_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "lmwarden/internal/routing"
)

// A claim ends with the request that had it.
func TestAClaimIsNotLeftBehind(t *testing.T) {
	b := newPatient(t, separate(2), 10_000)
	if err := b.core.SetLimits(Limits{Patience: 20 * time.Second}); err != nil {
		t.Fatal(err)
	}
	b.open(sized(0, 8500))
	b.open(sized(1, 3000))
	b.open(sized(2, 3000)) // beside 1
	big, _ := b.hold(sized(3, 9000))
	b.pass(21 * time.Second) // it claims replica 1
	b.end(big, Outcome{})    // its client left
	if _, d := b.open(sized(4, 2500)); d.Replica != 1 {
		t.Errorf("%+v, want started on 1, where it fits", d)
	}
}

// Who waits claims a replica when the patience has passed, a batch request when
// four times that has.
func TestPatienceIsAsLongAsItSays(t *testing.T) {
	for class, patience := range map[Class]time.Duration{Interactive: 20 * time.Second, Batch: 80 * time.Second} {
		b := newPatient(t, separate(1), 10_000)
		if err := b.core.SetLimits(Limits{Patience: 20 * time.Second}); err != nil {
			t.Fatal(err)
		}
		b.open(sized(0, 5000))
		r := sized(1, 9000)
		r.Class = class
		b.hold(r)
		b.pass(patience - time.Second)
		b.open(sized(2, 500))
		b.pass(time.Second)
		b.hold(sized(3, 500)) // the replica is claimed
	}
}

// Two that are overdue claim two replicas.
func TestEachThatIsOverdueClaimsAReplica(t *testing.T) {
	b := newPatient(t, separate(2), 10_000)
	if err := b.core.SetLimits(Limits{Patience: 20 * time.Second}); err != nil {
		t.Fatal(err)
	}
	b.open(sized(0, 6000))
	b.open(sized(1, 6000))
	b.hold(sized(2, 9000))
	b.hold(sized(3, 9000))
	b.pass(20 * time.Second)
	b.hold(sized(4, 500))
}

// By Little's law: two places of ten seconds each serve a turn in five seconds at
// best, half of that is taken for sure, and 48% of the turns wait.
func TestThePatienceFollowsWhatWaits(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	b.core.RestoreLearned(Learned{Need: Measured{Value: 4900, Samples: 1000}, Place: Measured{Value: 10, Samples: 1000}})
	if got := b.view().Queue.Patience; got != 20*time.Second {
		t.Errorf("patience %v, want two places of 10 s", got)
	}
	if err := b.core.SetLimits(Limits{Wait: time.Hour}); err != nil {
		t.Fatal(err)
	}
	b.open(sized(0, 5000))
	for n := range 10 {
		b.hold(sized(1+n, 9000))
	}
	if got := b.view().Queue.Patience.Round(time.Second); got != 208*time.Second {
		t.Errorf("patience %v with 10 waiting, want 10 / (0.1 x 0.48) s", got)
	}
}

// Who is made to read a conversation again at 1,000 tokens a second should not be
// made to often, but nobody waits for longer than may be predicted.
func TestThePatienceIsSomeReadings(t *testing.T) {
	for need, want := range map[float64]time.Duration{3000: 20 * time.Second, 8000: 40 * time.Second, 80_000: 5 * time.Minute} {
		b := newPatient(t, separate(1), 10_000)
		b.core.RestoreLearned(Learned{
			Need: Measured{Value: need, Samples: 1000}, Place: Measured{Value: 10, Samples: 1000},
			ReadingRate: Measured{Value: 1000, Samples: 100},
		})
		if got := b.view().Queue.Patience; got != want {
			t.Errorf("patience %v with conversations of %.0f tokens, want %v", got, need, want)
		}
	}
}

// An answer that comes in one piece tells of reading only that it was no slower.
func TestAWholeAnswerDoesNotMakeReadingSlow(t *testing.T) {
	b := newPatient(t, separate(1), 100_000)
	read := func(n int, whole bool, took time.Duration) {
		r := sized(n, 8000)
		r.Whole = whole
		id, _ := b.open(r)
		b.pass(took)
		b.core.FirstByte(b.now, id)
		b.finish(id, complete(8000, 0, 50))
	}
	rate := func() float64 { return b.view().Learned.ReadingRate.Value }
	read(0, false, time.Second)
	for n := range 50 {
		read(1+n, true, 8*time.Second)
	}
	if got := rate(); got != 8000 {
		t.Errorf("%.0f tokens a second, want 8000", got)
	}
	for n := range 10 {
		read(100+n, true, 500*time.Millisecond)
	}
	if got := rate(); got < 15_000 {
		t.Errorf("%.0f tokens a second, want nearly 16000", got)
	}
}

// Two conversations push each other out, and their replica does little but read
// them again.
func TestThePatienceGrowsWithWhatIsReadAgain(t *testing.T) {
	patience := func(whole bool, read time.Duration, cached int64) time.Duration {
		b := newPatient(t, separate(1), 10_000)
		for n := range 200 {
			r := sized(n%2, 8000)
			r.Whole = whole
			id, _ := b.open(r)
			b.pass(read)
			b.core.FirstByte(b.now, id)
			b.pass(time.Second - read)
			b.finish(id, complete(8000, cached, 50))
		}
		return b.view().Queue.Patience.Round(100 * time.Millisecond)
	}
	tests := []struct {
		name   string
		whole  bool
		read   time.Duration
		cached int64
		want   time.Duration
	}{
		{"a tenth of the time", false, 100 * time.Millisecond, 0, 2 * time.Second},
		{"half, since a quarter of the history is still there", false, 750 * time.Millisecond, 0, 7400 * time.Millisecond},
		{"nobody knows", true, 750 * time.Millisecond, 0, 3800 * time.Millisecond},
		{"a tier had it", false, 750 * time.Millisecond, 7900, 2 * time.Second},
	}
	for _, test := range tests {
		if got := patience(test.whole, test.read, test.cached); got != test.want {
			t.Errorf("%s: patience %v, want %v", test.name, got, test.want)
		}
	}
}

// One turn a second ends. Where hardly any waits, one that has to waits for many of
// them; where each waits, for one.
func TestThePredictedWaitFollowsTheShareThatWaits(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	answer := func(id RequestID) { b.finish(id, complete(6000, 0, 50)) }
	for n := range 200 {
		id, _ := b.open(sized(n, 6000))
		b.pass(time.Second)
		answer(id)
	}
	id, _ := b.open(sized(200, 6000))
	next, a := b.hold(sized(201, 6000))
	if a.Wait < 7*time.Second || a.Wait > 10*time.Second {
		t.Errorf("while no other waited: %v, want 8 s", a.Wait)
	}
	for n := range 200 {
		b.pass(time.Second)
		answer(id)
		id = next
		next, a = b.hold(sized(202+n, 6000))
	}
	if a.Wait < 900*time.Millisecond || a.Wait > 1300*time.Millisecond {
		t.Errorf("while every other waited: %v, want 1 s", a.Wait)
	}
}

// What a failed attempt took is not a wait.
func TestARetryWaitsFromThenOn(t *testing.T) {
	b := newPatient(t, separate(2), 10_000)
	failed, d := b.open(sized(0, 9000))
	other, _ := b.open(sized(1, 9000))
	b.pass(5 * time.Second)
	b.core.SetState(b.now, d.Replica, Down)
	if a := b.one(failed, b.core.Retry(b.now, failed)); a.Kind != Hold {
		t.Fatalf("%+v, want a hold", a)
	}
	b.pass(2 * time.Second)
	if q := b.view().Queue; q.Longest != 2*time.Second {
		t.Errorf("waits for %v, want 2 s", q.Longest)
	}
	if a := b.one(failed, b.core.Finish(b.now, other, complete(9000, 0, 50))); a.Decision.Waited != 2*time.Second {
		t.Errorf("waited for %v, want 2 s", a.Decision.Waited)
	}
}

// While caches are short a replica is given 3 s of reading at a time; what takes
// half a second and belongs to no conversation passes.
func TestReadingIsLimited(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	b.core.RestoreLearned(Learned{ReadingRate: Measured{Value: 1000, Samples: 100}})
	b.open(sized(0, 2500))
	b.hold(sized(1, 8000))
	r := unbound()
	r.Tokens, r.MaxOutput = 600, 100
	b.hold(r)
	r.Tokens = 400
	b.open(r)
}

// A place is kept for a conversation by the chance that it comes back, and that
// falls while it stays away.
func TestAKeptPlaceFades(t *testing.T) {
	gaps := slices.Concat(slices.Repeat([]float64{1}, 8), slices.Repeat([]float64{4}, 4), slices.Repeat([]float64{60}, 20))
	for _, test := range []struct {
		after time.Duration
		most  int64 // that fits beside the place
	}{
		{0, 10_000 - 1050 - 2295},               // 12 of 32 come back, and a fifth more: 45% of 5100
		{3 * time.Second, 10_000 - 1050 - 1020}, // 4 of 24
		{6 * time.Second, 10_000 - 1050},        // it is kept no longer
	} {
		b := newPatient(t, separate(1), 10_000)
		b.core.RestoreLearned(Learned{
			Gaps: gaps, Need: Measured{Value: 5000, Samples: 100}, Output: Measured{Value: 100, Samples: 100},
			ReadingRate: Measured{Value: 250, Samples: 100},
		})
		b.pass(time.Second)
		id, _ := b.open(sized(0, 5000))
		b.core.FirstByte(b.now, b.mustOpen(sized(1, 1000)))
		b.finish(id, complete(5000, 0, 100))
		b.pass(test.after)
		const answer = 50
		over, _ := b.hold(sized(2, test.most-answer+2))
		b.end(over, Outcome{})
		b.open(sized(2, test.most-answer))
	}
}

func (b *box) mustOpen(r Request) RequestID { return must(b.open(r)) }

// Answers in flight are half written on average, so half of each is counted.
func TestHalfOfAnAnswerIsCounted(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	b.core.RestoreLearned(Learned{Output: Measured{Value: 4000, Samples: 100}})
	r := sized(0, 3000)
	r.MaxOutput = 0
	b.open(r)
	r.Key = key(1)
	b.open(r)
	r.Key, r.Tokens = key(2), 1
	b.hold(r)
}

// A turn waits for its home as long as it would take to read its history again.
func TestATurnWaitsForItsHomeWhileThatIsSooner(t *testing.T) {
	b := newPatient(t, separate(2), 20_000)
	if err := b.core.SetLimits(Limits{Patience: time.Hour}); err != nil {
		t.Fatal(err)
	}
	id, _ := b.open(sized(0, 5000)) // home 0
	b.finish(id, complete(5000, 0, 0))
	b.core.RestoreLearned(Learned{ReadingRate: Measured{Value: 100, Samples: 100}})
	b.core.FirstByte(b.now, b.mustOpen(sized(1, 100))) // at 1
	b.fillUp(0, 15_000)
	late, a := b.hold(sized(0, 8000))
	if a.Why != HomeBusy {
		t.Errorf("held for %q, want %q", a.Why, HomeBusy)
	}
	if got := b.pass(49 * time.Second); len(got) != 0 {
		t.Errorf("started %v while it waits for its home", got)
	}
	if got := b.pass(2 * time.Second); !cmp.Equal(got, map[RequestID]int{late: 1}) {
		t.Errorf("started %v, want %d at 1 after 50 s", got, late)
	}
}

// fillUp opens a request of so many tokens on a replica.
func (b *box) fillUp(replica int, tokens int64) {
	r := sized(1_000_000, tokens)
	r.Pin = replica
	id, _ := b.open(r)
	b.core.FirstByte(b.now, id)
}

// A turn that waits needs little where another of its conversation has come to be
// in flight.
func TestATurnBesideItsOwnConversationPasses(t *testing.T) {
	b := newPatient(t, separate(1), 10_000)
	b.open(sized(0, 4000))
	b.open(sized(1, 5500))
	b.hold(sized(2, 4000)) // ahead of it
	waits, _ := b.hold(sized(3, 4000))
	r := sized(3, 100)
	r.Pin = 0
	b.open(r)
	if got := b.pass(time.Second); !cmp.Equal(got, map[RequestID]int{waits: 0}) {
		t.Errorf("started %v, want %d", got, waits)
	}
}
