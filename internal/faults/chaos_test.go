package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lmwarden/internal/app"
	"lmwarden/internal/config"
)

// The environment of the long form, as make chaos sets it.
const (
	chaosRequests = "LMWARDEN_CHAOS_REQUESTS"
	chaosSeed     = "LMWARDEN_CHAOS_SEED"
)

// chaos is a run: clients of all dialects in closed loop, engines that fail in
// all their ways, an operator who changes things, a gateway that is restarted.
type chaos struct {
	t      *testing.T
	seed   uint64
	url    string // of the gateway, in all its lives
	client *http.Client
	tap    *tap
	box    []*simulated
	config *config.Config
	// The sockets outlive the lives of the gateway, as those of a service manager do.
	clientsSocket, adminSocket *net.TCPListener
	books                      *books
	log                        *record // of the gateway, without its requests

	// policy counts as simulated.disturbed does: odd while it is being changed.
	policy          atomic.Int64
	stayed, spilled atomic.Int64

	issued   atomic.Int64
	limit    atomic.Int64    // of issued in this phase
	fates    []atomic.Uint32 // by request
	statuses []atomic.Int32  // by request, as the client saw it

	mu         sync.Mutex
	violations int            // guarded by mu
	refusals   map[string]int // guarded by mu: by what the gateway says

	life sync.Mutex   // held while the gateway is restarted or reloads
	g    *app.Gateway // guarded by life while there is mischief
}

const shownViolations = 10

func requestName(n int) string { return fmt.Sprintf("chaos-%08d", n) }

// next is the number of the next request.
func (c *chaos) next() (n int, ok bool) {
	n = int(c.issued.Add(1)) - 1
	if int64(n) >= c.limit.Load() {
		c.issued.Add(-1)
		return 0, false
	}
	return n, true
}

func (c *chaos) more() bool { return c.issued.Load() < c.limit.Load() }

// violation reports what must not be of a request, with what the gateway logged
// of it and at that time.
func (c *chaos) violation(n int, format string, args ...any) {
	for range 100 { // the gateway has it a moment after the client, if it has it
		if c.books.entries[n].Load() != 0 {
			break
		}
		pause(10*time.Millisecond, nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.violations++; c.violations <= shownViolations {
		c.t.Errorf("request %s: %s\nthe gateway: %s\n%s", requestName(n), fmt.Sprintf(format, args...), c.books.line(n), c.log.tail())
	}
}

// books are what a gateway logs of its requests, kept by the handler of its log.
// Their size does not grow with the run.
type books struct {
	slog.Handler // for all other lines
	// entries have an outcome (its place in outcomes, from 1) and a status in one
	// number by request; 0 for none.
	entries []atomic.Int64
	twice   atomic.Int64
	life    [len(outcomes)]atomic.Int64 // requests by outcome in this life of the gateway

	mu    sync.Mutex
	lines [512]string // guarded by mu: the last ones
}

var outcomes = [...]string{"none", "ok", "client_error", "engine_error", "gateway_error", "cancelled"}

// entry is a request's outcome and status.
func (b *books) entry(n int) (outcome string, status int) {
	e := b.entries[n].Load()
	return outcomes[e>>16], int(e & 0xffff)
}

func (b *books) line(n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.lines[n%len(b.lines)]; strings.Contains(l, requestName(n)) {
		return l
	}
	return "no line"
}

func (b *books) Enabled(context.Context, slog.Level) bool { return true }
func (b *books) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *books) WithGroup(string) slog.Handler            { return b }

func (b *books) Handle(ctx context.Context, r slog.Record) error {
	if r.Message != "request" {
		if r.Level < slog.LevelInfo {
			return nil
		}
		return b.Handler.Handle(ctx, r)
	}
	var line strings.Builder
	var outcome, status int64
	n := -1
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&line, "%s ", a)
		switch a.Key {
		case "request_id":
			if digits, ours := strings.CutPrefix(a.Value.String(), "chaos-"); ours {
				n, _ = strconv.Atoi(digits)
			}
		case "outcome":
			outcome = int64(slices.Index(outcomes[:], a.Value.String()))
		case "status":
			status = a.Value.Int64()
		}
		return true
	})
	if n < 0 {
		return nil
	}
	b.life[outcome].Add(1)
	b.mu.Lock()
	b.lines[n%len(b.lines)] = line.String()
	b.mu.Unlock()
	if !b.entries[n].CompareAndSwap(0, outcome<<16|status) {
		b.twice.Add(1)
	}
	return nil
}

// launch begins a life of the gateway.
func (c *chaos) launch() error {
	for i := range c.books.life {
		c.books.life[i].Store(0)
	}
	g, err := app.NewGateway(c.config, slog.New(c.books))
	if err != nil {
		return err
	}
	var on app.Listeners
	if on.Clients, err = another(c.clientsSocket); err != nil {
		return err
	}
	if on.Admin, err = another(c.adminSocket); err != nil {
		return err
	}
	if err := g.StartOn(on); err != nil {
		return err
	}
	c.g = g
	return nil
}

// another is a listener on the same socket, which ends by itself.
func another(l *net.TCPListener) (net.Listener, error) {
	file, err := l.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return net.FileListener(file)
}

// socket opens a socket for all lives of the gateway.
func socket(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// restart ends the gateway's life gracefully and begins another on the same
// sockets.
func (c *chaos) restart() {
	c.life.Lock()
	defer c.life.Unlock()
	if err := errors.Join(c.g.Stop(), c.launch()); err != nil {
		c.t.Errorf("restart of the gateway: %v", err)
	}
}

func TestChaos(t *testing.T) {
	// Not parallel: it measures the process.
	requests, seed := 6000, uint64(time.Now().UnixNano())
	if raced {
		requests = 1200
	}
	for name, into := range map[string]func(uint64){
		chaosRequests: func(v uint64) { requests = int(v) },
		chaosSeed:     func(v uint64) { seed = v },
	} {
		if text := os.Getenv(name); text != "" {
			v, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			into(v)
		}
	}
	t.Logf("%d requests; to do the same again: %s=%d", requests, chaosSeed, seed)
	goroutines, files := runtime.NumGoroutine(), countFiles(t)

	c := &chaos{
		t: t, seed: seed,
		refusals: map[string]int{},
		client:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
		tap:      &tap{traces: map[string][]*trace{}},
		fates:    make([]atomic.Uint32, requests),
		statuses: make([]atomic.Int32, requests),
		books:    &books{entries: make([]atomic.Int64, requests)},
		log:      &record{most: 16 << 10},
	}
	c.books.Handler = slog.NewJSONHandler(c.log, nil)
	c.clientsSocket, c.adminSocket = socket(t), socket(t)
	for _, ranks := range []int{2, 1, 1, 1} {
		first := 0
		for _, s := range c.box {
			first += s.ranks
		}
		c.box = append(c.box, newSimulated(t, c.tap, first, ranks))
	}
	c.config = c.configuration()
	c.url = "http://" + c.config.Listen
	if err := c.launch(); err != nil {
		t.Fatal(err)
	}
	c.settle()

	// What is in use after a part of the run is what a run needs; more at the end
	// would be a leak.
	c.phase(requests * 2 / 5)
	held := heap()
	c.phase(requests)
	now := heap()
	t.Logf("the heap: %d kB after two fifths of the run, %d kB at its end", held>>10, now>>10)
	// In a short form the tables are not full by then.
	if requests >= 20_000 && now > held+held/10+1<<20 {
		t.Error("the heap grew")
	}

	c.balance()
	c.client.CloseIdleConnections()
	if err := c.g.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	c.clientsSocket.Close()
	c.adminSocket.Close()
	for _, s := range c.box {
		s.kill()
	}
	await(t, "goroutines and files to be given back", func() error {
		if n, f := runtime.NumGoroutine(), countFiles(t); n > goroutines || f > files {
			return fmt.Errorf("%d goroutines of %d, %d files of %d", n, goroutines, f, files)
		}
		return nil
	})
}

func (c *chaos) configuration() *config.Config {
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Data = c.clientsSocket.Addr().String(), c.adminSocket.Addr().String(), c.t.TempDir()
	cfg.ScrapeInterval = config.Duration(100 * time.Millisecond)
	cfg.StopTimeout = config.Duration(10 * time.Second)
	cfg.Timeouts.FirstByte, cfg.Timeouts.StreamIdle = config.Duration(5*time.Second), config.Duration(5*time.Second)
	cfg.Timeouts.Stuck = config.Duration(time.Second)
	cfg.Session.MaxConversations = 500 // so that the tables fill
	m := config.Model{Policy: "affinity"}
	for _, s := range c.box {
		e := config.Engine{Ranks: s.ranks}
		if err := e.URL.UnmarshalText([]byte("http://" + s.address)); err != nil {
			c.t.Fatal(err)
		}
		m.Engines = append(m.Engines, e)
	}
	cfg.Models = []config.Model{m}
	cfg.Fill()
	if err := cfg.Validate(app.Policies()); err != nil {
		c.t.Fatal(err)
	}
	return cfg
}

// phase runs clients and mischief until so many requests were made, and waits
// until all is quiet.
func (c *chaos) phase(requests int) {
	c.limit.Store(int64(requests))
	const talkers = 24
	var clients, mischief sync.WaitGroup
	for n := range talkers {
		k := &talker{c: c, n: n, talk: requests, rand: rand.New(rand.NewPCG(c.seed, uint64(n+requests)))}
		clients.Go(k.run)
	}
	over := make(chan struct{})
	for n, s := range c.box {
		mischief.Go(func() { c.disturb(s, rand.New(rand.NewPCG(c.seed, uint64(1000+n+requests))), over) })
	}
	mischief.Go(func() { c.operate(rand.New(rand.NewPCG(c.seed, uint64(2000+requests))), over) })
	clients.Wait()
	close(over)
	mischief.Wait()
	for _, s := range c.box { // what the engines hold must not be in the measure
		s.disturbed.Add(1)
		s.restart()
		s.disturbed.Add(1)
	}
	c.settle()
	c.client.CloseIdleConnections()
}

// settle waits until every replica is ready and nothing is in flight.
func (c *chaos) settle() {
	c.t.Helper()
	await(c.t, "quiet", func() error {
		m, err := c.model()
		if err != nil {
			return err
		}
		if err := c.whole(m); err != nil {
			return err
		}
		if m.InFlight != 0 {
			return fmt.Errorf("%d in flight", m.InFlight)
		}
		for _, r := range m.Replicas {
			if r.State != "ready" || r.InFlight != 0 {
				return fmt.Errorf("replica %d is %s with %d in flight", r.Index, r.State, r.InFlight)
			}
		}
		return nil
	})
}

// countFiles counts the open files of this process.
func countFiles(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Logf("open files are not counted: %v", err)
	}
	return len(list)
}

// balance compares the books of clients and gateway.
func (c *chaos) balance() {
	n := int(c.issued.Load())
	if n != len(c.fates) {
		c.t.Errorf("%d requests were made, want %d", n, len(c.fates))
	}
	if twice := c.books.twice.Load(); twice > 0 {
		c.t.Errorf("%d requests ended twice at the gateway", twice)
	}
	may := map[fate]string{
		noAnswer:  "none cancelled engine_error gateway_error", // the connection broke, of which a gateway that stops knows nothing
		good:      "ok",
		refused:   "client_error engine_error gateway_error",
		announced: "engine_error",
		broken:    "engine_error gateway_error cancelled",
		left:      "none cancelled ok engine_error gateway_error client_error", // whatever came first
	}
	counts := map[string]int{}
	for i := range n {
		f := fate(c.fates[i].Load())
		outcome, status := c.books.entry(i)
		counts[f.String()+"/"+outcome]++
		if !strings.Contains(" "+may[f]+" ", " "+outcome+" ") {
			c.violation(i, "%s at the client, %s at the gateway", f, outcome)
		}
		if client := int(c.statuses[i].Load()); (f == good || f == refused || f == announced) && client != status {
			c.violation(i, "status %d at the client, %d at the gateway", client, status)
		}
	}
	c.t.Logf("client/gateway: %v; %d turns stayed, %d spilled; refused by the gateway: %v", counts, c.stayed.Load(), c.spilled.Load(), c.refusals)
	// The metrics count the last life only.
	counted, err := scrape(c.client, "http://"+c.config.Admin.Listen, "warden_requests_total")
	if err != nil {
		c.t.Error(err)
	}
	logged := map[string]int{}
	for i := range c.books.life {
		if n := c.books.life[i].Load(); n > 0 {
			logged[outcomes[i]] = int(n)
		}
	}
	if got := byOutcome(counted); !maps.Equal(got, logged) {
		c.t.Errorf("the metrics of the last life say %v, its log %v", got, logged)
	}
	// An engine that was slow may have read a request that was given up long ago,
	// but none that the gateway does not know.
	for id := range c.tap.traces {
		i, err := strconv.Atoi(strings.TrimPrefix(id, "chaos-"))
		if err != nil {
			c.t.Errorf("an engine was sent request %q", id)
		} else if outcome, _ := c.books.entry(i); outcome == "none" {
			c.violation(i, "%s at the client, unknown to the gateway, and sent to an engine", fate(c.fates[i].Load()))
		}
	}
	if c.violations > shownViolations {
		c.t.Errorf("and %d more", c.violations-shownViolations)
	}
	if counts["good/ok"] < n/2 {
		c.t.Errorf("only %d of %d requests had a good answer", counts["good/ok"], n)
	}
}
