package routing

// off leaves the choice to the engine's own balancer. Several servers take turns
// by least in flight (per replica, so that a server of four ranks gets four
// times as much as a server of one). No home is given, used or changed.
type off struct{}

func (off) choose(c *Core, q *query) choice {
	perReplica := func(i int) float64 {
		s := &c.servers[c.replicas[i].server]
		return float64(s.inFlight) / float64(len(s.replicas))
	}
	lastTurn := func(i int) float64 { return float64(c.servers[c.replicas[i].server].chosen) }
	i := c.field(q.among).least(0, perReplica).least(0, lastTurn)[0]
	ch := c.to(i)
	ch.toEngine = true
	if len(c.servers[ch.server].replicas) > 1 {
		ch.replica = None
	}
	return ch
}
