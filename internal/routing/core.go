package routing

import (
	"fmt"
	"math"
	"time"
)

// Defaults of Options.
const (
	autoSpillThreshold      = 8
	defaultLiveFor          = 10 * time.Minute
	defaultIdleFor          = time.Hour
	defaultMaxConversations = 1_000_000
)

// Options are what New needs.
type Options struct {
	Replicas []Replica
	Policy   string // a name of Policies()
	// Shadow is a policy that is asked about each request too, and only counted
	// (ShadowView); empty for none.
	Shadow string
	// SpillThreshold is how many requests a home may have in flight before a
	// request leaves it; 0 means automatic, which is 8, or with patience the number
	// that fits.
	SpillThreshold int
	// LiveFor is how long after its last request a conversation counts as live;
	// 0 means 10 minutes. What is forgotten is not live, so IdleFor bounds it.
	LiveFor time.Duration
	// IdleFor is how long an idle conversation keeps its home; 0 means 1 hour.
	IdleFor time.Duration
	// MaxConversations bounds the home table; 0 means 1,000,000. The conversation
	// that is idle longest leaves first, never one with an open request: while
	// more conversations than this have one, the table is that much larger.
	MaxConversations int
	// Limits of what waits.
	Limits Limits
	// HostTier says whether the engines have a tier of their caches in the host's
	// memory.
	HostTier HostTier
}

// Core is the Router that every policy shares: homes, counts and loads; the
// policy chooses among candidates.
type Core struct {
	policy     policy
	policyName string
	threshold  int // as set, 0 for automatic

	replicas []*replica
	servers  []*server
	homes    table
	requests map[RequestID]*request

	inFlight     int
	engineChosen int64
	choices      uint64 // choices made, the clock of "least recently chosen"
	clock        clock
	measured     bool // an engine has counted a turn

	learned    learned
	relearned  time.Duration
	departures departures
	gaps       gaps
	hold       time.Duration // how long the place of a conversation that left is kept
	slots      int           // of the replica with the fewest, 0 when not known
	fitting    int           // places of the smallest replica, 0 when not known
	limits     Limits
	queue      queue
	lastHeld   time.Duration // 0 when none was
	claims     []*request    // by replica: who waits there, alone
	agents     agents

	tier tier
	// readsQuickly says that reading takes next to nothing.
	readsQuickly bool
	shadow       shadow

	// bestState and among are what candidates answers; among is empty when that has to
	// be worked out.
	bestState State
	among     []int
}

var _ Router = (*Core)(nil)

// New returns a core with every replica Unknown. It fails on an unknown policy
// name (the message lists the known ones), on no replicas, on a server number
// outside 0..len(Replicas)-1, or on a negative number.
func New(o Options) (*Core, error) {
	c := &Core{
		requests: make(map[RequestID]*request), homes: newTable(len(o.Replicas)),
		queue: queue{tenants: make(map[tenantClass]*tenant)}, agents: agents{by: make(map[Key][]agentsAt)},
	}
	if err := c.SetRetention(o.LiveFor, o.IdleFor, o.MaxConversations); err != nil {
		return nil, err
	}
	if err := checkReplicas(o.Replicas); err != nil {
		return nil, err
	}
	c.arrange(o.Replicas, nil, nil)
	c.SetHostTier(o.HostTier)
	if err := c.SetPolicy(o.Policy); err != nil {
		return nil, err
	}
	if err := c.SetShadow(o.Shadow); err != nil {
		return nil, err
	}
	if err := c.SetSpillThreshold(o.SpillThreshold); err != nil {
		return nil, err
	}
	if err := c.SetLimits(o.Limits); err != nil {
		return nil, err
	}
	return c, nil
}

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// SetPolicy takes effect with the next request, and at the next Tick for those
// that wait. Homes are kept.
func (c *Core) SetPolicy(name string) error {
	p, err := policyByName(name)
	if err != nil {
		return err
	}
	c.policy, c.policyName = p, name
	return nil
}

// SetRetention changes how long and how many conversations are kept, as LiveFor,
// IdleFor and MaxConversations of Options do. It fails on a negative value.
func (c *Core) SetRetention(liveFor, idleFor time.Duration, maxConversations int) error {
	if liveFor < 0 || idleFor < 0 || maxConversations < 0 {
		return fmt.Errorf("live time %v, idle time %v and %d conversations: none may be negative",
			liveFor, idleFor, maxConversations)
	}
	t := &c.homes
	t.idleFor = orDefault(idleFor, defaultIdleFor)
	t.liveFor = min(orDefault(liveFor, defaultLiveFor), t.idleFor)
	t.max = orDefault(maxConversations, defaultMaxConversations)
	return nil
}

// SetSpillThreshold sets the threshold from the next request on; 0 means
// automatic. It fails on a negative number.
func (c *Core) SetSpillThreshold(n int) error {
	if n < 0 {
		return fmt.Errorf("spill threshold %d: give a number of requests from 1, or 0 for automatic", n)
	}
	c.threshold = n
	return nil
}

// spillThreshold is the threshold in force.
func (c *Core) spillThreshold() int {
	if c.patient() && c.threshold == 0 && c.fitting > 0 {
		return c.fitting
	}
	auto := autoSpillThreshold
	if c.slots > 0 {
		// One more would wait for a slot, though another replica may have one.
		auto = min(auto, c.slots)
	}
	return orDefault(c.threshold, auto)
}

// fewestSlots is the smallest of the replicas' numbers of slots that are known,
// 0 when none is.
func (c *Core) fewestSlots() int {
	fewest := 0
	for _, r := range c.replicas {
		if n := r.load.Slots; n > 0 && (fewest == 0 || n < fewest) {
			fewest = n
		}
	}
	return fewest
}

// request is one open request.
type request struct {
	Request
	conv     *conversation // nil when it makes none
	decision Decision      // in force; None stands for what is no longer there
	at       *replica      // where the attempt is counted, nil when the engine chose
	on       *server
	counted  *int64 // where the decision is counted
	open     bool   // an attempt is open
	tried    []int  // servers where an attempt failed
	first    bool   // first turn of a conversation that extends no other
	undo     undo

	root           Key           // of its tree, its own Key when it is no sub-agent's
	prompt, output int64         // expected tokens of the prompt, and of the answer on average
	context        int64         // of its conversation before, 0 when not measured
	guess          guess         // of its prompt
	lost           int64         // of its context, what is not in the cache of its replica
	needed         int64         // what it is charged with where its attempt is
	reading        int64         // of that, what was not read before
	since          time.Duration // arrival
	sent, begun    time.Duration // of the attempt; begun is 0 before the first byte
	queued         time.Duration // since when it waits
	held           Why           // why it waits or waited
	rank           int64         // place in the queue
	seq            uint64
}

// Arrive implements Router. An ID in use ends the earlier request as failed, so
// that no count leaks.
func (c *Core) Arrive(now time.Time, r Request) []Action {
	c.advance(now)
	var others []Action
	if _, inUse := c.requests[r.ID]; inUse {
		others = c.Finish(now, r.ID, Outcome{})
	}
	q := &request{Request: r, root: r.Key, since: c.clock.now}
	if r.Key != (Key{}) {
		q.conv = c.homes.get(r.Key)
		q.root = c.rootOf(q)
	}
	c.measure(q)
	d, verdict := c.decideBesideShadow(q)
	if verdict.Kind == Refuse {
		return append(others, verdict)
	}
	if r.Key != (Key{}) {
		if q.conv == nil {
			q.conv = c.homes.add(r.Key, c.clock.now)
		}
		q.conv.root = Key{}
		if q.root != r.Key {
			q.conv.root = q.root
		}
		c.comeBack(q.conv)
		c.homes.open(q.conv, c.clock.now, r.Tokens)
		q.first = q.conv.turns == 1 && r.Extends == (Key{})
	}
	c.requests[r.ID] = q
	if verdict.Kind == Hold {
		return append(others, c.enqueue(q, verdict))
	}
	c.learned.waited.add(0, 1.0/64)
	return append(others, c.dispatch(q, d))
}

// rootOf is the root of the tree of q's conversation.
func (c *Core) rootOf(q *request) Key {
	switch {
	case q.Parent != (Key{}):
		if v := c.homes.get(q.Parent); v != nil && v.root != (Key{}) {
			return v.root
		}
		return q.Parent
	case q.conv != nil && q.conv.root != (Key{}):
		return q.conv.root
	}
	return q.Key
}

// FirstByte implements Router. What the replica may read now is used at the next
// Tick.
func (c *Core) FirstByte(now time.Time, id RequestID) {
	c.clock.advance(now)
	if q := c.requests[id]; q != nil && q.open && q.begun == 0 {
		q.begun = c.clock.now
		c.doneReading(q)
	}
}

// Retry implements Router. An id that has no attempt in force is refused.
//
// One failed attempt does not cost a conversation its home: while the home is
// up the retry is a spill, else a move. What the failed attempt's decision had
// changed (a home given, a move, a spill) is undone first, so a first turn that
// failed is placed, not moved.
func (c *Core) Retry(now time.Time, id RequestID) []Action {
	c.advance(now)
	q, known := c.requests[id]
	if !known || !q.open {
		return []Action{{Kind: Refuse, ID: id, Why: NoReplica}}
	}
	c.release(q)
	if q.decision.Server != None {
		q.tried = append(q.tried, q.decision.Server)
	}
	c.revert(q)
	d, verdict := c.decideOrHold(q)
	// A request that is refused or held stays counted by its last decision.
	var actions []Action
	switch verdict.Kind {
	case Refuse:
		actions = []Action{verdict}
	case Hold:
		actions = []Action{c.enqueue(q, verdict)}
	default:
		actions = []Action{c.dispatch(q, d)}
	}
	return append(actions, c.admit()...)
}

// Finish implements Router.
func (c *Core) Finish(now time.Time, id RequestID, o Outcome) []Action {
	c.advance(now)
	q, known := c.requests[id]
	if !known {
		return nil
	}
	delete(c.requests, id)
	if q.open {
		c.release(q)
		if o.OK {
			c.learn(q, o)
		}
	}
	c.queue.remove(q)
	if q.conv != nil {
		c.homes.close(q.conv, c.clock.now)
	}
	return c.admit()
}

// learn takes what a complete answer says about the conversation and the cache.
func (c *Core) learn(q *request, o Outcome) {
	if q.first && o.CachedKnown && (q.at == nil || q.at.warm) {
		c.learned.prefix.add(max(o.Cached, 0))
	}
	if q.at != nil {
		q.at.warm = true
	}
	c.learnTimes(q, o)
	c.learnGone(q, o)
	if q.conv == nil {
		return
	}
	if o.Known {
		c.homes.resize(q.conv, o.Prompt+o.Completion, true)
		if at := q.decision.Replica; at != None && !q.Light {
			q.prompt, q.output = o.Prompt, o.Completion
			c.use(q, at)
		}
		c.measured = true
	}
	if at := q.decision.Replica; at != None && at == q.conv.home() {
		q.conv.bond.served = true
		q.conv.bond.epoch = int32(q.at.load.Epoch)
	}
	if at := q.decision.Replica; at != None && q.conv.running == 0 && !q.Light {
		c.leave(q.conv, at)
	}
}

// Observe implements Router. A replica that does not exist is ignored. Of a
// stale load only the mark is taken.
func (c *Core) Observe(now time.Time, replica int, l Load) {
	c.advance(now)
	if !c.exists(replica) {
		return
	}
	r := c.replicas[replica]
	r.observed = now
	if l.Stale {
		r.load.Stale = true
		r.observeKV()
		return
	}
	// What left since the last scrape may still be in this one.
	engine := l.Running + l.Waiting
	r.seen = min(max(engine, r.inFlight), r.peak)
	r.seenShare = c.servers[r.server].share()
	if l.Epoch != r.load.Epoch {
		r.warm = false
		c.homes.clear(replica)
	}
	r.load = l
	r.observeKV()
	c.slots = c.fewestSlots()
	over := max(engine-r.peak-int(math.Ceil(r.seenShare)), 0)
	r.others, r.over, r.peak = min(over, r.over), over, r.inFlight
}

// SetState implements Router. A replica or a state that does not exist is
// ignored.
func (c *Core) SetState(now time.Time, replica int, s State) []Action {
	c.advance(now)
	if c.exists(replica) && s <= Down {
		c.replicas[replica].state = s
		c.among = c.among[:0]
	}
	return c.admit()
}

// Tick implements Router.
func (c *Core) Tick(now time.Time) []Action {
	c.advance(now)
	if c.clock.now-c.relearned >= time.Second {
		c.relearned = c.clock.now
		c.relearn()
	}
	c.fadePlaces()
	return c.admit()
}

// advance moves the core's clock and lets conversations fall idle.
func (c *Core) advance(now time.Time) {
	c.clock.advance(now)
	c.homes.expire(c.clock.now)
	c.passDepartures()
}

func (c *Core) exists(replica int) bool { return replica >= 0 && replica < len(c.replicas) }

// clock turns the callers' times into durations since the first of them: half
// the size of a time.Time in the table, and monotonic when the callers' times
// are. It never runs backwards.
type clock struct {
	started time.Time
	now     time.Duration
}

func (k *clock) advance(now time.Time) {
	if k.started.IsZero() {
		k.started = now
	}
	k.now = max(k.now, now.Sub(k.started))
}

// at is the inverse: the time of a moment.
func (k *clock) at(moment time.Duration) time.Time { return k.started.Add(moment) }
