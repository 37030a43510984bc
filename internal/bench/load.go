package bench

import (
	"math/rand/v2"
	"time"
)

// restAfterFailure keeps a client whose turn failed at once from hammering a
// system that refuses everything.
const restAfterFailure = time.Second

// load is that of one step: so many clients, each with one session at a time. In
// a closed loop a client begins its next session when the one before has ended,
// in an open one when a session has arrived that no other client has taken.
type load struct {
	system   System
	workload Workload
	place    Place // of the step
	clients  int

	begun     int   // sessions
	had       []int // sessions by client
	active    int   // clients that have a session
	exhausted bool  // the workload has no more sessions
	closing   bool  // no session begins any more
	over      bool  // nothing begins any more: what ends now was cut

	// Of an open loop.
	arrivals *rand.Rand
	every    time.Duration   // mean time between two arrivals; 0 is a closed loop
	due      []time.Duration // when the sessions arrived that no client has taken
	free     []int           // clients without a session

	records []Record
	ended   []EndedSession
}

func newLoad(s System, w Workload, p Place, clients int) *load {
	seed := contentID(p.Seed, uint64(p.Draw), uint64(p.Step))
	return &load{
		system: s, workload: w, place: p, clients: clients, had: make([]int, clients),
		arrivals: rand.New(rand.NewPCG(seed, p.Seed)),
	}
}

// start begins every client's first session, or waits for the first to arrive.
func (l *load) start() {
	for i := range l.clients {
		if l.every > 0 {
			l.free = append(l.free, i)
		} else {
			l.begin(i, l.system.Now())
		}
	}
	if l.every > 0 {
		l.awaitArrival()
	}
}

// idle says that no client has anything left to do.
func (l *load) idle() bool {
	return l.active == 0 && (l.every == 0 || l.exhausted || l.closing)
}

// close lets no further session begin. One that has arrived and found no client
// counts as cut: leaving it out would hide the longest waits.
func (l *load) close() {
	l.closing = true
	for _, due := range l.due {
		l.records = append(l.records, Record{Client: nobody, Result: Result{
			End: Cut, Sent: due, First: -1, Token: -1, Last: -1, Prompt: -1, Cached: -1, Output: -1, Replica: -1,
		}})
	}
	l.due = nil
}

// nobody is the client of a session that found none.
const nobody = -1

// awaitArrival lets sessions arrive, one after the other, however busy the system
// is.
func (l *load) awaitArrival() {
	l.system.After(time.Duration(l.arrivals.ExpFloat64()*float64(l.every)), func() {
		if l.closing || l.over || l.exhausted {
			return
		}
		l.due = append(l.due, l.system.Now())
		l.takeDue()
		l.awaitArrival()
	})
}

// takeDue gives the sessions that have arrived to the free clients.
func (l *load) takeDue() {
	for len(l.due) > 0 && len(l.free) > 0 {
		client, from := l.free[0], l.due[0]
		l.free, l.due = l.free[1:], l.due[1:]
		l.begin(client, from)
	}
}

// begin runs a client's next session, which was to begin at from, and then the
// one after it.
func (l *load) begin(client int, from time.Duration) {
	if l.closing || l.over {
		return
	}
	place := l.place
	place.Client, place.N, place.Order = client, l.had[client], l.begun
	session, ok := l.workload.Session(place)
	if !ok {
		l.exhausted, l.due = true, nil
		return
	}
	l.begun++
	l.had[client]++
	l.active++
	c := conversation{load: l, client: client, session: session, due: from}
	c.ended = func(finished bool) {
		rest := time.Duration(0)
		if finished {
			l.ended = append(l.ended, EndedSession{session.Key, from, l.system.Now()})
		} else if !l.over {
			rest = restAfterFailure
		}
		l.after(rest, func() { l.leave(client) })
	}
	c.next()
}

// leave ends a client's session.
func (l *load) leave(client int) {
	l.active--
	if l.every > 0 {
		l.free = append(l.free, client)
		l.takeDue()
		return
	}
	l.begin(client, l.system.Now())
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
	// due is when the first turn was to be sent; what a client waits from there is
	// its own, even where the turn had to wait for the client.
	due   time.Duration
	ended func(finished bool)

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
		if record.N == 1 && record.Parent == 0 && l.every > 0 {
			record.Sent = c.due
		}
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
