package routing

import "time"

// departure is an answer after which a conversation may come back.
type departure struct {
	of row
	at time.Duration
}

// departures are the latest answers, for as long as a place may be kept: those
// before next no longer have one. None from before since is listed.
type departures struct {
	list  []departure
	next  int
	since time.Duration
}

// maxDepartures bounds them: more come in ten seconds only where no cache is
// short.
const maxDepartures = 4096

// leave notes that a conversation was answered on replica i, and keeps its
// place there as long as that is worth it.
func (c *Core) leave(v *conversation, i int) {
	d := &c.departures
	if len(d.list) == maxDepartures {
		if d.next == 0 {
			c.giveFree(d.list[0])
		}
		d.list, d.next = d.list[1:], max(d.next-1, 0)
		d.since = d.list[0].at
	}
	v.away, v.left = true, c.clock.now
	d.list = append(d.list, departure{v.row, c.clock.now})
	if c.hold > 0 {
		c.keepPlace(v, i, 0)
	}
}

// keepWeight makes a place count whole until the chance of a return is below
// 1/keepWeight. Its source is the same search as that of patience's constants.
const keepWeight = 1.2

// keepPlace keeps so much of v's place on replica i as it is likely to be taken up
// again, after v has been away for so long.
func (c *Core) keepPlace(v *conversation, i int, away time.Duration) {
	chance := c.gaps.returns(time.Duration(float64(away-lateBy) / lateFactor))
	c.homes.keep(v, i, int64(min(keepWeight*chance, 1)*float64(v.cached)))
}

// fadePlaces keeps less of each place as the chance of a return falls.
func (c *Core) fadePlaces() {
	for _, d := range c.departures.list[c.departures.next:] {
		if v := c.departed(d); v != nil && v.keptAt != None {
			c.keepPlace(v, int(v.keptAt), c.clock.now-d.at)
		}
	}
}

// comeBack learns how long a conversation was away. One whose departure found no
// place in the list teaches nothing, since its staying away would not have either.
func (c *Core) comeBack(v *conversation) {
	if v.away {
		v.away = false
		if v.left >= c.departures.since {
			c.learned.gaps.add(c.clock.now - v.left)
		}
	}
}

// passDepartures gives places free that were kept long enough, and takes those
// that stayed away for longer than any place is kept as gone.
func (c *Core) passDepartures() {
	d := &c.departures
	for ; d.next < len(d.list) && d.list[d.next].at+c.hold <= c.clock.now; d.next++ {
		c.giveFree(d.list[d.next])
	}
	gone := 0
	for ; gone < d.next && d.list[gone].at+maxHold <= c.clock.now; gone++ {
		if v := c.departed(d.list[gone]); v != nil {
			c.comeBack(v)
		}
	}
	if gone > 0 {
		d.list, d.next = d.list[gone:], d.next-gone
	}
}

// giveFree gives the place of a departure free.
func (c *Core) giveFree(d departure) {
	if v := c.departed(d); v != nil {
		c.homes.unkeep(v)
	}
}

// departed is the conversation of a departure, nil when it has come back or was
// forgotten since. Another one in its row can have left at the same moment only
// with a departure of its own there, which is then the same.
func (c *Core) departed(d departure) *conversation {
	if v := c.homes.at(d.of); v.away && v.left == d.at {
		return v
	}
	return nil
}
