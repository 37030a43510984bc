package routing

// roundRobin lets the replicas take turns, one request each, wherever the
// conversation was. The home follows the last turn.
type roundRobin struct{}

func (roundRobin) choose(c *Core, q *query) choice {
	return c.anywhere(q, c.best(q.among, func(a, b int) int { return 0 }))
}
