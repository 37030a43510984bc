// Package pool holds the replicas of each model at run time: their state, their
// load and the leases on them. It drives the routing core in real time: it
// serialises the calls, carries out the actions, and turns what engines report
// into what the core observes. It reads no request and writes no answer.
package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// Options describe one model.
type Options struct {
	// Name is what clients call the model. In SetOptions an empty name stands for
	// whatever the servers serve: a pool for each model that they turn out to have.
	Name string
	// ServedName is what the engines call it; empty: Name if they serve that, else
	// the first name they list.
	ServedName string
	// Aliases are further names for clients; in a name a * stands for any text.
	Aliases []string
	// Servers are the engine processes, in the order in which their replicas are
	// numbered. Required.
	Servers []Server
	// Policy is a name of routing.Policies(). Default "patience".
	Policy string
	// Shadow is a policy that is asked as well and decides nothing; empty for none.
	Shadow string
	// The rest goes to the core, with its defaults.
	SpillThreshold   int
	HostTier         routing.HostTier
	Limits           routing.Limits
	LiveFor, IdleFor time.Duration
	MaxConversations int
	// Stuck is how long a replica with requests in flight may show no sign of
	// progress until it counts as stuck, and an attempt may be silent whose server
	// takes no connection. Default 15 s.
	Stuck time.Duration
	// Logger gets a line for each change of state. Default none.
	Logger *slog.Logger
}

// Server is one engine process, as configured.
type Server struct {
	URL string // as engine.ParseBase takes it
	Key string // the engine's API key, empty for none
	// Ranks is the number of replicas behind the URL; 0: ask the engine.
	Ranks int

	look func() // asks for a probe; the Set puts it in
}

const (
	// buildGrace is how long after the first server was discovered the others of
	// its model are waited for before the replicas are numbered.
	buildGrace = time.Second

	// maxBlindPaths bounds the table of paths; clients choose them.
	maxBlindPaths = 64
)

// core is routing.Core; tests put another one in its place.
type core interface {
	routing.Router
	SetPolicy(name string) error
	SetSpillThreshold(n int) error
	SetRetention(liveFor, idleFor time.Duration, maxConversations int) error
	SetLimits(routing.Limits) error
	SetHostTier(routing.HostTier)
	SetShadow(name string) error
	RestoreLearned(routing.Learned)
	Reshape(now time.Time, replicas []routing.Replica, was []int) error
	Release(k routing.Key) bool
	Rehome(now time.Time, k routing.Key, replica int) error
	HomedAt(replica, n int) (keys []routing.Key, all bool)
	Home(k routing.Key) (routing.Home, bool)
	Restore(now time.Time, homes []routing.Home) (dropped int)
	View(now time.Time) routing.View
	Waiting(now time.Time) []routing.Waiting
}

// Pool is all replicas of one model. Safe for concurrent use.
//
// Until the number of ranks of its servers is known it has no replicas: it then
// refuses requests with routing.NoReplica and keeps what is set and restored.
type Pool struct {
	name    string
	log     *slog.Logger
	since   time.Time
	newCore func(routing.Options) (core, error)

	mu         sync.Mutex // guards everything below
	configured Options    // as last configured, defaults filled in
	core       core       // nil until the replicas are known
	opts       routing.Options
	lastOn     string                    // the last policy that was not off
	saved      map[routing.Key]SavedHome // to restore once their replica is there
	found      time.Time                 // when the first server was discovered
	served     string                    // the name in the first discovered server
	root       string                    // the weights behind it
	defaults   []string                  // aliases that hold as long as there is but one model
	servers    []*server
	replicas   []*replica
	blind      map[string][]bool // by path, the slices for routing.Request.Blind
	learned    routing.Learned   // to be given to the core once it is there
	lastID     routing.RequestID
	held       map[routing.RequestID]*Lease
	holding    chan<- struct{} // told when a first request is held; nil for nobody
	closed     *Refused        // why nothing may be held any more, nil while it may
	receipts   receiptRing
	notes      []note // to be logged when mu is given up
}

// note is a log line.
type note struct {
	level   slog.Level
	message string
	args    []any
}

// note keeps a log line until unlock. Callers hold mu.
func (p *Pool) note(level slog.Level, message string, args ...any) {
	p.notes = append(p.notes, note{level, message, args})
}

// unlock gives mu up and logs what happened under it.
func (p *Pool) unlock() {
	notes := p.notes
	p.notes = nil
	p.mu.Unlock()
	for _, n := range notes {
		p.log.Log(context.Background(), n.level, n.message, n.args...)
	}
}

// fill puts the defaults in.
func (o *Options) fill() {
	if o.Policy == "" {
		o.Policy = defaultPolicy
	}
	if o.Limits.Wait == 0 {
		o.Limits.Wait = defaultWait
	}
	if o.Stuck == 0 {
		o.Stuck = defaultStuck
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// New returns a pool whose servers were not heard yet; Observe brings their
// reports. It has its replicas at once when every server states its ranks.
func New(o Options) (*Pool, error) {
	if o.Name == "" {
		return nil, errors.New("model without a name")
	}
	if len(o.Servers) == 0 {
		return nil, fmt.Errorf("model %q has no engine", o.Name)
	}
	o.fill()
	p := &Pool{
		name:       o.Name,
		configured: o,
		served:     o.ServedName,
		log:        o.Logger.With("model", o.Name),
		since:      time.Now(),
		newCore:    func(o routing.Options) (core, error) { return routing.New(o) },
		opts: routing.Options{
			Policy: o.Policy, Shadow: o.Shadow, SpillThreshold: o.SpillThreshold, HostTier: o.HostTier, Limits: o.Limits,
			LiveFor: o.LiveFor, IdleFor: o.IdleFor, MaxConversations: o.MaxConversations,
		},
		lastOn: defaultPolicy,
		held:   map[routing.RequestID]*Lease{},
	}
	if o.Policy != policyOff {
		p.lastOn = o.Policy
	}
	// What is wrong with the options must not wait for the engines to show.
	if _, err := trialCore(p.opts); err != nil {
		return nil, fmt.Errorf("model %q: %w", o.Name, err)
	}
	for _, s := range o.Servers {
		if s.Ranks < 0 {
			return nil, fmt.Errorf("model %q: engine %s: %d ranks", o.Name, s.URL, s.Ranks)
		}
		base, err := engine.ParseBase(s.URL)
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", o.Name, err)
		}
		if slices.ContainsFunc(p.servers, func(s *server) bool { return *s.base == *base }) {
			return nil, fmt.Errorf("model %q: engine %s is listed twice", o.Name, s.URL)
		}
		p.servers = append(p.servers, newServer(base, s))
	}
	p.mu.Lock()
	defer p.unlock()
	if _, err := p.number(time.Now()); err != nil {
		return nil, err
	}
	return p, nil
}

// trialCore is a core with the given options and a replica for want of better.
func trialCore(o routing.Options) (*routing.Core, error) {
	o.Replicas = make([]routing.Replica, 1)
	return routing.New(o)
}

// Name is what clients call the model.
func (p *Pool) Name() string { return p.name }

// ServedName is what the engines call the model; empty until one was asked.
// Target.Model tells it per server.
func (p *Pool) ServedName() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served
}

// SetSpillThreshold sets the threshold; 0 means automatic.
func (p *Pool) SetSpillThreshold(n int) error {
	if n < 0 {
		return fmt.Errorf("spill threshold %d is negative: give a number of requests, or 0 for automatic", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.setSpillThreshold(n)
}

func (p *Pool) setSpillThreshold(n int) error {
	if p.core != nil {
		if err := p.core.SetSpillThreshold(n); err != nil {
			return err
		}
	}
	p.opts.SpillThreshold = n
	return nil
}

// Drain stops new conversations on a replica; Resume takes it back. The error
// names the replicas that exist.
func (p *Pool) Drain(replica int) error { return p.setDrained(replica, true) }

// Resume ends a drain.
func (p *Pool) Resume(replica int) error { return p.setDrained(replica, false) }

func (p *Pool) setDrained(replica int, drained bool) error {
	p.mu.Lock()
	defer p.unlock()
	if err := p.check(replica); err != nil {
		return err
	}
	r := p.replicas[replica]
	r.drained = drained
	p.refresh(time.Now(), r.server)
	return nil
}

// check says which replicas there are when the given one is not among them.
func (p *Pool) check(replica int) error {
	switch n := len(p.replicas); {
	case replica >= 0 && replica < n:
		return nil
	case n == 0:
		return fmt.Errorf("no replica %d: no engine of model %q was reached yet", replica, p.name)
	case n == 1:
		return fmt.Errorf("no replica %d: model %q has only replica 0", replica, p.name)
	default:
		return fmt.Errorf("no replica %d: model %q has replicas 0 to %d", replica, p.name, n-1)
	}
}

// Release forgets a conversation's home; its next turn is placed anew. It
// reports whether the conversation was known.
func (p *Pool) Release(k routing.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.saved[k]
	delete(p.saved, k)
	return p.core != nil && p.core.Release(k) || known
}

// Move gives a known conversation another home.
func (p *Pool) Move(k routing.Key, replica int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(replica); err != nil {
		return err
	}
	return p.core.Rehome(time.Now(), k, replica)
}

// tick lets time pass: in the core, and for what makes no progress.
func (p *Pool) tick() {
	p.mu.Lock()
	defer p.unlock()
	if p.core == nil {
		return
	}
	now := time.Now()
	for _, s := range p.servers {
		s.tried(now)
		lost := s.unreachedFor(now) >= p.configured.Stuck
		for l := range s.open {
			if l.listen(now); lost && now.Sub(l.heardAt) >= p.configured.Stuck {
				l.giveUp(ErrLost)
			}
		}
		for _, r := range s.replicas {
			page, told := s.page(r.rank)
			witness := told && page.GenerationTokens >= 0 || s.last.Health == engine.Silent
			r.check(now, p.configured.Stuck, witness, told && page.Running == 0 && page.Waiting == 0)
		}
		p.refresh(now, s)
	}
	p.carryOut(now, nil, p.core.Tick(now))
	p.expireHeld(now)
}
