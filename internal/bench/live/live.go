// Package live is a bench.System of real time: an OpenAI- or Anthropic-compatible
// endpoint, usually the gateway in front of its engines, under the sessions of a
// workload. It sends what Claude Code would send, reads the streams, and reads
// the engines' own counters beside them.
//
// It decides nothing about when what is sent, and makes no figures: both are
// package bench's. Engines that it is told to start are child processes, which it
// kills, starts anew and ends.
package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"lmwarden/internal/bench"
	"lmwarden/internal/upstream"
)

// Options say what is measured, and how it is asked.
type Options struct {
	// Target is the endpoint; its path may end in /v1 or not.
	Target *url.URL
	// Admin is the gateway's admin listener, through which arms are switched; nil
	// for another router.
	Admin *url.URL
	// Routers are arms that are other endpoints, by name.
	Routers map[string]*url.URL
	// Engines are the base URLs of the engines whose counters are read; none are
	// those that the gateway names.
	Engines []*url.URL
	// Start are engines to be started before, and ended after. Their output goes into
	// files in the folder Logs; each may take StartWithin until it is ready.
	Start       []Start
	Logs        string
	StartWithin time.Duration
	// Model is the name that is asked for; empty is the only one that there is.
	Model   string
	Dialect Dialect
	Key     string // API key of the endpoint, empty for none
	// BytesPerToken is how much text stands for a token, at least 2.
	BytesPerToken int
	// Salt makes texts and session ids of its own, so that no run profits from what
	// an earlier one left in the caches.
	Salt uint64
	// Speed is that of simulated engines. All times of the System are theirs; 1 for
	// real ones.
	Speed float64
	// Timeout is how long an answer may take until its end.
	Timeout time.Duration
	// Cold empties the engines' caches before every arm, where they can do it; those
	// of Start that cannot are started anew.
	Cold bool
	// Incidents happen in every step: simulated engines and those of Start can be
	// killed, simulated ones slowed, and a gateway's replicas drained.
	Incidents []bench.Incident
	// Dial opens all connections; nil is the network.
	Dial upstream.DialFunc
	// UserAgent names the client.
	UserAgent string
	// Warn is told what does not stop a measurement but belongs beside its result.
	// It may be called from any goroutine.
	Warn func(string)
}

// Validate reports the first option that makes no sense.
func (o Options) Validate() error {
	switch {
	case o.Target == nil && len(o.Routers) == 0:
		return errors.New("no target: say what to measure")
	case !slices.Contains(Dialects(), o.Dialect):
		return fmt.Errorf("unknown dialect %q: the dialects are %s", o.Dialect, strings.Join(dialectNames(), ", "))
	case o.BytesPerToken < 2 || o.BytesPerToken > 7:
		return fmt.Errorf("%d bytes a token: give 2 to 7", o.BytesPerToken)
	case !(o.Speed > 0 && o.Speed <= maxSpeed):
		return fmt.Errorf("speed of %v: give a number above 0 and at most %d", o.Speed, maxSpeed)
	case o.Timeout <= 0:
		return fmt.Errorf("timeout of %v: give more than 0", o.Timeout)
	case len(o.Start) > 0 && o.StartWithin <= 0:
		return fmt.Errorf("start within %v: give more than 0", o.StartWithin)
	}
	for i, start := range o.Start {
		same := func(other Start) bool { return other.URL.Host == start.URL.Host }
		if start.URL.Port() == "" || slices.ContainsFunc(o.Start[:i], same) {
			return fmt.Errorf("engine to start at %s: give each a port of its own, which the command makes it listen on", start.URL)
		}
	}
	return nil
}

// System is a box under load. New makes one, Close ends it. But for Status its
// methods are for one goroutine, the one that runs the protocol.
type System struct {
	o       Options
	model   string
	start   time.Time
	client  *upstream.Client // of the load
	plain   *http.Client     // of all else
	gateway *gateway         // nil without an admin API
	engines *engines
	places  []place // of the replicas, by index; nil when not known
	caches  string  // what the report says of them

	to            *url.URL // of the arm in force
	ours          bool     // it is the gateway
	conversations map[uint64]*conversation
	flights       map[*flight]struct{}
	running       sync.WaitGroup            // flights, incidents
	step          int                       // how many have ended
	mends         map[bench.Incident]func() // end incidents that are on
	brought       chan struct{}             // closed when the latest of bringAbout is done

	loading bool // until the Counters that end a step's load
	polled  int  // how often the engines had been read when it began

	started []*startedEngine
	lives   sync.WaitGroup // of started engines

	queue  queue
	status status
}

// place is where a replica is.
type place struct {
	engine *url.URL
	rank   int // in it; -1 when it has the URL for itself
}

// New finds out what is there: the model, its replicas, the engines and whether
// everything answers that the measurement needs.
func New(ctx context.Context, o Options) (*System, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: connectWithin}).DialContext
	}
	s := &System{
		o: o, model: o.Model, start: time.Now(), caches: "warm", to: o.Target,
		client:        upstream.New(upstream.Options{Dial: o.Dial, IdleFor: idleFor}),
		plain:         &http.Client{Transport: &http.Transport{DialContext: o.Dial, IdleConnTimeout: idleFor}},
		conversations: make(map[uint64]*conversation), flights: make(map[*flight]struct{}), mends: make(map[bench.Incident]func()),
		queue: queue{wake: make(chan struct{}, 1)},
	}
	if o.Admin != nil {
		s.gateway = &gateway{client: s.plain, admin: o.Admin}
	}
	err := s.startEngines(ctx)
	if err == nil {
		err = s.discover(ctx)
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

const (
	connectWithin = 10 * time.Second
	// idleFor is less than the 5 s after which vLLM closes a connection.
	idleFor = 4 * time.Second
	// maxSpeed is the simulator's.
	maxSpeed = 10_000
)

func (s *System) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adminWithin)
	defer cancel()
	if s.gateway != nil {
		view, err := s.gateway.find(ctx, s.o.Model)
		if err != nil {
			return err
		}
		s.model, s.places = view.Name, view.places()
	}
	urls := slices.Clone(s.o.Engines)
	if len(urls) == 0 && s.gateway != nil {
		urls = s.gateway.engines()
	}
	for _, e := range s.started {
		if !slices.ContainsFunc(urls, func(u *url.URL) bool { return u.Host == e.URL.Host }) {
			urls = append(urls, e.URL)
		}
	}
	s.engines = newEngines(s.plain, urls, s.Now, s.wall(pollEvery))
	s.engines.poll(ctx)
	if s.places == nil {
		s.places = s.engines.places()
	}
	if s.model == "" {
		var err error
		if s.model, err = onlyModel(ctx, s.plain, s.anyTarget(), s.o.Key); err != nil {
			return err
		}
	}
	for _, i := range s.o.Incidents {
		if err := s.canHappen(ctx, i); err != nil {
			return err
		}
	}
	for _, problem := range s.engines.problems() {
		s.o.Warn(problem)
	}
	return nil
}

// anyTarget is one of the endpoints.
func (s *System) anyTarget() *url.URL {
	if s.o.Target != nil {
		return s.o.Target
	}
	names := slices.Sorted(maps.Keys(s.o.Routers))
	return s.o.Routers[names[0]]
}

// Check brings each arm into force for a moment, so that a name that the gateway
// does not know shows before any load.
func (s *System) Check(arms []string) error {
	for _, arm := range arms {
		if err := s.route(arm); err != nil {
			return fmt.Errorf("switch to arm %q: %w", arm, err)
		}
	}
	return nil
}

// Close cuts what is open, gives the gateway back the policy that it had, and
// waits for everything to end.
func (s *System) Close() error {
	s.Cut()
	defer s.end()
	if s.gateway == nil {
		return nil
	}
	return s.gateway.restore()
}

// end stops everything that is the System's own.
func (s *System) end() {
	s.queue.close()
	if s.engines != nil {
		s.engines.close()
	}
	s.client.Close()
	s.endStarted()
	s.plain.CloseIdleConnections()
}

// Switch implements bench.System.
func (s *System) Switch(arm string, cold bool) error {
	if err := s.route(arm); err != nil {
		return err
	}
	s.caches = "warm"
	if cold || s.o.Cold {
		s.caches = s.emptyCaches()
	}
	return nil
}

// emptyCaches says what came of it.
func (s *System) emptyCaches() string {
	var restarted, kept bool
	for _, base := range s.engines.urls() {
		err := s.engines.reset(base)
		switch e := s.startedAt(base); {
		case err == nil:
		case e == nil:
			kept = true
			s.o.Warn(fmt.Sprintf("engine %s keeps its cache: %v", base, err))
		case e.loaded:
			restarted = true
			e.restart(&s.lives) // Settle waits for it
		}
	}
	switch {
	case kept:
		return "warm: not every engine can empty its cache"
	case restarted:
		return "cold: engines were started anew"
	}
	return "cold"
}

// Settle implements bench.System. Started engines that were killed in the step
// before are started, and one that has ended by itself is an error.
func (s *System) Settle(ctx context.Context, d time.Duration) error {
	for _, e := range s.started {
		if e.killed {
			e.begin(&s.lives)
		}
	}
	if err := s.awaitStarted(ctx); err != nil {
		return err
	}
	return s.Run(ctx, s.Now()+d, func() bool { return false })
}

// route sends the requests from now on to an arm.
func (s *System) route(arm string) error {
	if router := s.o.Routers[arm]; router != nil {
		s.to, s.ours = router, false
		return nil
	}
	s.to, s.ours = s.o.Target, s.gateway != nil
	if s.gateway == nil {
		return nil
	}
	return s.gateway.setPolicy(arm)
}

// Begin implements bench.System.
func (s *System) Begin(step bench.Step) {
	s.status.begin(step, s.Now())
	s.loading, s.polled = true, s.engines.polls()
	for _, e := range s.started {
		e.loaded = true
	}
	for _, i := range s.o.Incidents {
		s.inStep(i.At, func() { s.strike(i, step.Length) })
	}
}

// inStep does something later, if the step is not over by then.
func (s *System) inStep(d time.Duration, do func()) {
	step := s.step
	s.After(d, func() {
		if s.step == step {
			do()
		}
	})
}

// Replicas implements bench.System.
func (s *System) Replicas() int { return len(s.places) }

// BlockTokens implements bench.System.
func (s *System) BlockTokens() int { return s.engines.blockTokens() }

// Counters implements bench.System. It reads the engines' pages now. At the end of
// a load that was too short for their busy time to be known, that is not.
func (s *System) Counters() bench.Counters {
	s.engines.poll(context.Background())
	c := s.engines.counters()
	if s.loading && s.engines.polls()-s.polled < fewestPolls {
		c.BusySeconds = math.NaN()
	}
	s.loading = false
	return c
}

// Now implements bench.System.
func (s *System) Now() time.Duration { return s.system(time.Since(s.start)) }

// wall is how long a time of the System is on the clock, system the other way.
func (s *System) wall(d time.Duration) time.Duration {
	return time.Duration(float64(d) / s.o.Speed)
}

func (s *System) system(d time.Duration) time.Duration {
	return time.Duration(float64(d) * s.o.Speed)
}

// After implements bench.System.
func (s *System) After(d time.Duration, do func()) {
	time.AfterFunc(s.wall(d), func() { s.queue.add(do) })
}

// Run implements bench.System.
func (s *System) Run(ctx context.Context, until time.Duration, idle func() bool) error {
	var end <-chan time.Time
	if left := until - s.Now(); left < maxWait {
		timer := time.NewTimer(s.wall(left))
		defer timer.Stop()
		end = timer.C
	}
	for !idle() {
		if do := s.queue.take(); do != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			do()
			continue
		}
		select {
		case <-s.queue.wake:
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// maxWait is a time that never comes.
const maxWait = 1 << 61

// Cut implements bench.System.
func (s *System) Cut() {
	s.step++
	for f := range s.flights {
		f.cancel()
	}
	for i := range s.mends {
		s.mend(i)
	}
	s.running.Wait()
	for do := s.queue.take(); do != nil; do = s.queue.take() {
		do()
	}
	clear(s.conversations)
}

// queue is what the System's goroutine is to do next.
type queue struct {
	wake chan struct{} // holds one signal: there may be something

	mu     sync.Mutex
	due    []func() // guarded by mu
	closed bool     // guarded by mu
}

func (q *queue) add(do func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.due = append(q.due, do)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take is the oldest, nil when there is none.
func (q *queue) take() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.due) == 0 {
		return nil
	}
	do := q.due[0]
	q.due[0] = nil
	q.due = q.due[1:]
	return do
}

// close drops what is due, and whatever comes.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.due, q.closed = nil, true
}
