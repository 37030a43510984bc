package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

func servers(hosts ...string) []Server {
	var list []Server
	for _, h := range hosts {
		list = append(list, Server{URL: h})
	}
	return list
}

// reconfigure wants the models to be taken, and the changes that it tells.
func reconfigure(t testing.TB, s *Set, models []Options, changes ...string) {
	t.Helper()
	got, err := s.Reconfigure(t.Context(), models)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(changes, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// rows are the hosts and states of a pool's replicas.
func rows(p *Pool) string {
	var list []string
	for _, r := range p.View().Replicas {
		list = append(list, strings.TrimPrefix(r.URL, "http://")+" "+r.State.String())
	}
	return strings.Join(list, ", ")
}

func wantRows(t testing.TB, p *Pool, want string) {
	t.Helper()
	if got := rows(p); got != want {
		t.Errorf("replicas %q, want %q", got, want)
	}
}

func lookup(t testing.TB, s *Set, name string) *Pool {
	t.Helper()
	p, ok := s.Lookup(name)
	if !ok {
		t.Fatalf("no model %q", name)
	}
	return p
}

func (f *fakeSources) running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for host, n := range f.ran {
		for range n {
			list = append(list, host)
		}
	}
	slices.Sort(list)
	return list
}

func TestEnginesComeAndGo(t *testing.T) {
	s, f := startSet(t, SetOptions{Models: []Options{{Name: "m", Servers: servers("a", "b")}}})
	f.tell(s, "a", good(info(2, "m")))
	f.tell(s, "b", good(info(1, "m")))
	p := lookup(t, s, "m")
	wantRows(t, p, "a ready, a ready, b ready")
	for replica, n := range map[int]int{1: 1, 2: 2} {
		acquire(t, p, pinned(n, replica)).End(routing.Outcome{OK: true})
	}
	onA, onB := acquire(t, p, turn(1)), acquire(t, p, turn(2))

	reconfigure(t, s, []Options{{Name: "m", Servers: servers("c", "a")}},
		`model "m": engine http://c added`, `model "m": engine http://b removed`)
	if lookup(t, s, "m") != p {
		t.Fatal("the model has another pool")
	}
	wantRows(t, p, "c unknown, c unknown, a ready, a ready")
	f.tell(s, "c", good(info(1, "m")))
	wantRows(t, p, "c ready, a ready, a ready")

	// What is open goes on, and ends once.
	if onB.Target().Base.Host != "b" || onA.Target().Rank != 1 {
		t.Errorf("open requests are at %v and at rank %d", onB.Target().Base, onA.Target().Rank)
	}
	if v := p.View(); v.Routing.InFlight != 2 || v.Replicas[2].InFlight != 1 {
		t.Errorf("in flight %d, on a's second rank %d", v.Routing.InFlight, v.Replicas[2].InFlight)
	}
	onB.FirstByte()
	onB.Progress()
	onB.Failed(errRefused) // whose server is no longer anybody's concern
	wantRows(t, p, "c ready, a ready, a ready")
	onB.End(routing.Outcome{OK: true})
	onA.End(routing.Outcome{OK: true})
	wantInFlight(t, p, 0)

	for n, want := range map[int]routing.Decision{
		1: {Replica: 2, Reason: routing.Stayed},
		2: {Replica: 0, Reason: routing.Moved, Why: routing.HomeRemoved},
	} {
		l := acquire(t, p, turn(n))
		if d := l.Decision(); d.Replica != want.Replica || d.Reason != want.Reason || d.Why != want.Why {
			t.Errorf("conversation %d: %+v, want %+v", n, d, want)
		}
		l.End(routing.Outcome{})
	}
	f.awaitRunning(t, "a", "c")
}

// awaitRunning waits for sources to have started and ended.
func (f *fakeSources) awaitRunning(t testing.TB, hosts ...string) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for !slices.Equal(f.running(), hosts) {
		select {
		case <-deadline:
			t.Fatalf("sources run for %v, want %v", f.running(), hosts)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestARetryLeavesARemovedEngine(t *testing.T) {
	s, f := startSet(t, SetOptions{Models: []Options{{Name: "m", Servers: servers("a", "b")}}})
	f.tell(s, "a", good(info(1, "m")))
	f.tell(s, "b", good(info(1, "m")))
	p := lookup(t, s, "m")
	l := acquire(t, p, pinned(1, 0))
	free := acquire(t, p, Request{ID: "free", Pin: routing.None})
	reconfigure(t, s, []Options{{Name: "m", Servers: servers("b")}}, `model "m": engine http://a removed`)
	if free.Target().Base.Host == "a" {
		if err := free.Retry(errRefused); err != nil || free.Target().Base.Host != "b" {
			t.Errorf("retried: %v, at %v", err, free.Target().Base)
		}
	}
	wantRows(t, p, "b ready")
	if err := l.Retry(errRefused); err != nil { // the pin is another replica by now
		l.End(routing.Outcome{})
	}
	l.End(routing.Outcome{})
	free.End(routing.Outcome{})
	wantInFlight(t, p, 0)
	if r := p.Receipts(10); len(r) == 0 {
		t.Error("the decision after the change has no receipt")
	}
}

func TestABadConfigurationChangesNothing(t *testing.T) {
	models := []Options{{Name: "m", Servers: servers("a")}, {Name: "n", Servers: servers("b")}}
	s, f := startSet(t, SetOptions{Models: models})
	f.tell(s, "a", good(info(1, "m")))
	p := lookup(t, s, "m")
	for want, models := range map[string][]Options{
		"no model":                  nil,
		`"m" is configured twice`:   {{Name: "m", Servers: servers("c")}, {Name: "m", Servers: servers("d")}},
		"two different API keys":    {{Name: "m", Servers: servers("c")}, {Name: "o", Servers: []Server{{URL: "c", Key: "k"}}}},
		"has no engine":             {{Name: "m", Servers: servers("c")}, {Name: "o"}},
		`unknown policy "best"`:     {{Name: "m", Servers: servers("c"), Policy: "best"}},
		"not http":                  {{Name: "m", Servers: servers("c", "ftp://d")}},
		"engine c is listed twice":  {{Name: "m", Servers: servers("c", "c")}},
		"spill threshold -1":        {{Name: "m", Servers: servers("c"), SpillThreshold: -1}},
		"engine http://a: -1 ranks": {{Name: "m", Servers: []Server{{URL: "http://a", Ranks: -1}}}},
	} {
		if _, err := s.Reconfigure(t.Context(), models); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ...%s...", err, want)
		}
	}
	if len(s.Pools()) != 2 || lookup(t, s, "m") != p {
		t.Errorf("pools %v", s.Pools())
	}
	wantRows(t, p, "a ready")
	f.awaitRunning(t, "a", "b")
	reconfigure(t, s, models) // nor does what is in force already
}

func TestWhatAConfigurationMayChange(t *testing.T) {
	at := func(change func(*Options)) []Options {
		o := Options{Name: "m", Servers: servers("a")}
		change(&o)
		return []Options{o}
	}
	plain := at(func(*Options) {})
	s, f := startSet(t, SetOptions{Models: plain})
	f.tell(s, "a", good(engine.Info{Kind: "vllm", HasMetrics: true, Ranks: 2, Models: []engine.Model{{ID: "m", Root: "m"}, {ID: "other", Root: "o"}}}))
	p := lookup(t, s, "m")

	reconfigure(t, s, at(func(o *Options) { o.Aliases = []string{"gpt-*"} }), `model "m": aliases ["gpt-*"]`)
	if lookup(t, s, "gpt-5") != p {
		t.Error("the new alias does not find the model")
	}
	reconfigure(t, s, plain, `model "m": aliases []`)
	if found(s, "gpt-5") != "" {
		t.Error("the former alias still does")
	}
	reconfigure(t, s, at(func(o *Options) { o.SpillThreshold = 3 }), `model "m": spill threshold 3`)
	if n := p.View().Routing.SpillThreshold; n != 3 {
		t.Errorf("spill threshold %d", n)
	}
	reconfigure(t, s, at(func(o *Options) { o.Servers[0].Key = "k" }),
		`model "m": spill threshold auto`, `model "m": another API key for engine http://a`)
	if l := acquire(t, p, turn(1)); l.Target().Key != "k" || f.keys["a"] != "k" {
		t.Errorf("requests have the key %q, probes %q", l.Target().Key, f.keys["a"])
	} else {
		l.End(routing.Outcome{})
	}
	reconfigure(t, s, at(func(o *Options) { o.Servers[0].Ranks = 3 }),
		`model "m": another API key for engine http://a`, `model "m": ranks of engine http://a: 3`)
	wantRows(t, p, "a ready, a ready, a down")
	reconfigure(t, s, at(func(o *Options) { o.ServedName = "other" }),
		`model "m": ranks of engine http://a: as many as it has`, `model "m": served name other`)
	if name := p.ServedName(); name != "other" {
		t.Errorf("served as %q", name)
	}
	reconfigure(t, s, at(func(o *Options) { o.LiveFor = time.Minute; o.IdleFor = time.Hour }),
		`model "m": conversations are live for 1m0s and kept for 1h0m0s`, `model "m": served name as the engines say`)
	if l := acquire(t, p, turn(1)); l.Target().Model("m") != "m" {
		t.Errorf("asked for as %q", l.Target().Model("m"))
	} else {
		l.End(routing.Outcome{})
	}
}

func TestEnginesMayBeListedInAnotherOrder(t *testing.T) {
	s, f := startSet(t, SetOptions{Models: []Options{{Name: "m", Servers: servers("a", "b")}}})
	f.tell(s, "a", good(info(1, "m")))
	f.tell(s, "b", good(info(2, "m")))
	p := lookup(t, s, "m")
	acquire(t, p, pinned(1, 0)).End(routing.Outcome{OK: true})
	reconfigure(t, s, []Options{{Name: "m", Servers: servers("b", "a")}}, `model "m": engines in another order`)
	wantRows(t, p, "b ready, b ready, a ready")
	if r := p.Receipts(10); len(r) != 0 {
		t.Errorf("receipts with the former numbers: %+v", r)
	}
	l := acquire(t, p, turn(1))
	if d := l.Decision(); d.Reason != routing.Stayed || d.Replica != 2 || l.Target().Base.Host != "a" {
		t.Errorf("%+v", d)
	}
	l.End(routing.Outcome{})
}

// What an operator set at run time outlasts a reload for another reason.
func TestAnOperatorsChoiceOutlastsAReload(t *testing.T) {
	s, f := startSet(t, SetOptions{Models: []Options{{Name: "m", Servers: servers("a")}}})
	f.tell(s, "a", good(info(1, "m")))
	p := lookup(t, s, "m")
	if err := errors.Join(p.SetPolicy("round-robin"), p.SetSpillThreshold(5)); err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(0); err != nil {
		t.Fatal(err)
	}
	reconfigure(t, s, []Options{{Name: "m", Servers: servers("b", "a")}}, `model "m": engine http://b added`)
	if v := p.View().Routing; v.Policy != "round-robin" || v.SpillThreshold != 5 {
		t.Errorf("policy %s, spill threshold %d", v.Policy, v.SpillThreshold)
	}
	wantRows(t, p, "b unknown, a draining")
	reconfigure(t, s, []Options{{Name: "m", Servers: servers("b", "a"), Policy: "off", SpillThreshold: 9}},
		`model "m": policy off`, `model "m": spill threshold 9`)
	if v := p.View().Routing; v.Policy != "off" || v.SpillThreshold != 9 {
		t.Errorf("policy %s, spill threshold %d", v.Policy, v.SpillThreshold)
	}
}

func TestModelsComeAndGo(t *testing.T) {
	var added []string
	s, f := startSet(t, SetOptions{
		Models: []Options{{Name: "m", Servers: servers("a")}, {Name: "n", Servers: servers("b")}},
		Added:  func(p *Pool) { added = append(added, p.Name()) },
	})
	f.tell(s, "a", good(info(1, "m")))
	f.tell(s, "b", good(info(1, "n")))
	n := lookup(t, s, "n")
	open := acquire(t, n, turn(1))

	both := engine.Info{Kind: "vllm", HasMetrics: true, Ranks: 1, Models: []engine.Model{{ID: "m", Root: "/m"}, {ID: "o", Root: "/o"}}}
	f.tell(s, "a", good(both))
	reconfigure(t, s, []Options{{Name: "m", Servers: servers("a")}, {Name: "o", Servers: servers("a")}},
		`model "n" removed`, `model "o" added`)
	if got := found(s, "n"); got != "" {
		t.Errorf("the removed model finds %q", got)
	}
	wantRows(t, lookup(t, s, "o"), "a ready") // what its engine said before counts
	if diff := cmp.Diff([]string{"m", "n", "o"}, added); diff != "" {
		t.Error(diff)
	}
	open.FirstByte()
	open.End(routing.Outcome{OK: true})
	wantInFlight(t, n, 0)
	f.awaitRunning(t, "a")
}

// Whether a model's name stands in the file or is asked for, it is the same one.
func TestAModelKeepsItsPoolWhenItIsNamed(t *testing.T) {
	unnamed, named := []Options{{Servers: servers("a")}}, []Options{{Name: "m", Servers: servers("a")}}
	s, f := startSet(t, SetOptions{Models: unnamed})
	f.tell(s, "a", good(info(2, "m")))
	p := lookup(t, s, "m")
	acquire(t, p, turn(1)).End(routing.Outcome{OK: true})
	for _, models := range [][]Options{named, unnamed} {
		if _, err := s.Reconfigure(t.Context(), models); err != nil {
			t.Fatal(err)
		}
		if len(s.Pools()) != 1 || lookup(t, s, "m") != p {
			t.Fatal("the model has another pool")
		}
		f.tell(s, "a", good(info(2, "m")))
		l := acquire(t, p, turn(1))
		if d := l.Decision(); d.Reason != routing.Stayed {
			t.Errorf("%+v", d)
		}
		l.End(routing.Outcome{OK: true})
	}
}

func TestEnginesOfAnUnnamedModelComeAndGo(t *testing.T) {
	s, f := startSet(t, SetOptions{Models: []Options{{Servers: servers("a", "b")}}})
	f.tell(s, "a", good(info(1, "m")))
	f.tell(s, "b", good(info(1, "n")))
	m, n := lookup(t, s, "m"), lookup(t, s, "n")
	reconfigure(t, s, []Options{{Servers: servers("c", "a")}}, `model "n" removed`, "engine http://c added")
	if l := s.Unassigned(); len(l) != 1 || l[0].URL != "http://c" {
		t.Errorf("without a pool: %+v", l)
	}
	f.tell(s, "c", good(info(2, "m")))
	if len(s.Pools()) != 1 || lookup(t, s, "m") != m || found(s, "n") != "" {
		t.Errorf("pools %v, of them %v and %v were there before", s.Pools(), m, n)
	}
	wantRows(t, m, "c ready, c ready, a ready")
	if s.Unassigned() != nil {
		t.Errorf("without a pool: %+v", s.Unassigned())
	}
	// Nothing of it is left: another model takes its place when it shows.
	reconfigure(t, s, []Options{{Servers: servers("d")}}, `model "m" removed`, "engine http://d added")
	f.tell(s, "d", good(info(1, "m")))
	if p := lookup(t, s, "m"); p == m {
		t.Error("the pool of other servers is still there")
	} else {
		wantRows(t, p, "d ready")
	}
	f.awaitRunning(t, "d")
}

func TestAllEnginesOfAModelMayBeReplaced(t *testing.T) {
	s, f := startSet(t, SetOptions{Models: []Options{{Name: "m", Servers: servers("a", "b")}}})
	f.tell(s, "a", good(info(2, "m")))
	f.tell(s, "b", good(info(2, "m")))
	p := lookup(t, s, "m")
	reconfigure(t, s, []Options{{Name: "m", Servers: servers("c", "d")}},
		`model "m": engine http://c added`, `model "m": engine http://d added`,
		`model "m": engine http://a removed`, `model "m": engine http://b removed`)
	wantRows(t, p, "c unknown, d unknown")
	l := acquire(t, p, turn(1)) // they may well be there
	f.tell(s, "d", good(info(2, "m")))
	f.tell(s, "c", bad(engine.Info{}, engine.Down))
	wantRows(t, p, "c down, d ready, d ready")
	l.End(routing.Outcome{})
	wantInFlight(t, p, 0)
}

func TestOnlyARunningSetIsReconfigured(t *testing.T) {
	o := []Options{{Name: "m", Servers: servers("a")}}
	s, err := NewSet(SetOptions{Models: o, Watch: newFakeSources().watch})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Reconfigure(ctx, o); err != context.Canceled {
		t.Errorf("before it runs: %v", err)
	}
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reconfigure(context.Background(), o); err == nil {
		t.Error("it was reconfigured after its end")
	}
}

// Whatever comes and goes while requests are on their way, none is counted twice
// or for ever.
func TestInFlightEndsAtZeroWhateverIsReconfigured(t *testing.T) {
	hosts := []string{"a", "b", "c", "d"}
	s, f := startSet(t, SetOptions{Models: []Options{{Name: "m", Servers: servers(hosts...)}, {Name: "n", Servers: servers("a")}}})
	var seen sync.Map // every pool that there was
	tell := func(random *rand.Rand) {
		host := hosts[random.IntN(len(hosts))]
		f.mu.Lock()
		report := f.report[host]
		f.mu.Unlock()
		switch random.IntN(4) {
		case 0:
			report(bad(info(2, "m", "n"), engine.Down))
		default:
			report(good(info(1+random.IntN(3), "m", "n")))
		}
	}
	var all sync.WaitGroup
	for g := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(g)))
		all.Go(func() {
			for n := 0; n < 200; {
				runtime.Gosched()
				p, ok := s.Lookup([]string{"m", "n"}[random.IntN(2)])
				if !ok {
					continue
				}
				seen.Store(p, true)
				r := turn(random.IntN(40))
				r.ID = fmt.Sprint(g, n)
				l, err := p.Acquire(t.Context(), r)
				if err != nil {
					continue
				}
				n++
				if random.IntN(3) == 0 && l.Retry([]error{errRefused, errReset, errPage, ErrBusy, ErrAborted}[random.IntN(5)]) != nil {
					l.End(routing.Outcome{})
					continue
				}
				l.Target()
				l.FirstByte()
				l.Progress()
				if random.IntN(5) == 0 {
					l.Failed(errPage)
				}
				l.End(routing.Outcome{OK: true, Known: true, Prompt: 100})
			}
		})
	}
	done, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		random := rand.New(rand.NewPCG(2, 2))
		for {
			select {
			case <-done:
				return
			default:
			}
			chosen := slices.Clone(hosts)
			random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
			models := []Options{{Name: "m", Servers: servers(chosen[:1+random.IntN(4)]...), Policy: routing.Policies()[random.IntN(5)]}}
			if random.IntN(2) == 0 {
				models = append(models, Options{Name: "n", Servers: servers(chosen[:1+random.IntN(2)]...)})
			}
			if _, err := s.Reconfigure(t.Context(), models); err != nil {
				t.Error(err)
			}
			for range 5 {
				tell(random)
			}
			for _, p := range s.Pools() {
				p.View()
				p.tick()
			}
		}
	}()
	all.Wait()
	close(done)
	<-ended
	seen.Range(func(value, _ any) bool {
		p := value.(*Pool)
		wantInFlight(t, p, 0)
		p.mu.Lock() // the last reports may still be on their way
		defer p.mu.Unlock()
		for _, r := range p.replicas {
			if r.sent != 0 || r.begun != 0 {
				t.Errorf("replica %d: %d attempts are open, %d began", r.index, r.sent, r.begun)
			}
		}
		return true
	})
}
