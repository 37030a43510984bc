package pool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = fmt.Errorf("send: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

// info is a discovered vLLM; its models share one root.
func info(ranks int, models ...string) engine.Info {
	i := engine.Info{Kind: "vllm", Version: "0.32.0", Ranks: ranks, HasMetrics: true, PrefixCaching: true}
	for _, m := range models {
		i.Models = append(i.Models, engine.Model{ID: m, Root: "root of " + models[0]})
	}
	return i
}

// good is the report of a good scrape that begins now.
func good(i engine.Info) engine.Report {
	r := engine.Report{Time: time.Now(), Info: i, Health: engine.Up, Epoch: 1}
	if i.HasMetrics {
		for range i.Ranks {
			r.Samples = append(r.Samples, engine.Sample{Running: 1, Waiting: 2, KVUsed: 0.5,
				PromptTokens: 100, CachedTokens: 50, PrefixQueries: 100, PrefixHits: 50, CapacityTokens: 1000})
		}
	}
	return r
}

// bad is the report of a failed scrape that begins now.
func bad(i engine.Info, health engine.Health) engine.Report {
	return engine.Report{Time: time.Now(), Info: i, Health: health, Epoch: 1, Err: errors.New("scrape failed")}
}

func with(r engine.Report, change func(*engine.Report)) engine.Report {
	change(&r)
	return r
}

func newPool(t testing.TB, servers ...Server) *Pool {
	t.Helper()
	p, err := New(Options{Name: "m", Servers: servers})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// twoByTwo is a pool of two servers with two ranks each, all ready.
func twoByTwo(t testing.TB) *Pool {
	t.Helper()
	p := newPool(t, Server{URL: "http://a"}, Server{URL: "http://b"})
	for i := range 2 {
		p.Observe(i, good(info(2, "m")))
	}
	wantStates(t, p, "ready ready ready ready")
	return p
}

func key(n int) routing.Key { return routing.Key{0: byte(n), 1: byte(n >> 8), 15: 1} }

// turn is a request of a conversation on a route that honours the rank.
func turn(n int) Request {
	return Request{ID: fmt.Sprint("r", n), Key: key(n), Pin: routing.None, Path: "/v1/messages"}
}

func acquire(t testing.TB, p *Pool, r Request) *Lease {
	t.Helper()
	l, err := p.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return l
}

func pinned(n, replica int) Request {
	r := turn(n)
	r.Pin = replica
	return r
}

func states(p *Pool) string {
	var s string
	for i, r := range p.View().Replicas {
		if i > 0 {
			s += " "
		}
		s += r.State.String()
	}
	return s
}

func wantStates(t testing.TB, p *Pool, want string) {
	t.Helper()
	if got := states(p); got != want {
		t.Errorf("states %q, want %q", got, want)
	}
}

func wantRefused(t testing.TB, err error, why routing.Why) {
	t.Helper()
	var refused *Refused
	if !errors.As(err, &refused) || refused.Why != why {
		t.Errorf("got %v, want a refusal: %s", err, why)
	}
}

func wantInFlight(t testing.TB, p *Pool, want int) {
	t.Helper()
	v := p.View()
	sum := 0
	for _, r := range v.Replicas {
		sum += r.InFlight
	}
	if v.Routing.InFlight != want || sum != want {
		t.Errorf("in flight %d, over the replicas %d, want %d", v.Routing.InFlight, sum, want)
	}
}

// fakeSources are servers whose reports the test makes up.
type fakeSources struct {
	mu     sync.Mutex
	report map[string]func(engine.Report)
	nudged map[string]int
	keys   map[string]string
	ran    map[string]int // how many sources of a host run
}

type fakeSource struct {
	all  *fakeSources
	host string
}

func newFakeSources() *fakeSources {
	return &fakeSources{report: map[string]func(engine.Report){}, nudged: map[string]int{}, keys: map[string]string{}, ran: map[string]int{}}
}

func (f *fakeSources) watch(base *url.URL, key string, report func(engine.Report)) (Source, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report[base.Host] = report
	f.keys[base.Host] = key
	return fakeSource{f, base.Host}, nil
}

// tell reports on a server and returns when the set has taken it.
func (f *fakeSources) tell(s *Set, host string, r engine.Report) {
	f.mu.Lock()
	report := f.report[host]
	f.mu.Unlock()
	report(r)
	// The set takes reports one after another, so the end of an empty one from
	// nobody is the end of this one.
	s.reports <- heard{source: &source{base: &url.URL{}}}
}

func (f *fakeSources) nudges(host string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nudged[host]
}

func (s fakeSource) Run(ctx context.Context) error {
	s.count(1)
	defer s.count(-1)
	<-ctx.Done()
	return nil
}

func (s fakeSource) count(n int) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.ran[s.host] += n
}

func (s fakeSource) SetKey(key string) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.keys[s.host] = key
}

func (s fakeSource) Nudge() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.nudged[s.host]++
}

// startSet runs a set until the test ends.
func startSet(t testing.TB, o SetOptions) (*Set, *fakeSources) {
	t.Helper()
	f := newFakeSources()
	if o.Watch == nil {
		o.Watch = f.watch
	}
	s, err := NewSet(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s, f
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
