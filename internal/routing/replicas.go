package routing

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// replica is what the core knows about one replica.
type replica struct {
	server   int
	state    State
	inFlight int
	chosen   uint64  // Core.choices when it was last chosen
	kv       float64 // load.KVUsed, NaN when it is not known or stale
	seen     int     // of the requests sent there, those that its load includes
	// seenShare is how many it had besides of those whose rank the engine chose.
	seenShare float64
	load      Load
	observed  time.Time
	warm      bool // a turn was completed here in this epoch
	served    counters

	committed int64 // tokens of the requests in flight, the shared prefix not counted
	reading   int64 // those of them that are to be read before the first byte
	// peak is the most in flight since the last scrape; others the requests that
	// the engine had beyond it in the last two scrapes, over in the last.
	peak, over, others int
}

// counters count requests by reason.
type counters struct {
	placed, sticky, spilledIn, movedIn, pinned, unbound int64
}

// server is one engine process with its replicas.
type server struct {
	replicas []int
	inFlight int // all requests open there
	unplaced int // those of them whose replica the engine chose
	chosen   uint64
}

// takesNew tells whether new conversations may be placed there. An unknown
// replica may turn out to be ready.
func (r *replica) takesNew() bool { return r.state == Ready || r.state == Unknown }

// observeKV takes the share of the KV cache in use from the load.
func (r *replica) observeKV() {
	if r.kv = r.load.KVUsed; r.observed.IsZero() || r.load.Stale || r.kv < 0 || r.kv > 1 {
		r.kv = math.NaN()
	}
}

// kvUsed is the share of the KV cache in use, NaN when no fresh scrape says it;
// share is its server's. A scrape is up to a second old: requests that left since
// then took their part with them, so a replica that has just emptied is not avoided
// as full. Requests that reach the engine past the gateway are taken to be there
// still.
func (r *replica) kvUsed(share float64) float64 {
	if r.inFlight >= r.seen && share >= r.seenShare {
		return r.kv
	}
	seen, past := float64(r.seen), float64(max(r.load.Running+r.load.Waiting-r.seen, 0))
	if seen+past == 0 {
		return r.kv
	}
	left := max(seen-float64(r.inFlight), 0) + max(min(past, r.seenShare)-share, 0)
	return r.kv * (seen + past - left) / (seen + past)
}

// pressure is the number of requests in flight on a replica: those the core
// sent there, and an even share of those whose rank the engine chose.
func (c *Core) pressure(i int) float64 {
	r := c.replicas[i]
	return r.pressure(c.servers[r.server].share())
}

func (r *replica) pressure(share float64) float64 { return float64(r.inFlight) + share }

// share is the part of the unplaced requests that falls on each replica.
func (s *server) share() float64 {
	if s.unplaced == 0 {
		return 0
	}
	return float64(s.unplaced) / float64(len(s.replicas))
}

// candidates are the replicas outside the tried servers in the best state that
// any of them is in, in index order. What nobody has heard from is used only
// when nothing is ready; a draining replica still answers, which is better than
// refusing; a stuck one may recover; of what is kept out the least bad is better
// than nothing.
//
// Those of a request that has tried nothing are kept until a state changes: a
// walk through the queue asks for them with every request.
func (c *Core) candidates(tried []int) (tier State, among []int) {
	if len(tried) > 0 {
		return c.inBestState(tried, nil)
	}
	if len(c.among) == 0 {
		c.bestState, c.among = c.inBestState(nil, c.among)
	}
	return c.bestState, c.among
}

// inBestState appends the candidates to an empty slice.
func (c *Core) inBestState(tried, to []int) (tier State, among []int) {
	for _, tier = range [...]State{Ready, Unknown, Draining, Stuck, Ejected} {
		among = to
		for i, r := range c.replicas {
			if r.state == tier && !slices.Contains(tried, r.server) {
				among = append(among, i)
			}
		}
		if len(among) > 0 {
			break
		}
	}
	return tier, among
}

// eligible tells whether a replica is among the candidates.
func (c *Core) eligible(q *query, i int) bool {
	return i != None && c.replicas[i].state == q.tier && !slices.Contains(q.tried, c.replicas[i].server)
}

// best is the candidate that comes before all others; of equals the one chosen
// least recently, which spreads a burst and lets idle replicas take turns.
// before compares two candidates: negative when the first is better.
func (c *Core) best(among []int, before func(a, b int) int) int {
	best := among[0]
	for _, i := range among[1:] {
		order := before(i, best)
		if order < 0 || order == 0 && c.replicas[i].chosen < c.replicas[best].chosen {
			best = i
		}
	}
	return best
}

// byPressure compares two candidates by their requests in flight.
func (c *Core) byPressure(a, b int) int { return cmp.Compare(c.pressure(a), c.pressure(b)) }
