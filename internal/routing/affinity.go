package routing

import "slices"

// How affinity weighs what it compares. The margins are in requests in flight.
const (
	// nearlyFull is the share of the KV cache in use from which a replica is
	// avoided: the next prompt would push out running requests.
	nearlyFull = 0.9
	// historyMargin is how many requests more than the lightest replica the one
	// that holds a history may have: reading a history again costs more than
	// waiting beside two others.
	historyMargin = 2
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
		return compared(c, p.place(c, q), false, "") // the reason will be placed or unbound
	}
	f, why := c.fateAt(q)
	switch f {
	case leaves:
		return compared(c, p.place(c, q), false, why)
	case spills:
		return compared(c, p.spill(c, q), true, why)
	}
	full := c.pressure(q.home)
	if full < float64(c.spillThreshold()) && !q.crowds {
		return c.to(q.home)
	}
	// A replica with room has fewer. If none has room, the lightest is the one
	// with the least in flight.
	if to := p.spill(c, q); c.pressure(to) < full {
		return compared(c, to, true, HomeFull)
	}
	return compared(c, q.home, false, HomeFull)
}

func compared(c *Core, replica int, spill bool, why Why) choice {
	ch := c.to(replica)
	ch.spill, ch.why, ch.compared = spill, why, true
	return ch
}

// place chooses a home: where there is something to find in the cache, while
// that place has room, else the lightest. What there is to find, the most first:
// the conversation's own history up to its last spill, the history that it
// continues, what it shares with its parent, and its own history on a server
// whose engine chose the rank.
func (p affinity) place(c *Core, q *query) int {
	lightest := p.lightest(c, q.among)
	if q.key == (Key{}) {
		return lightest
	}
	least := c.pressure(lightest)
	welcome := func(i int, margin float64) bool {
		return c.eligible(q, i) && p.hasRoom(c, i) && c.pressure(i) <= least+margin
	}
	if welcome(q.lastSpill, historyMargin) {
		return q.lastSpill
	}
	if welcome(q.extends, historyMargin) {
		return q.extends
	}
	if welcome(q.parent, parentMargin) {
		return q.parent
	}
	if q.lastServer != None {
		ranks := slices.DeleteFunc(slices.Clone(q.among), func(i int) bool { return c.replicas[i].server != q.lastServer })
		if len(ranks) > 0 {
			if i := p.lightest(c, ranks); welcome(i, historyMargin) {
				return i
			}
		}
	}
	return lightest
}

// spill chooses where a request goes that its home cannot take now: where the
// conversation spilled last, which holds its history up to then, else the
// lightest.
func (p affinity) spill(c *Core, q *query) int {
	if c.eligible(q, q.lastSpill) && p.hasRoom(c, q.lastSpill) {
		return q.lastSpill
	}
	return p.lightest(c, q.among)
}

// lightest is the best standing among candidates.
func (p affinity) lightest(c *Core, among []int) int {
	by := scale{full: float64(c.spillThreshold()), perToken: 1 / c.homes.meanContext()}
	var a, b standing // filled in turn: copying them would cost more than the comparison
	best, next := &a, &b
	best.fill(c, among[0], &by)
	for _, i := range among[1:] {
		if next.fill(c, i, &by); next.before(best) {
			best, next = next, best
		}
	}
	return best.replica
}

// standing is what placement compares of a replica.
type standing struct {
	replica int
	// room is set under the spill threshold while the KV cache is not nearly full.
	room bool
	// pressure is the requests in flight: exact, and the gateway's own.
	pressure float64
	// context is that of the live conversations, in mean conversations and
	// rounded, so that small differences in length do not count.
	context int64
	live    int
	// kv is up to a second old and mostly follows from pressure.
	kv     float64
	chosen uint64
}

// scale is what standings are measured by: the same for all replicas.
type scale struct {
	full     float64 // requests in flight that leave no room
	perToken float64 // conversations of mean context
}

func (s *standing) fill(c *Core, i int, by *scale) {
	r, held := c.replicas[i], &c.homes.held[i]
	share := c.servers[r.server].share()
	s.replica, s.chosen = i, r.chosen
	s.pressure, s.kv = r.pressure(share), r.kvUsed(share)
	s.room = s.pressure < by.full && !(s.kv >= nearlyFull)
	s.context, s.live = int64(held.weight(by.perToken)+0.5), held.live
}

// hasRoom tells whether a replica can take a request that could go elsewhere.
func (affinity) hasRoom(c *Core, i int) bool {
	var s standing
	s.fill(c, i, &scale{full: float64(c.spillThreshold())})
	return s.room
}

// before compares in this order: room, requests in flight, live context, live
// conversations, KV use where both are known, and the least recently chosen,
// which spreads a burst and lets idle replicas take turns.
func (s *standing) before(o *standing) bool {
	switch {
	case s.room != o.room:
		return s.room
	case s.pressure != o.pressure:
		return s.pressure < o.pressure
	case s.context != o.context:
		return s.context < o.context
	case s.live != o.live:
		return s.live < o.live
	case s.kv < o.kv || s.kv > o.kv:
		return s.kv < o.kv
	}
	return s.chosen < o.chosen
}
