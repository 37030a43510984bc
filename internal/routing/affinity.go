package routing

import "slices"

// How affinity weighs what it compares. The margins are in requests in flight.
const (
	// nearlyFull is the share of the KV cache in use from which a replica is
	// avoided: the next prompt would push out running requests.
	nearlyFull = 0.9
	// kvSlack is the difference in KV use that does not count: a scrape is up to
	// a second old.
	kvSlack = 0.1
	// extendsMargin is how many requests more than the least loaded replica the
	// home of a continued history may have: reading a history again costs more
	// than waiting beside two others.
	extendsMargin = 2
	// parentMargin is the same for a parent's home. A sub-agent shares little
	// with its parent, and a fan-out has to spread.
	parentMargin = 1
)

// affinity keeps a conversation where its cache is: it places new ones on the
// least loaded replica, keeps them there while it can serve, and spills only
// when the home has the spill threshold in flight and another has fewer.
type affinity struct{}

func (p affinity) choose(c *Core, q *query) choice {
	if q.home == None {
		return p.place(c, q)
	}
	f, why := c.fateAt(q)
	switch f {
	case leaves:
		ch := c.to(p.lightest(c, c.field(q.among)))
		ch.why, ch.compared = why, true
		return ch
	case spills:
		return p.spill(c, q, c.field(q.among), why)
	}
	full := c.pressure(q.home)
	if full < float64(c.spillThreshold()) {
		return c.to(q.home)
	}
	fewer := slices.DeleteFunc(c.field(q.among), func(i int) bool { return c.pressure(i) >= full })
	if len(fewer) == 0 {
		ch := c.to(q.home)
		ch.why, ch.compared = HomeFull, true
		return ch
	}
	return p.spill(c, q, fewer, HomeFull)
}

// place chooses for a request without a home: where there is something to find
// in the cache, while that place has room, else the lightest.
func (p affinity) place(c *Core, q *query) choice {
	lowest := c.pressure(q.among[0])
	for _, i := range q.among {
		lowest = min(lowest, c.pressure(i))
	}
	welcome := func(i int, margin float64) bool {
		return slices.Contains(q.among, i) && p.hasRoom(c, i) && c.pressure(i) <= lowest+margin
	}
	ch := choice{}
	switch {
	case q.key == (Key{}):
		ch = c.to(p.lightest(c, c.field(q.among)))
	case welcome(q.extends, extendsMargin):
		ch = c.to(q.extends)
	case welcome(q.parent, parentMargin):
		ch = c.to(q.parent)
	default:
		f := c.field(q.among)
		if q.lastServer != None {
			f = f.prefer(func(i int) bool { return c.replicas[i].server == q.lastServer && welcome(i, extendsMargin) })
		}
		ch = c.to(p.lightest(c, f))
	}
	ch.compared = true
	return ch
}

// spill chooses where a request goes that its home cannot take now: where the
// conversation spilled last, which holds its history up to then, else the
// lightest.
func (p affinity) spill(c *Core, q *query, f field, why Why) choice {
	to := q.lastSpill
	if !slices.Contains(f, to) || !p.hasRoom(c, to) {
		to = p.lightest(c, f)
	}
	ch := c.to(to)
	ch.spill, ch.why, ch.compared = true, why, true
	return ch
}

// hasRoom tells whether a replica can take a request that could go elsewhere.
func (affinity) hasRoom(c *Core, i int) bool {
	return c.pressure(i) < float64(c.spillThreshold()) && !(c.replicas[i].kvUsed() >= nearlyFull)
}

// lightest compares replicas in this order:
//
//  1. room: under the spill threshold and the KV cache not nearly full;
//  2. requests in flight, which are exact and the gateway's own;
//  3. context of the live conversations, in steps of half a mean conversation,
//     so that small differences in length do not count;
//  4. live conversations;
//  5. KV use, which is a second old and mostly follows from 2;
//  6. the least recently chosen.
func (p affinity) lightest(c *Core, f field) int {
	mean := c.homes.meanContext()
	f = f.prefer(func(i int) bool { return p.hasRoom(c, i) })
	f = f.least(0, c.pressure)
	f = f.least(mean/2, func(i int) float64 { return c.homes.at(i).weight(mean) })
	f = f.least(0, func(i int) float64 { return float64(c.homes.at(i).live) })
	f = f.least(kvSlack, func(i int) float64 { return c.replicas[i].kvUsed() })
	return c.leastRecent(f)
}
