package routing

import "math"

// What fits on a replica is counted in KV tokens: the prefix that all
// conversations share, once, and for each request in flight its prompt beyond
// that prefix and half of the answer that it is likely to get.

const (
	// firstGuess is the length of an answer before the first one was counted.
	firstGuess = 256
	// answerShare is how much of an answer is counted: those in flight on a replica
	// are, on average, half written.
	answerShare = 0.5
)

// measure sets what q is expected to need.
func (c *Core) measure(q *request) {
	l := &c.learned
	estimated := l.estimated.or(1)
	if v := q.conv; v != nil {
		if v.estimated > 0 {
			estimated = float64(v.estimated)
		}
		if v.measured {
			q.context = v.tokens
		}
	}
	q.guess = l.prompts(q).guess(int64(float64(max(q.Tokens, 0))/estimated), q.context)
	q.prompt = q.guess.best
	q.output = int64(l.output.or(firstGuess) + 2*l.outputSpread.or(0))
	if q.MaxOutput > 0 {
		q.output = min(q.output, q.MaxOutput)
	}
	q.output = int64(answerShare * float64(q.output))
}

// shared is the prefix that a new conversation finds in any cache.
func (c *Core) shared() int64 { return max(c.learned.prefix.median(), 0) }

// own is the part of q's prompt beyond the shared prefix.
func (c *Core) own(q *request) int64 { return max(q.prompt-c.shared(), 0) }

// need is what q adds to what replica i holds for its requests in flight.
// Further requests of a conversation there add only their answers.
func (c *Core) need(q *request, i int) int64 {
	if v := q.conv; v != nil && v.running > 0 && int(v.runningAt) == i {
		return q.output
	}
	return c.own(q) + q.output
}

// leastNeed is what a request that waits needs anywhere.
func (w *waiter) leastNeed(shared int64) int64 {
	if w.beside {
		return w.output
	}
	return max(w.prompt-shared, 0) + w.output
}

// capacity is what the core may fill of a replica: less than the engine has
// while others send requests to it past the gateway.
func (c *Core) capacity(i int) int64 {
	r := c.replicas[i]
	return r.load.Capacity - int64(float64(r.others)*c.learned.need.or(0))
}

// empty tells whether replica i has nothing to do. It then takes any request,
// since waiting would not make more room.
func (c *Core) empty(i int) bool {
	r := c.replicas[i]
	return r.load.Capacity <= 0 || r.inFlight == 0 && c.servers[r.server].unplaced == 0
}

// room is how many tokens more replica i can take beside its requests in flight.
func (c *Core) room(i int) int64 {
	if c.empty(i) {
		return math.MaxInt64
	}
	r := c.replicas[i]
	if r.load.Slots > 0 && r.inFlight+r.others >= r.load.Slots {
		return -1 // however small it is, it would wait there
	}
	unplaced := int64(c.servers[r.server].share() * c.learned.need.or(0))
	return c.capacity(i) - c.shared() - r.committed - unplaced
}

// mostRoom is the room of the unclaimed replica that has most.
func (c *Core) mostRoom() int64 {
	most := int64(math.MinInt64)
	for i := range c.replicas {
		if c.claims[i] == nil {
			most = max(most, c.room(i))
		}
	}
	return most
}

// fits tells whether q fits on replica i beside what is in flight.
func (c *Core) fits(q *request, i int) bool { return c.need(q, i) <= c.room(i) }

// fitsBeside tells whether q also leaves the places that are kept there.
func (c *Core) fitsBeside(q *request, i int) bool {
	kept := c.homes.caches[i].kept
	if v := q.conv; v != nil && int(v.keptAt) == i {
		kept -= v.kept
	}
	return c.need(q, i) <= c.room(i)-kept
}

// places is how many requests of the present mean size a replica can hold, 0
// while that is not known.
func (c *Core) places(i int) int {
	need := c.learned.need.or(0)
	if c.replicas[i].load.Capacity <= 0 || need <= 0 {
		return 0
	}
	n := max(int(float64(c.capacity(i)-c.shared())/need), 1)
	if slots := c.replicas[i].load.Slots; slots > 0 {
		n = min(n, slots)
	}
	return n
}

// fewestPlaces is the smallest of the replicas' numbers of places that are
// known, 0 when none is.
func (c *Core) fewestPlaces() int {
	fewest := 0
	for i := range c.replicas {
		if n := c.places(i); n > 0 && (fewest == 0 || n < fewest) {
			fewest = n
		}
	}
	return fewest
}

// charge adds what q needs to the replica that its attempt goes to.
func (c *Core) charge(q *request) {
	v, i := q.conv, q.decision.Replica
	if v != nil {
		c.homes.unkeep(v)
	}
	if q.at == nil || q.Light {
		return
	}
	q.needed, q.reading = c.need(q, i), c.uncached(q, i)
	q.lost = max(min(q.context, q.prompt)-(q.prompt-q.reading), 0)
	q.at.committed += q.needed
	q.at.reading += q.reading
	if v != nil {
		v.running++
		v.runningAt = int32(i)
		c.queue.beside(v)
	}
	c.learned.need.add(float64(q.needed), 1.0/64)
	c.use(q, i)
}

// discharge takes it back.
func (c *Core) discharge(q *request) {
	if q.at == nil || q.Light {
		return
	}
	q.at.committed -= q.needed
	c.doneReading(q)
	if v := q.conv; v != nil {
		v.running--
		c.queue.beside(v)
	}
	q.needed = 0
}

// doneReading ends the reading of q's prompt.
func (c *Core) doneReading(q *request) {
	if q.at != nil {
		q.at.reading -= q.reading
	}
	q.reading = 0
}
