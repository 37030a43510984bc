package routing

import (
	"slices"
	"time"
)

// View is the state of a core at one moment, a copy.
type View struct {
	Policy         string
	SpillThreshold int // in force
	SpillAuto      bool
	InFlight       int   // all requests open, those that the engine's balancer placed included
	EngineChosen   int64 // requests whose replica the engine chose, or whose policy was off
	Replicas       []ReplicaView
	Live, Known    int // conversations
	WorkingSet     WorkingSet
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
	Load                                                      Load
	Observed                                                  time.Time // of the last Load, zero before the first
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

// View copies the state. It is O(replicas), not O(conversations).
func (c *Core) View(now time.Time) View {
	c.advance(now)
	v := View{
		Policy: c.policyName, SpillThreshold: c.spillThreshold(), SpillAuto: c.threshold == 0,
		InFlight: c.inFlight, EngineChosen: c.engineChosen,
		Replicas: make([]ReplicaView, len(c.replicas)),
		Live:     c.homes.all.live, Known: len(c.homes.byKey),
		WorkingSet: c.workingSet(),
	}
	for i := range c.replicas {
		r, held := c.replicas[i], c.homes.heldAt(i)
		v.Replicas[i] = ReplicaView{
			State: r.state, InFlight: r.inFlight,
			Placed: r.served.placed, Sticky: r.served.sticky, SpilledIn: r.served.spilledIn,
			MovedIn: r.served.movedIn, ClientPinned: r.served.pinned, Unbound: r.served.unbound,
			LiveConversations: held.live, LiveTokens: held.tokens(),
			Load: r.load, Observed: r.observed,
		}
	}
	return v
}

func (c *Core) workingSet() WorkingSet {
	w := WorkingSet{Tokens: -1, Capacity: -1, Fits: -1, Shared: c.prefix.median()}
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

// prefixWindow holds the cached tokens of the latest first turns.
type prefixWindow struct {
	tokens [15]int64
	seen   int
}

func (w *prefixWindow) add(cached int64) {
	w.tokens[w.seen%len(w.tokens)] = cached
	w.seen++
}

// median is robust against a few first turns that found nothing (a busy replica
// evicted the prefix) or everything (the same prompt sent twice); -1 while there
// is none.
func (w *prefixWindow) median() int64 {
	n := min(w.seen, len(w.tokens))
	if n == 0 {
		return -1
	}
	sorted := slices.Sorted(slices.Values(w.tokens[:n]))
	return sorted[(n-1)/2]
}
