package routing

import (
	"math"
	"time"
)

// Constants of patience. Their source is a search in virtual time
// (docs/policies.md).
const (
	// The least patience, in place times, and in times that a replica takes to read a
	// conversation again: who claims a replica makes another read that much.
	patiencePlaces = 2.0
	patienceReads  = 5.0
	// waitingShare is the share of the turns that do the waiting. With more than
	// half, the median turn is one that waits.
	waitingShare = 0.48
	// Where the replicas spend more than rereadShare of their time on reading again
	// what was pushed out, waiting longer wins much of that time back: each further
	// hundredth makes patience longer by rereadWeight hundredths.
	rereadShare  = 0.25
	rereadWeight = 3
	// warmShare is the most of a prompt that a warm turn has to read.
	warmShare = 0.25
	// homeShare is how much of a prompt must be cached at home for a turn to wait for
	// it before it goes elsewhere: homeWait, or as long as it takes to read that again.
	homeShare = 0.5
	homeWait  = 10 * time.Second
	// readingLimit bounds the prompts that one replica reads at a time: those that
	// decode there meanwhile get slower.
	readingLimit = 3 * time.Second
	// quickRead is what a request without a conversation may have to read and
	// still pass those that wait.
	quickRead = 500 * time.Millisecond
	// batchPatience is how much longer than another a request of class Batch waits
	// until it claims a replica.
	batchPatience = 4
	// Weights of the cost of a start, in tokens to read.
	loadWeight = 0.05 // a token in flight
	pushWeight = 0.25 // a cached token that is pushed out
	// mostLooks bounds the waiters that one walk through the queue weighs.
	mostLooks = 32
)

// patience is affinity while everything fits. Past that it sends a replica only
// what fits its cache beside what is in flight there, and the rest wait:
//
//  1. Who has waited for the patience or longer claims a replica, in the order
//     of the queue: the cheapest where it fits, or else the one with the least in
//     flight, where nobody else starts until it does.
//  2. A turn whose history is still cached at its home starts there if it fits.
//  3. The others start, in the order of the queue, on the cheapest replica where
//     they fit beside the places that are kept for conversations that left a
//     moment ago. A turn that has half its history at home waits a while for that.
type patience struct{ affinity }

// patient tells whether requests may be held: patience is the policy, and nothing
// makes that needless. A request that must not wait is sent as affinity sends it.
func (c *Core) patient() bool {
	_, ok := c.policy.(patience)
	return ok && c.needless() == ""
}

// needless is why holding requests would win nothing, empty when it may.
func (c *Core) needless() Why {
	switch {
	case c.tier.serves:
		return TierServes
	case c.readsQuickly:
		return ReadsQuickly
	}
	return ""
}

// A wait saves at most the reading of a conversation. Where replicas would spend less
// than quickShare of their time on reading if they read every conversation whole at
// each turn, it is not worth it: an engine that is full has a queue of its own. It is
// worth it again from slowShare on, so that the choice does not swing.
const (
	quickShare = 0.05
	slowShare  = 0.10
	// enoughRead is how many readings must have been measured for that.
	enoughRead = 16
)

// judgeReading looks anew at whether reading takes next to nothing.
func (c *Core) judgeReading() {
	l := &c.learned
	share := c.seconds(int64(l.need.or(0))) * float64(max(c.fitting, 1)) / l.place.or(math.Inf(1))
	least := quickShare
	if c.readsQuickly {
		least = slowShare
	}
	c.readsQuickly = l.rate.samples >= enoughRead && l.place.samples >= enoughRead && share < least
}

// arrive chooses for a request that may have to wait; ok is false when it has to.
// While nobody waits and it fits where affinity wants it, that is the choice.
func (p patience) arrive(c *Core, q *request, in *query) (ch choice, ok bool) {
	if len(c.queue.waiters) == 0 {
		// One that does not say how much it holds is full at the threshold.
		if c.threshold == 0 && !in.crowds && p.stays(c, in) && c.replicas[in.home].load.Capacity > 0 && c.fits(q, in.home) && c.warm(q, in.home) {
			return c.to(in.home), true
		}
		ch = p.affinity.choose(c, in)
		switch {
		case !c.fits(q, ch.replica):
		case c.warm(q, ch.replica), c.fitsBeside(q, ch.replica) && (!c.short() || c.reads(q, ch.replica)):
			return ch, true
		}
	}
	i := p.atHome(c, q, in)
	if i == None {
		i = p.anywhere(c, q, in)
	}
	if i == None {
		return choice{}, false
	}
	return c.toOr(in, i), true
}

// atHome is q's home if it may start there by the second rule, else None.
func (p patience) atHome(c *Core, q *request, in *query) int {
	home := in.home
	if home == None || c.claims[home] != nil || !c.fits(q, home) || !c.warm(q, home) || !c.mayHave(q, home) {
		return None
	}
	if !p.stays(c, in) {
		return None
	}
	return home
}

// stays tells whether the conversation has a home that may serve it.
func (p patience) stays(c *Core, in *query) bool {
	if in.home == None {
		return false
	}
	f, _ := c.fateAt(in)
	return f == stays
}

// anywhere is where q may start by the third rule, or None.
func (p patience) anywhere(c *Core, q *request, in *query) int {
	if p.stays(c, in) {
		found := q.prompt - c.uncached(q, in.home)
		waits := max(homeWait.Seconds(), c.seconds(found))
		if float64(found) >= homeShare*float64(q.prompt) && (c.clock.now-q.since).Seconds() < waits {
			return None
		}
	}
	quick := q.Key == (Key{}) && c.seconds(c.uncached(q, in.among[0])) <= quickRead.Seconds()
	return c.cheapest(q, in.among, func(i int) bool {
		if c.claims[i] != nil || !c.mayHave(q, i) {
			return false
		}
		return quick && c.fits(q, i) || c.fitsBeside(q, i) && c.reads(q, i)
	})
}

// seconds is how long a replica reads so many tokens.
func (c *Core) seconds(tokens int64) float64 {
	rate := c.learned.rate.or(0)
	if rate <= 0 {
		return 0
	}
	return float64(tokens) / rate
}

// reads tells whether replica i may be given q to read beside what it is reading.
func (c *Core) reads(q *request, i int) bool {
	reading := c.replicas[i].reading
	return reading == 0 || c.seconds(reading+c.uncached(q, i)) <= readingLimit.Seconds()
}

// warm tells whether q finds nearly all of its history on replica i.
func (c *Core) warm(q *request, i int) bool {
	return q.conv != nil && q.conv.home() == i && float64(c.uncached(q, i)) <= warmShare*float64(q.prompt)
}

// mayHave tells whether q's tree has less than its share of the places of
// replica i. The share is even among the trees that want one.
func (c *Core) mayHave(q *request, i int) bool {
	n := c.agents.on(q, c.replicas[i])
	if n == 0 {
		return true
	}
	trees := c.inFlight - c.agents.all + len(c.agents.by) + c.queue.trees
	return n*trees < c.places(i)*len(c.replicas)
}

// cheapest is where q costs least among the replicas that may have it, None
// when none may.
func (c *Core) cheapest(q *request, among []int, may func(i int) bool) int {
	best, least := None, math.Inf(1)
	for _, i := range among {
		if !may(i) {
			continue
		}
		r := c.replicas[i]
		cost := float64(c.uncached(q, i)+r.reading) + loadWeight*float64(r.committed) + pushWeight*float64(c.pushedOut(q, i))
		if cost < least || cost == least && r.chosen < c.replicas[best].chosen {
			best, least = i, cost
		}
	}
	return best
}

// toOr is the choice of a replica that is perhaps not the home.
func (c *Core) toOr(in *query, i int) choice {
	ch := c.to(i)
	ch.compared = true
	if in.home != None && in.home != i {
		f, why := c.fateAt(in)
		ch.spill, ch.why = f == spills, why
		if f == stays {
			ch.why = HomeFull
		}
	}
	return ch
}

// admit starts the waiting requests that may start now.
func (p patience) admit(c *Core) []Action {
	actions := p.overdue(c, nil)
	actions = p.others(c, actions, p.atHome)
	return p.others(c, actions, p.anywhere)
}

// overdue carries out the first rule.
func (p patience) overdue(c *Core, actions []Action) []Action {
	w := c.patience()
	looks := 0
	for at := 0; at < len(c.queue.waiters) && looks < mostLooks; {
		waiter := &c.queue.waiters[at]
		limit := w
		if waiter.class == Batch {
			limit *= batchPatience
		}
		if c.clock.now-waiter.since < limit {
			at++
			continue
		}
		q := waiter.q
		looks++
		in, refusal := c.query(q)
		if refusal != "" {
			actions = append(actions, c.turnAway(q, refusal))
			continue
		}
		free := func(i int) bool { return c.claims[i] == nil }
		i := c.cheapest(q, in.among, func(i int) bool { return free(i) && c.fits(q, i) })
		if i != None {
			actions = append(actions, c.begin(q, &in, i)...)
			continue
		}
		least := None
		for _, i := range in.among {
			if free(i) && (least == None || c.replicas[i].committed < c.replicas[least].committed) {
				least = i
			}
		}
		if least == None {
			break // all are claimed
		}
		c.claims[least] = q
		at++
	}
	return actions
}

// others carries out one of the other rules, which says where a request may start.
func (p patience) others(c *Core, actions []Action, rule func(*Core, *request, *query) int) []Action {
	var in query
	var refusal Why
	room, shared, looks := c.mostRoom(), c.shared(), 0
	for at := 0; at < len(c.queue.waiters) && looks < mostLooks; {
		w := &c.queue.waiters[at]
		if w.leastNeed(shared) > room {
			at++
			continue
		}
		q := w.q
		looks++
		if in, refusal = c.query(q); refusal != "" {
			actions = append(actions, c.turnAway(q, refusal))
			continue
		}
		i := rule(c, q, &in)
		if i == None {
			at++
			continue
		}
		actions = append(actions, c.begin(q, &in, i)...)
		room = c.mostRoom()
	}
	return actions
}

// begin starts a waiting request on replica i.
func (c *Core) begin(q *request, in *query, i int) []Action {
	return c.letGo(q, c.decision(q, in, c.toOr(in, i)))
}

// shortFor is how long after the last request that was held the caches are taken
// to be short.
const shortFor = time.Minute

// short tells whether a request was held of late. The reading limit holds only
// then.
func (c *Core) short() bool { return c.lastHeld > 0 && c.clock.now-c.lastHeld < shortFor }

// patience is how long a request waits before it claims a replica: by Little's
// law the mean wait of all turns is those waiting over those started per second,
// so it is the wait of each that waits, if waitingShare of them do. It is longer
// where fewer interruptions would save the replicas much reading, but no longer than
// a request may wait at all.
func (c *Core) patience() time.Duration {
	if c.limits.Patience > 0 {
		return c.limits.Patience
	}
	need := int64(c.learned.need.or(0))
	seconds := max(patiencePlaces*c.learned.place.or(10), patienceReads*c.seconds(need))
	if x := c.throughput(); x > 0 {
		seconds = max(seconds, float64(len(c.queue.waiters))/(x*waitingShare))
	}
	seconds *= 1 + rereadWeight*max(c.rereading()-rereadShare, 0)
	longest := orDefault(c.limits.Wait, defaultWait)
	return time.Duration(min(seconds, longest.Seconds()) * float64(time.Second))
}
