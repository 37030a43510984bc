package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"lmwarden/internal/enginesim"
	"lmwarden/internal/routing"
)

// Box is what Simulate measures: replicas of a modelled engine behind the
// gateway's decision core.
type Box struct {
	// Engine is the preset of the name Preset, possibly with changes.
	Preset   string
	Engine   enginesim.Params
	Replicas int
	// Servers is how many engine processes the replicas are spread over, each with
	// a URL of its own; 0 means 1, whose balancer knows all replicas.
	Servers int
	// APIServers is how many processes of each server take requests, with a balancer
	// each; connections are spread over them by chance. 0 means 1.
	APIServers int
	// RoundTrip is from the client to the gateway and back.
	RoundTrip time.Duration
	// SpillThreshold is the router's; 0 is automatic.
	SpillThreshold int
	// Patience is that of the policy patience; 0 is automatic.
	Patience time.Duration
	// ScrapeEvery is how often the gateway looks at the engines; 0 means once a
	// second.
	ScrapeEvery time.Duration
	// EstimateError is how far off the gateway's estimates of prompts are: the
	// standard deviation, as a share of the prompt, of each request anew.
	EstimateError float64
	// Incidents happen in each step.
	Incidents []Incident
}

// Validate reports everything that is wrong with the engine's parameters, or the
// first other setting that makes no sense.
func (b Box) Validate() error {
	switch {
	case b.Replicas < 1:
		return fmt.Errorf("%d replicas: a box has at least 1", b.Replicas)
	case b.Servers < 0 || b.Replicas%b.servers() != 0:
		return fmt.Errorf("%d replicas on %d servers: each server has the same number", b.Replicas, b.servers())
	case b.APIServers < 0:
		return fmt.Errorf("%d API servers: a server has at least 1", b.APIServers)
	case b.RoundTrip < 0:
		return fmt.Errorf("round trip of %v: it cannot be negative", b.RoundTrip)
	case b.Patience < 0:
		return fmt.Errorf("patience of %v: give a time, or 0 for automatic", b.Patience)
	case b.ScrapeEvery < 0:
		return fmt.Errorf("a scrape every %v: give a time, or 0 for once a second", b.ScrapeEvery)
	case !(b.EstimateError >= 0 && b.EstimateError <= 1):
		return fmt.Errorf("estimates off by a share of %v: give 0 to 1", b.EstimateError)
	case b.SpillThreshold < 0:
		return fmt.Errorf("spill threshold of %d: give at least 1, or 0 for automatic", b.SpillThreshold)
	}
	for _, i := range b.Incidents {
		if i.Replica < 0 || i.Replica >= b.Replicas {
			return fmt.Errorf("%s: the box has replicas 0 to %d", i, b.Replicas-1)
		}
	}
	return b.Engine.Validate()
}

func (b Box) servers() int    { return max(b.Servers, 1) }
func (b Box) apiServers() int { return max(b.APIServers, 1) }

// settings is the box as it stands in results.
func (b Box) settings() any {
	return struct {
		Mode       string           `json:"mode"`
		Preset     string           `json:"preset"`
		Engine     enginesim.Params `json:"engine"`
		Replicas   int              `json:"replicas"`
		Servers    int              `json:"servers"`
		APIServers int              `json:"api_servers"`
		RoundTripS float64          `json:"round_trip_s"`
		Spill      int              `json:"spill_threshold"` // 0 is automatic
		PatienceS  float64          `json:"patience_s"`      // 0 is automatic
		ScrapeS    float64          `json:"scrape_s"`
		Error      float64          `json:"estimate_error"`
		Incidents  []Incident       `json:"incidents,omitempty"`
	}{"virtual time", b.Preset, b.Engine, b.Replicas, b.servers(), b.apiServers(), b.RoundTrip.Seconds(), b.SpillThreshold, b.Patience.Seconds(),
		b.scrapeEvery().Seconds(), b.EstimateError, b.Incidents}
}

func (b Box) scrapeEvery() time.Duration { return cmp.Or(b.ScrapeEvery, time.Second) }

// tickEvery is how often the gateway lets the router look at what waits.
const tickEvery = 100 * time.Millisecond

// virtual is a Box in virtual time.
type virtual struct {
	box    Box
	seed   uint64
	events events
	now    time.Duration
	order  uint64 // of requests

	servers    []*enginesim.Box // nil while a server is dead
	epochs     []int            // lives of each server
	replicas   []*virtualReplica
	conditions []condition // of each replica
	step       int         // how many have ended
	core       *routing.Core
	router     routing.Router // of the arm in force
	flights    map[routing.RequestID]*flight

	busy time.Duration // sum over the replicas of completed steps
	past Counters      // of engines that are gone, but for what is in busy
	// last is the finished turn of each session of which another follows, and spare
	// are prompts that nobody needs any more: a turn is mostly the one before.
	last  map[uint64]*enginesim.Sequence
	spare [][]enginesim.Token
}

// virtualReplica is one rank of a server in one of its lives.
type virtualReplica struct {
	box          *enginesim.Box // nil when that life has ended
	server, rank int
	stepping     bool
	since        time.Duration // start of the running step
	begin, end   func()        // made once, not for each step
}

// newVirtual starts a box, which must be valid.
func newVirtual(b Box, seed uint64) (*virtual, error) {
	v := &virtual{box: b, seed: seed, flights: make(map[routing.RequestID]*flight), last: make(map[uint64]*enginesim.Sequence)}
	if err := v.boot(); err != nil {
		return nil, err
	}
	v.scrape()
	v.tick()
	return v, nil
}

// boot starts the engines with empty caches, and a gateway that knows nothing.
// It must not be called while a turn is open.
func (v *virtual) boot() error {
	v.servers, v.epochs = make([]*enginesim.Box, v.box.servers()), make([]int, v.box.servers())
	v.conditions = make([]condition, v.box.Replicas)
	for _, r := range v.replicas {
		v.retire(r)
	}
	v.replicas = make([]*virtualReplica, v.box.Replicas)
	for server := range v.servers {
		v.start(server)
	}
	core, err := routing.New(routing.Options{
		Replicas: v.routingReplicas(), Policy: routing.Policies()[0], SpillThreshold: v.box.SpillThreshold,
		Limits: routing.Limits{Patience: v.box.Patience},
	})
	if err != nil {
		return err
	}
	v.core = core
	return nil
}

// perServer is how many replicas a server has.
func (v *virtual) perServer() int { return v.box.Replicas / v.box.servers() }

// start begins a life of a server.
func (v *virtual) start(server int) {
	box, err := enginesim.NewBox(enginesim.BoxOptions{
		Params: v.box.Engine, Ranks: v.perServer(), APIServers: v.box.apiServers(),
		Rand: rand.New(rand.NewPCG(v.seed, uint64(server)|uint64(v.epochs[server])<<32)),
	})
	if err != nil {
		panic("bench: a box that is valid does not start: " + err.Error())
	}
	v.servers[server] = box
	v.epochs[server]++
	for rank := range v.perServer() {
		r := &virtualReplica{box: box, server: server, rank: rank}
		r.begin, r.end = func() { v.beginStep(r) }, func() { v.endStep(r) }
		v.replicas[server*v.perServer()+rank] = r
	}
}

// retire ends a life of a replica. What it had open is lost.
func (v *virtual) retire(r *virtualReplica) {
	if r.box == nil {
		return
	}
	if r.stepping {
		v.busy += v.now - r.since
	}
	v.past.add(r.box.Stats(r.rank))
	r.box = nil
}

func (v *virtual) routingReplicas() []routing.Replica {
	list := make([]routing.Replica, len(v.replicas))
	for i, r := range v.replicas {
		list[i].Server = r.server
	}
	return list
}

// Switch implements System. Between policies the core keeps what it knows, as
// the gateway's does.
func (v *virtual) Switch(arm string, cold bool) error {
	if cold {
		if err := v.boot(); err != nil {
			return err
		}
	}
	if arm == PublishedOn {
		v.router = newPublishedOn(v.routingReplicas(), v.box.SpillThreshold, rand.New(rand.NewPCG(v.seed, contentID(v.seed))))
	} else {
		if err := v.core.SetPolicy(arm); err != nil {
			return err
		}
		v.router = v.core
	}
	v.tellStates()
	v.observe()
	return nil
}

func (v *virtual) Replicas() int      { return v.box.Replicas }
func (v *virtual) BlockTokens() int   { return v.box.Engine.BlockTokens }
func (v *virtual) Now() time.Duration { return v.now }

// wall is the time as the packages below want it.
func (v *virtual) wall() time.Time { return time.Unix(0, 0).UTC().Add(v.now) }

// After implements System.
func (v *virtual) After(d time.Duration, do func()) { v.events.add(v.now+d, do) }

// Settle implements System.
func (v *virtual) Settle(ctx context.Context, d time.Duration) error {
	return v.Run(ctx, v.now+d, func() bool { return false })
}

// Run implements System.
func (v *virtual) Run(ctx context.Context, until time.Duration, idle func() bool) error {
	const glance = 1 << 12 // events between two looks at ctx
	for n := 0; !idle(); n++ {
		if n%glance == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if v.events.first() > until { // there is always one: the next scrape
			v.now = until
			return nil
		}
		e := v.events.take()
		v.now = e.at
		e.do()
	}
	return nil
}

// Counters implements System.
func (v *virtual) Counters() Counters {
	c := v.past
	busy := v.busy
	for _, r := range v.replicas {
		if r.box == nil {
			continue
		}
		c.add(r.box.Stats(r.rank))
		if r.stepping {
			busy += v.now - r.since
		}
	}
	c.BusySeconds = busy.Seconds()
	return c
}

func (c *Counters) add(s enginesim.Stats) {
	c.PromptTokens += float64(s.PrefixQueries)
	c.CachedTokens += float64(s.PrefixHits + s.HostHits)
	c.Preemptions += float64(s.Preemptions)
}

// scrape tells the router the engines' gauges, now and every so often.
func (v *virtual) scrape() {
	if v.router != nil {
		v.tellStates()
		v.observe()
	}
	v.After(v.box.scrapeEvery(), v.scrape)
}

// tick lets the router's time pass, now and every so often.
func (v *virtual) tick() {
	if v.router != nil {
		v.apply(v.router.Tick(v.wall()))
	}
	v.After(tickEvery, v.tick)
}

// tellStates tells the router what each replica may be given.
func (v *virtual) tellStates() {
	for i, r := range v.replicas {
		state := routing.Ready
		switch {
		case r.box == nil:
			state = routing.Down
		case v.conditions[i].draining:
			state = routing.Draining
		}
		v.apply(v.router.SetState(v.wall(), i, state))
	}
}

func (v *virtual) observe() {
	for i, r := range v.replicas {
		if r.box == nil {
			v.router.Observe(v.wall(), i, routing.Load{Stale: true})
			continue
		}
		s := r.box.Stats(r.rank)
		v.router.Observe(v.wall(), i, routing.Load{
			Running: s.Running, Waiting: s.Waiting, KVUsed: s.KVUsed,
			Capacity: int64(v.box.Engine.KVTokens), HostTier: v.box.Engine.HostKVGiB > 0, Epoch: v.epochs[r.server],
		})
	}
}
