package routing

// leastInFlight sends every request to the replica with the least in flight,
// wherever its conversation was. The home follows the last turn.
type leastInFlight struct{}

func (leastInFlight) choose(c *Core, q *query) choice {
	return c.anywhere(q, c.best(q.among, c.byPressure))
}

// anywhere is the choice of a policy that does not look at homes.
func (c *Core) anywhere(q *query, replica int) choice {
	ch := c.to(replica)
	ch.compared, ch.why = true, ByPolicy
	if q.home != None {
		if _, why := c.fateAt(q); why != "" {
			ch.why = why
		}
	}
	return ch
}
