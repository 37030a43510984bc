package enginesim

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newTestBalancer(t testing.TB, o BalancerOptions, version BalancerVersion) *Balancer {
	t.Helper()
	o.Params = mustPreset(t, "tiny-fast")
	o.Params.Balancer = version
	if o.Clients == 0 {
		o.Clients = 1
	}
	b, err := NewBalancer(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// at returns a moment some milliseconds after the beginning.
func at(ms int) time.Time { return time.Time{}.Add(time.Duration(ms) * time.Millisecond) }

// choices lets the balancer choose n times at one moment.
func choices(b *Balancer, now time.Time, n int) []int {
	var ranks []int
	for range n {
		ranks = append(ranks, b.Choose(now))
	}
	return ranks
}

func TestBalancerTies(t *testing.T) {
	for _, tc := range []struct {
		name  string
		v     BalancerVersion
		o     BalancerOptions
		burst bool // all at once; else each comes long after the last has ended
		want  []int
	}{
		{"A spreads a burst by its own increments", BalancerA, BalancerOptions{Ranks: 3}, true, []int{0, 1, 2, 0, 1}},
		{"A prefers the first of idle ranks", BalancerA, BalancerOptions{Ranks: 3}, false, []int{0, 0, 0, 0, 0}},
		{"A starts where its index says", BalancerA, BalancerOptions{Ranks: 4, Client: 1, Clients: 2}, false, []int{2, 2, 2, 2, 2}},
		{"B goes around", BalancerB, BalancerOptions{Ranks: 3}, false, []int{0, 1, 2, 0, 1}},
		{"C goes around", BalancerC, BalancerOptions{Ranks: 3}, false, []int{0, 1, 2, 0, 1}},
		{"C spreads a burst", BalancerC, BalancerOptions{Ranks: 3, Client: 1, Clients: 2}, true, []int{1, 2, 0, 1, 2}},
	} {
		b := newTestBalancer(t, tc.o, tc.v)
		var got []int
		for i := range tc.want {
			if tc.burst {
				got = append(got, b.Choose(at(0)))
				continue
			}
			rank := b.Choose(at(i * 6000))
			b.Done(rank)
			got = append(got, rank)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", tc.name, diff)
		}
	}
}

func TestBalancerScores(t *testing.T) {
	for _, tc := range []struct {
		name  string
		v     BalancerVersion
		loads []Load
		added []int // header-chosen requests
		want  int
	}{
		{"A and B weigh waiting four times", BalancerB, []Load{{Waiting: 1}, {Running: 3}}, nil, 1},
		{"A and B: four running are worth one waiting", BalancerB, []Load{{Running: 5}, {Waiting: 1}}, nil, 1},
		{"A and B do not see what is in flight", BalancerB, []Load{{}, {Running: 1}}, []int{0, 0, 0}, 0},
		{"C adds waiting and running", BalancerC, []Load{{Waiting: 1, Running: 1}, {Running: 3}}, nil, 0},
		{"C sees what is in flight", BalancerC, []Load{{}, {Running: 1}}, []int{0, 0, 0}, 1},
		{"C weighs the KV use of ranks with a queue", BalancerC, []Load{{Waiting: 1, KVUsed: 0.9}, {Running: 3}}, nil, 1},
		{"C ignores KV use up to a half", BalancerC, []Load{{Waiting: 1, KVUsed: 0.5}, {Running: 2}}, nil, 0},
		{"C ignores the KV use of ranks without a queue", BalancerC, []Load{{Running: 1, KVUsed: 1}, {Running: 2}}, nil, 0},
	} {
		b := newTestBalancer(t, BalancerOptions{Ranks: 2}, tc.v)
		for rank, load := range tc.loads {
			b.Report(at(0), rank, load)
		}
		for _, rank := range tc.added {
			b.Add(rank)
		}
		if got := b.Choose(at(1000)); got != tc.want {
			t.Errorf("%s: chose %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestBalancerSeesCountsWhenTheyArePublished(t *testing.T) {
	// chosen says which rank version A picks, in front of ranks in lockstep, at a
	// moment after rank 0 reported one running request at 10 ms and rank 1 three at
	// 120 ms.
	chosen := func(ms int, silent bool) int {
		p := mustPreset(t, "tiny-fast")
		p.Balancer, p.CountsUnpublished, p.PublishCollectMS = BalancerA, silent, 50
		b, err := NewBalancer(BalancerOptions{Params: p, Ranks: 2, Clients: 1})
		if err != nil {
			t.Fatal(err)
		}
		b.Report(at(0), 0, Load{})
		b.Report(at(10), 0, Load{Running: 1})
		if ms >= 120 {
			b.Report(at(120), 1, Load{Running: 3})
		}
		return b.Choose(at(ms))
	}
	for _, tc := range []struct {
		ms, want int
	}{
		{20, 0},  // nothing published yet
		{99, 0},  // collected at 60 ms, but the last publication was at 0
		{100, 1}, // published
		{199, 1}, // rank 1's count is collected at 170 ms, published at 200
		{200, 0},
	} {
		if got := chosen(tc.ms, false); got != tc.want {
			t.Errorf("after %d ms: rank %d, want %d", tc.ms, got, tc.want)
		}
		if got := chosen(tc.ms, true); got != 0 {
			t.Errorf("after %d ms, counts unpublished: rank %d, want 0", tc.ms, got)
		}
	}
}

// Each of several API servers takes the others to do as it does.
func TestBalancerCountsForAllAPIServers(t *testing.T) {
	a := newTestBalancer(t, BalancerOptions{Ranks: 2, Clients: 2}, BalancerA)
	a.Report(at(0), 1, Load{Running: 6})
	if diff := cmp.Diff([]int{0, 1}, choices(a, at(100), 2)); diff != "" {
		t.Errorf("A: a choice must count as two waiting: want -, got +:\n%s", diff)
	}
	c := newTestBalancer(t, BalancerOptions{Ranks: 2, Clients: 2}, BalancerC)
	c.Report(at(0), 1, Load{Running: 3})
	c.Add(0)
	c.Add(0)
	if got := c.Choose(at(100)); got != 1 {
		t.Errorf("C: two in flight must count as four: rank %d, want 1", got)
	}
}

func TestPublicationDoesNotWaitForSilence(t *testing.T) {
	b := newTestBalancer(t, BalancerOptions{Ranks: 2}, BalancerA)
	b.Report(at(0), 0, Load{})
	for ms := 10; ms <= 100; ms += 10 {
		b.Report(at(ms), 0, Load{Running: ms})
	}
	if got := b.Choose(at(100)); got != 1 {
		t.Errorf("rank %d: the change at 10 ms must be known at 100, whatever came after", got)
	}
}

func TestKVUseAloneIsNotReported(t *testing.T) {
	b := newTestBalancer(t, BalancerOptions{Ranks: 2}, BalancerC)
	b.Report(at(0), 0, Load{Running: 1, Waiting: 1})
	b.Choose(at(100)) // has the counts
	b.Report(at(300), 0, Load{Running: 1, Waiting: 1, KVUsed: 1})
	b.Choose(at(500))
	if got := b.view[0].KVUsed; got != 0 {
		t.Errorf("KV use %g is known, though the counts have not changed", got)
	}
	b.Report(at(600), 0, Load{Running: 2, Waiting: 1, KVUsed: 0.9})
	b.Choose(at(600))
	if got := b.view[0].KVUsed; got != 0.9 {
		t.Errorf("KV use %g, want the 0.9 that came with the counts", got)
	}
}

func TestPublicationErasesOwnIncrements(t *testing.T) {
	b := newTestBalancer(t, BalancerOptions{Ranks: 2}, BalancerA)
	if diff := cmp.Diff([]int{0, 1, 0}, choices(b, at(0), 3)); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if got := b.Choose(at(4999)); got != 1 {
		t.Errorf("before the idle publication: rank %d, want 1", got)
	}
	if got := b.Choose(at(5000)); got != 0 {
		t.Errorf("after the idle publication of zeros: rank %d, want 0", got)
	}
	if got := b.Choose(at(3_600_000)); got != 0 {
		t.Errorf("an hour later: rank %d, want 0", got)
	}
}

func TestBlindBalancerIsRandomAndSeeded(t *testing.T) {
	run := func(seed uint64) []int {
		b := newTestBalancer(t, BalancerOptions{Ranks: 4, Rand: rand.New(rand.NewPCG(seed, 0))}, BalancerBlind)
		return choices(b, at(0), 400)
	}
	got := run(1)
	var counts [4]int
	for _, rank := range got {
		counts[rank]++
	}
	for rank, n := range counts {
		if n < 60 || n > 140 {
			t.Errorf("rank %d got %d of 400", rank, n)
		}
	}
	if !cmp.Equal(got, run(1)) || cmp.Equal(got, run(2)) {
		t.Error("the choices must follow from the seed")
	}
}

func TestBalancerRefusesBadOptions(t *testing.T) {
	good := BalancerOptions{Params: mustPreset(t, "a4000-qwen3-4b"), Ranks: 1, Clients: 1, Rand: rand.New(rand.NewPCG(1, 1))}
	for want, spoil := range map[string]func(*BalancerOptions){
		"0 ranks":           func(o *BalancerOptions) { o.Ranks = 0 },
		"API server 1 of 1": func(o *BalancerOptions) { o.Client = 1 },
		"random source":     func(o *BalancerOptions) { o.Rand = nil },
		"TokenBudget is 0":  func(o *BalancerOptions) { o.Params.TokenBudget = 0 },
	} {
		o := good
		spoil(&o)
		if _, err := NewBalancer(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestBoxRefusals(t *testing.T) {
	w := newWorld(t, BoxOptions{Params: smallParams(5), Ranks: 2})
	var rankError *RankError
	for _, rank := range []int{-2, 2} {
		if _, err := w.box.Submit(w.now, 0, rank, seq(1, 4, 1)); !errors.As(err, &rankError) || rankError.Rank != rank {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	var tooLong *PromptError
	if _, err := w.box.Submit(w.now, 0, AnyRank, seq(1, 20, 1)); !errors.As(err, &tooLong) {
		t.Errorf("a prompt that cannot fit: %v", err)
	}
	if _, err := w.box.Submit(w.now, 0, 1, seq(1, 4, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.box.Submit(w.now, 0, 0, seq(1, 4, 1)); err == nil {
		t.Error("an ID was taken twice")
	}
	if got := []int{w.box.balancers[0].InFlight(0), w.box.balancers[0].InFlight(1)}; !cmp.Equal(got, []int{0, 1}) {
		t.Errorf("in flight %v: a refused sequence must not count", got)
	}
	if w.box.Abort(9) || !w.box.Abort(1) || w.box.Abort(1) {
		t.Error("Abort must know a living sequence, and only once")
	}
	if got := w.box.balancers[0].InFlight(1); got != 0 {
		t.Errorf("%d in flight after the abort", got)
	}
}

func TestBoxReportsBeforeEachStep(t *testing.T) {
	p := smallParams(50)
	p.Balancer = BalancerA
	w := newWorld(t, BoxOptions{Params: p, Ranks: 2})
	w.submit(0, 0, *seq(1, 190, 1), func(Emit) {}) // a step of 190 ms
	w.run(w.now.Add(150 * time.Millisecond))
	w.now = at(150)
	if got := w.submit(0, AnyRank, *seq(2, 4, 1), func(Emit) {}); got != 1 {
		t.Errorf("rank %d: what waited before the running step must be known", got)
	}
}

func TestBoxResetsAllRanksButThoseInUse(t *testing.T) {
	w := newWorld(t, BoxOptions{Params: smallParams(5), Ranks: 2})
	s := seq(1, 9, 20)
	w.ask(1, *s)
	w.submit(0, 0, *seq(2, 4, 9), func(Emit) {})
	w.run(w.now)
	if w.box.Reset() {
		t.Error("a box in use says that all of it was reset")
	}
	w.run()
	if got, _ := w.ask(1, *s); got.Cached != 0 {
		t.Errorf("rank 1 kept %d tokens", got.Cached)
	}
}

func TestBoxRefusesBadOptions(t *testing.T) {
	for want, o := range map[string]BoxOptions{
		"0 ranks":        {Params: smallParams(5)},
		"-1 API servers": {Params: smallParams(5), Ranks: 1, APIServers: -1},
		"KVTokens is 4":  {Params: smallParams(0), Ranks: 1},
		"random source":  {Params: mustPreset(t, "a4000-qwen3-4b"), Ranks: 1},
	} {
		if _, err := NewBox(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
