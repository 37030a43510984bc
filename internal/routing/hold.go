package routing

import (
	"fmt"
	"time"
)

// Limits bound what patience holds. 0 means automatic throughout.
type Limits struct {
	// Patience is how long a request waits before the next free replica is kept
	// for it. Automatic follows from what the core learned, at most Wait.
	Patience time.Duration
	// Waiting is how many requests may wait; automatic is 1000.
	Waiting int
	// Wait is the longest wait that may be predicted; automatic is 5 minutes.
	Wait time.Duration
}

const (
	defaultWaiting = 1000
	defaultWait    = 5 * time.Minute
)

// SetLimits takes effect with the next request. It fails on a negative value.
func (c *Core) SetLimits(l Limits) error {
	if l.Patience < 0 || l.Waiting < 0 || l.Wait < 0 {
		return fmt.Errorf("patience of %v, %d waiting, wait of %v: none may be negative", l.Patience, l.Waiting, l.Wait)
	}
	c.limits = l
	return nil
}

// decideOrHold decides, unless the policy lets q wait: then the kind of the
// action is Hold, and it says why. It changes nothing.
func (c *Core) decideOrHold(q *request) (Decision, Action) {
	if !c.patient() || !q.mayWait() {
		d, refusal := c.decide(q)
		return d, verdict(q, refusal)
	}
	in, refusal := c.query(q)
	if refusal != "" {
		return Decision{}, verdict(q, refusal)
	}
	if ch, ok := (patience{}).arrive(c, q, &in); ok {
		return c.decision(q, &in, ch), verdict(q, "")
	}
	return Decision{}, c.holdOrRefuse(q, &in)
}

// verdict is a dispatch, or a refusal that says why.
func verdict(q *request, refusal Why) Action {
	if refusal != "" {
		return Action{Kind: Refuse, ID: q.ID, Why: refusal}
	}
	return Action{Kind: Dispatch, ID: q.ID}
}

// holdOrRefuse holds q, or refuses it when too much waits. A request that was
// sent before is not refused.
func (c *Core) holdOrRefuse(q *request, in *query) Action {
	a := Action{Kind: Hold, ID: q.ID, Why: NoRoom}
	if in.home != None && c.uncached(q, in.home) < q.prompt/2 {
		a.Why = HomeBusy
	}
	if q.decision.Reason != "" {
		return a
	}
	// The first to wait is not refused for how long that may be: nobody is before it.
	waiting := len(c.queue.waiters)
	wait := c.predicted(waiting + 1)
	if waiting >= orDefault(c.limits.Waiting, defaultWaiting) || waiting > 0 && wait > orDefault(c.limits.Wait, defaultWait) {
		return Action{Kind: Refuse, ID: q.ID, Why: QueueFull, RetryAfter: min(max(wait, time.Second), 30*time.Second)}
	}
	return a
}

// enqueue holds q.
func (c *Core) enqueue(q *request, a Action) Action {
	q.held, q.queued, c.lastHeld = a.Why, c.clock.now, c.clock.now
	a.Position = c.queue.add(q) + 1
	a.Wait = c.predicted(a.Position)
	return a
}

// turnAway refuses a request that waits.
func (c *Core) turnAway(q *request, why Why) Action {
	c.queue.remove(q)
	return verdict(q, why)
}

// predicted is how long a request at a place of the queue is likely to wait: of
// those that start, so many waited. 0 while that is not known.
func (c *Core) predicted(position int) time.Duration {
	x := c.throughput() * max(c.learned.waited.or(waitingShare), waitingShare/4)
	if x <= 0 {
		return 0
	}
	return time.Duration(float64(position) / x * float64(time.Second))
}

// admit starts the waiting requests that may start now: all of them when the
// policy holds none.
func (c *Core) admit() []Action {
	clear(c.claims)
	if len(c.queue.waiters) == 0 {
		return nil
	}
	if c.patient() {
		return patience{}.admit(c)
	}
	var actions []Action
	for len(c.queue.waiters) > 0 {
		q := c.queue.waiters[0].q
		d, refusal := c.decide(q)
		if refusal != "" {
			actions = append(actions, c.turnAway(q, refusal))
			continue
		}
		actions = append(actions, c.letGo(q, d)...)
	}
	return actions
}

// letGo dispatches a request that waited.
func (c *Core) letGo(q *request, d Decision) []Action {
	c.queue.remove(q)
	c.learned.waited.add(1, 1.0/64)
	d.Waited, d.Held = c.clock.now-q.queued, q.held
	return []Action{c.dispatch(q, d)}
}

// mayWait tells whether q may be held. What the client ordered goes where it
// said; what the engine answers beside its scheduler takes no room; where an
// engine's balancer chooses, the core cannot.
func (q *request) mayWait() bool {
	if q.Pin != None || q.Light {
		return false
	}
	for _, blind := range q.Blind {
		if blind {
			return false
		}
	}
	return true
}
