package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
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
		Incidents  []Incident       `json:"incidents,omitempty"`
	}{"virtual time", b.Preset, b.Engine, b.Replicas, b.servers(), b.apiServers(), b.RoundTrip.Seconds(), b.SpillThreshold, b.Patience.Seconds(), b.Incidents}
}

const (
	// scrapeEvery is how often the gateway looks at the engines.
	scrapeEvery = time.Second
	// tickEvery is how often it lets the router look at what waits.
	tickEvery = 100 * time.Millisecond
)

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

// flight is a request that the gateway has.
type flight struct {
	id       routing.RequestID
	request  Request
	result   Result
	sequence enginesim.Sequence
	replica  int // where it was submitted, or -1
	done     func(Result)
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
	v.After(scrapeEvery, v.scrape)
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
			Capacity: int64(v.box.Engine.KVTokens), Epoch: v.epochs[r.server],
		})
	}
}

// Send implements System. The request reaches the gateway half a round trip
// later.
func (v *virtual) Send(r Request, done func(Result)) {
	v.order++
	f := &flight{
		id: routing.RequestID(v.order), request: r, replica: routing.None, done: done,
		result: Result{Sent: v.now, First: -1, Last: -1, Prompt: -1, Cached: -1, Output: -1, Replica: routing.None},
	}
	v.flights[f.id] = f
	v.After(v.box.RoundTrip/2, func() {
		if v.flights[f.id] == f { // not cut on its way
			v.arrive(f)
		}
	})
}

func (v *virtual) arrive(f *flight) {
	v.tokenize(f)
	v.apply(v.router.Arrive(v.wall(), routing.Request{
		ID: f.id, Key: routingKey(f.request.Session), Parent: routingKey(f.request.Parent),
		Pin: routing.None, Tokens: int64(len(f.sequence.Prompt)),
	}))
}

// tokenize makes the sequence of a turn, from that of the turn before where there
// is one.
func (v *virtual) tokenize(f *flight) {
	s, turn := &f.sequence, &f.request.Turn
	s.ID, s.Reason = uint64(f.id), enginesim.ReasonLength
	s.Output = turn.Answer.appendTokens(nil)
	same := 0
	if before := v.last[f.request.Session]; before != nil {
		delete(v.last, f.request.Session)
		s.Follow(before, turn.Known)
		same = min(turn.Known, len(before.Prompt))
		s.Prompt = before.Prompt[:same]
	} else if n := len(v.spare); n > 0 {
		s.Prompt, v.spare = v.spare[n-1][:0], v.spare[:n-1]
	}
	s.Prompt = appendPrompt(s.Prompt, turn.Messages, same)
}

// discard keeps what the session's next turn will need of an ended one.
func (v *virtual) discard(f *flight) {
	if f.result.End == Finished && f.request.Session != 0 && !f.request.Last {
		v.last[f.request.Session] = &f.sequence
		return
	}
	v.spare = append(v.spare, f.sequence.Prompt)
}

// routingKey is a conversation's key; 0 stays the key of none.
func routingKey(session uint64) (k routing.Key) {
	binary.BigEndian.PutUint64(k[:], session)
	return k
}

// apply carries out the router's orders. A request that is held needs nothing: a
// later order follows.
func (v *virtual) apply(actions []routing.Action) {
	for _, a := range actions {
		f := v.flights[a.ID]
		if f == nil {
			continue
		}
		switch a.Kind {
		case routing.Dispatch:
			v.dispatch(f, a.Decision)
		case routing.Refuse:
			v.fail(f, "refused: "+string(a.Why))
		}
	}
}

func (v *virtual) dispatch(f *flight, d routing.Decision) {
	f.result.Reason = string(d.Reason)
	if v.servers[d.Server] == nil {
		v.tellStates() // the connection was refused
		v.retry(f)
		return
	}
	rank := enginesim.AnyRank
	if d.Replica != routing.None {
		rank = v.replicas[d.Replica].rank
	}
	apiServer := contentID(v.seed, uint64(f.id)) % uint64(v.box.apiServers())
	rank, err := v.servers[d.Server].Submit(v.wall(), int(apiServer), rank, &f.sequence)
	if err != nil {
		v.fail(f, err.Error())
		return
	}
	f.replica = d.Server*v.perServer() + rank
	f.result.Replica = f.replica
	// What arrives at the same moment is in the same step.
	v.After(0, v.replicas[f.replica].begin)
}

// retry looks for another replica for a turn whose attempt failed.
func (v *virtual) retry(f *flight) { v.apply(v.router.Retry(v.wall(), f.id)) }

func (v *virtual) beginStep(r *virtualReplica) {
	if r.box == nil || r.stepping {
		return
	}
	if took, work := r.box.Begin(v.wall(), r.rank); work {
		if slow := v.conditions[r.server*v.perServer()+r.rank].slow; slow > 0 {
			took = time.Duration(float64(took) * slow)
		}
		r.stepping, r.since = true, v.now
		v.After(took, r.end)
	}
}

func (v *virtual) endStep(r *virtualReplica) {
	if r.box == nil {
		return
	}
	r.stepping = false
	v.busy += v.now - r.since
	for _, e := range r.box.End(v.wall(), r.rank) {
		f := v.flights[routing.RequestID(e.ID)]
		if e.First {
			f.result.First = v.now + v.box.RoundTrip/2
			f.result.Prompt, f.result.Cached = len(f.sequence.Prompt), e.Cached
			v.router.FirstByte(v.wall(), f.id)
		}
		f.result.Output = max(f.result.Output, 0) + e.Tokens
		if e.Done {
			v.finish(f)
		}
	}
	v.After(0, r.begin)
}

// finish ends a turn whose answer is complete.
func (v *virtual) finish(f *flight) {
	f.result.End = Finished
	v.discard(f)
	v.apply(v.router.Finish(v.wall(), f.id, routing.Outcome{
		OK: true, Known: true, CachedKnown: true,
		Prompt: int64(f.result.Prompt), Cached: int64(f.result.Cached), Completion: int64(f.result.Output),
	}))
	v.answer(f)
}

// fail ends a turn that was refused.
func (v *virtual) fail(f *flight, why string) {
	f.result.End, f.result.Error = Failed, why
	v.discard(f)
	v.apply(v.router.Finish(v.wall(), f.id, routing.Outcome{}))
	v.answer(f)
}

// answer brings the end of a turn to its client, half a round trip later.
func (v *virtual) answer(f *flight) {
	v.After(v.box.RoundTrip/2, func() {
		if v.flights[f.id] != f {
			return // cut on its way
		}
		delete(v.flights, f.id)
		f.result.Last = v.now
		f.done(f.result)
	})
}

// Cut implements System.
func (v *virtual) Cut() {
	open := v.open()
	clear(v.flights) // what the router orders for them now concerns nobody
	clear(v.last)    // no session goes on
	for _, f := range open {
		if f.replica != routing.None && v.replicas[f.replica].box != nil {
			v.replicas[f.replica].box.Abort(uint64(f.id))
		}
		v.router.Finish(v.wall(), f.id, routing.Outcome{})
		f.result.End, f.result.Error = Cut, ""
		f.done(f.result)
	}
	v.mendAll()
}

// open are the turns under way, in the order in which they were sent.
func (v *virtual) open() []*flight {
	return slices.SortedFunc(maps.Values(v.flights), func(a, b *flight) int { return cmp.Compare(a.id, b.id) })
}
