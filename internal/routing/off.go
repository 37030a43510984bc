package routing

import "cmp"

// off leaves the choice to the engine's own balancer. Several servers take turns
// by least in flight (per replica, so that a server of four ranks gets four
// times as much as a server of one). No home is given, used or changed.
type off struct{}

func (off) choose(c *Core, q *query) choice {
	of := func(i int) *server { return c.servers[c.replicas[i].server] }
	load := func(s *server) float64 { return float64(s.inFlight) / float64(len(s.replicas)) }
	ch := c.to(c.best(q.among, func(a, b int) int {
		x, y := of(a), of(b)
		if order := cmp.Compare(load(x), load(y)); order != 0 {
			return order
		}
		return cmp.Compare(x.chosen, y.chosen)
	}))
	ch.toEngine = true
	if len(c.servers[ch.server].replicas) > 1 {
		ch.replica = None
	}
	return ch
}
