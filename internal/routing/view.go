package routing

import "time"

// View is the state of a core at one moment, a copy.
type View struct {
	Policy string
	// Instead is the policy that decides in place of Policy, and InsteadWhy why;
	// empty when Policy itself does.
	Instead        string
	InsteadWhy     Why
	SpillThreshold int // in force
	SpillAuto      bool
	InFlight       int   // all requests open, those that the engine's balancer placed included
	EngineChosen   int64 // requests whose replica the engine chose, or whose policy was off
	Replicas       []ReplicaView
	Live, Known    int // conversations
	WorkingSet     WorkingSet
	Queue          QueueView
	Learned        Learned
	Shadow         *ShadowView // nil without one
}

// QueueView is what waits.
type QueueView struct {
	Waiting int
	Longest time.Duration // that one of them waits already
	// Patience is how long a request waits until a replica is kept for it; 0 where
	// the policy holds none.
	Patience time.Duration
	// Wait is how long a request that came now and had to wait would be likely to
	// wait; 0 when that is not known.
	Wait time.Duration
}

// Waiting is one request that is held.
type Waiting struct {
	ID       RequestID
	Key      Key
	Position int           // from 1
	Waited   time.Duration // so far
	Wait     time.Duration // likely, from now on; 0 when that is not known
	Why      Why
}

// Waiting lists the requests that are held, in the order of their turns.
func (c *Core) Waiting(now time.Time) []Waiting {
	c.advance(now)
	list := make([]Waiting, len(c.queue.waiters))
	for i, w := range c.queue.waiters {
		q := w.q
		list[i] = Waiting{
			ID: q.ID, Key: q.Key, Position: i + 1, Waited: c.clock.now - q.queued, Wait: c.predicted(i + 1), Why: q.held,
		}
	}
	return list
}

func (c *Core) queueView() QueueView {
	v := QueueView{Waiting: len(c.queue.waiters), Wait: c.predicted(len(c.queue.waiters) + 1)}
	if c.patient() {
		v.Patience = c.patience()
	}
	for _, w := range c.queue.waiters {
		v.Longest = max(v.Longest, c.clock.now-w.q.queued)
	}
	return v
}

// ReplicaView is one replica's row. The counters run since New; a request that
// was retried counts once, by its last decision.
type ReplicaView struct {
	State    State
	InFlight int
	// Requests by reason.
	Placed, Sticky, SpilledIn, MovedIn, ClientPinned, Unbound int64
	LiveConversations                                         int
	LiveTokens                                                int64 // as in Candidate
	// CachedTokens is what is likely in the engine's prefix cache, by the requests
	// that went there.
	CachedTokens int64
	Load         Load
	Observed     time.Time // of the last Load, zero before the first
}

// WorkingSet compares what the live conversations need with what the caches
// hold. Each field is -1 until it is measured.
type WorkingSet struct {
	// Tokens is the sum of the live conversations' last prompt and answer, the
	// shared prefix counted once per replica. Conversations that were not
	// measured yet are left out.
	Tokens int64
	// Capacity is the KV capacity of all replicas that tell it and are not down.
	Capacity int64
	// Fits is the number of conversations of the present mean size that the
	// caches hold: the sum over replicas of
	// floor((capacity - shared) / mean(context - shared)).
	Fits int
	// Shared is the prefix that first turns found in the cache: the median of
	// the latest ones on replicas that had served before.
	Shared int64
}

// View copies the state. It is O(replicas and requests that wait), not
// O(conversations).
func (c *Core) View(now time.Time) View {
	c.advance(now)
	v := View{
		Policy: c.policyName, SpillThreshold: c.spillThreshold(), SpillAuto: c.threshold == 0,
		InFlight: c.inFlight, EngineChosen: c.engineChosen,
		Replicas: make([]ReplicaView, len(c.replicas)),
		Live:     c.homes.all.live, Known: len(c.homes.byKey),
		WorkingSet: c.workingSet(),
		Queue:      c.queueView(),
		Learned:    c.Learned(),
		Shadow:     c.shadow.view(),
	}
	if _, ok := c.policy.(patience); ok && !c.patient() {
		v.Instead, v.InsteadWhy = "affinity", c.needless()
	}
	for i := range c.replicas {
		r, held := c.replicas[i], c.homes.heldAt(i)
		v.Replicas[i] = ReplicaView{
			State: r.state, InFlight: r.inFlight,
			Placed: r.served.placed, Sticky: r.served.sticky, SpilledIn: r.served.spilledIn,
			MovedIn: r.served.movedIn, ClientPinned: r.served.pinned, Unbound: r.served.unbound,
			LiveConversations: held.live, LiveTokens: held.tokens(), CachedTokens: c.cachedTokens(i),
			Load: r.load, Observed: r.observed,
		}
	}
	return v
}

func (c *Core) workingSet() WorkingSet {
	w := WorkingSet{Tokens: -1, Capacity: -1, Fits: -1, Shared: c.learned.prefix.median()}
	shared := max(w.Shared, 0)

	var own, measured, holders int64 // own: context beyond the shared prefix
	for i := range c.homes.held {
		h := &c.homes.held[i]
		own += max(h.exact-shared*int64(h.measured), 0)
		measured += int64(h.measured)
		if i < len(c.replicas) && h.measured > 0 {
			holders++
		}
	}
	if c.homes.heldAt(None).measured > 0 {
		holders = int64(len(c.replicas)) // spread by the engine's balancer
	}
	if measured > 0 {
		w.Tokens = own + shared*holders
	} else if c.measured && c.homes.all.live == 0 {
		w.Tokens = 0
	}

	for i := range c.replicas {
		r := c.replicas[i]
		if r.state == Down || r.load.Capacity <= 0 {
			continue
		}
		w.Capacity = max(w.Capacity, 0) + r.load.Capacity
		if own > 0 {
			w.Fits = max(w.Fits, 0) + int(max(r.load.Capacity-shared, 0)*measured/own)
		}
	}
	return w
}
