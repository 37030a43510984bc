package bench

import "time"

// restAfterFailure keeps a client whose turn failed at once from hammering a
// system that refuses everything.
const restAfterFailure = time.Second

// load is the closed loop of one step: so many clients, each with one session at
// a time.
type load struct {
	system   System
	workload Workload
	place    Place // of the step
	clients  int

	begun   int  // sessions
	active  int  // clients that have a session
	closing bool // no session begins any more
	over    bool // nothing begins any more: what ends now was cut

	records []Record
	ended   []EndedSession
}

func newLoad(s System, w Workload, p Place, clients int) *load {
	return &load{system: s, workload: w, place: p, clients: clients}
}

// start begins every client's first session.
func (l *load) start() {
	for i := range l.clients {
		l.active++
		l.nextSession(i, 0)
	}
}

// idle says that no client has anything left to do.
func (l *load) idle() bool { return l.active == 0 }

// nextSession runs a client's n-th session and then the next one.
func (l *load) nextSession(client, n int) {
	place := l.place
	place.Client, place.N, place.Order = client, n, l.begun
	session, ok := Session{}, false
	if !l.closing && !l.over {
		session, ok = l.workload.Session(place)
	}
	if !ok {
		l.active--
		return
	}
	l.begun++
	from := l.system.Now()
	c := conversation{load: l, client: client, session: session}
	c.ended = func(finished bool) {
		rest := time.Duration(0)
		if finished {
			l.ended = append(l.ended, EndedSession{session.Key, from, l.system.Now()})
		} else if !l.over {
			rest = restAfterFailure
		}
		l.after(rest, func() { l.nextSession(client, n+1) })
	}
	c.next()
}

// after does something later, or at once when there is nothing to wait for.
func (l *load) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	l.system.After(d, do)
}

// conversation is a session, or a sub-agent of one, on its way through its turns.
type conversation struct {
	load    *load
	client  int
	session Session
	parent  uint64
	ended   func(finished bool)

	turn    int // the next one
	waiting int // sub-agents that have not ended
}

// next sends the next turn, after its think time.
func (c *conversation) next() {
	if c.load.over {
		return
	}
	if c.turn == c.session.Turns {
		c.ended(true)
		return
	}
	t := c.session.Turn(c.turn)
	c.turn++
	c.load.after(t.Think, func() { c.send(t) })
}

func (c *conversation) send(t Turn) {
	l := c.load
	if l.over {
		return
	}
	for _, b := range t.Beside {
		l.system.Send(Request{Turn: b}, func(r Result) {
			l.records = append(l.records, Record{Client: c.client, Result: r})
		})
	}
	record := Record{Session: c.session.Key, Parent: c.parent, Client: c.client, N: c.turn, Known: t.Known}
	l.system.Send(Request{Session: c.session.Key, Parent: c.parent, Turn: t, Last: c.turn == c.session.Turns}, func(r Result) {
		record.Result = r
		l.records = append(l.records, record)
		switch {
		case r.End == Failed:
			c.ended(false)
		case r.End == Cut || l.over:
		case len(t.Agents) > 0:
			c.fanOut(t.Agents)
		default:
			c.next()
		}
	})
}

// fanOut runs sub-agents at once; the conversation goes on when all have ended,
// whether well or not.
func (c *conversation) fanOut(agents []Session) {
	c.waiting = len(agents)
	for _, a := range agents {
		agent := conversation{load: c.load, client: c.client, session: a, parent: c.session.Key}
		agent.ended = func(bool) {
			if c.waiting--; c.waiting == 0 {
				c.next()
			}
		}
		agent.next()
	}
}
