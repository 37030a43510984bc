package pool

import (
	"context"
	"hash/fnv"
	"time"

	"lmwarden/internal/routing"
)

const (
	// Stopping is why a gateway that stops refuses what it still holds.
	Stopping routing.Why = "gateway stopping"
	// WaitedLong is why a request is refused that was held for twice Limits.Wait:
	// what it waits for does not end.
	WaitedLong routing.Why = "waited too long"
)

// Limits.Wait when it is not set, and when who waited that long may come back.
const (
	defaultWait   = 5 * time.Minute
	maxRetryAfter = 30 * time.Second
)

// heldPlace is when the core held a request, and what it said of it then.
type heldPlace struct {
	since    time.Time
	position int
	wait     time.Duration
}

// tenantKey is how the core tells the holders of API keys apart.
func tenantKey(name string) (k routing.Key) {
	if name == "" {
		return k
	}
	h := fnv.New128a()
	h.Write([]byte(name))
	h.Sum(k[:0])
	return k
}

func classOf(r Request) routing.Class {
	if r.Batch {
		return routing.Batch
	}
	return routing.Interactive
}

// carryOut does what the core orders. Orders for requests other than l are for
// held ones; a request that left in the meantime needs nothing. Callers hold mu.
func (p *Pool) carryOut(now time.Time, l *Lease, actions []routing.Action) {
	for _, a := range actions {
		to := l
		if to == nil || to.id != a.ID {
			to = p.held[a.ID]
		}
		if to == nil {
			continue
		}
		switch a.Kind {
		case routing.Hold:
			p.hold(now, to, a)
			continue
		case routing.Dispatch:
			p.send(now, to, a.Decision)
		case routing.Refuse:
			to.refused = &Refused{Why: a.Why, RetryAfter: a.RetryAfter}
		}
		p.release(to)
	}
}

// hold lets a request wait.
func (p *Pool) hold(now time.Time, l *Lease, a routing.Action) {
	l.refused = p.closed
	if l.wake != nil || p.closed != nil {
		return
	}
	l.place = heldPlace{now, a.Position, a.Wait}
	l.wake = make(chan struct{})
	p.held[l.id] = l
	if len(p.held) == 1 {
		select {
		case p.holding <- struct{}{}:
		default:
		}
	}
}

// release lets a held request go on.
func (p *Pool) release(l *Lease) {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
		delete(p.held, l.id)
	}
}

// await returns when the request may be sent, was refused, or its client left.
func (l *Lease) await(wake <-chan struct{}) error {
	if wake != nil {
		if err := l.wait(wake); err != nil {
			return err
		}
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	switch {
	case l.sent:
		return nil
	case l.refused != nil:
		return l.refused
	}
	return &Refused{Why: routing.NoReplica} // the core gave no answer
}

func (l *Lease) wait(wake <-chan struct{}) error {
	var beats <-chan time.Time
	if l.req.Beat != nil && l.req.BeatEvery > 0 {
		t := time.NewTicker(l.req.BeatEvery)
		defer t.Stop()
		beats = t.C
	}
	for {
		select {
		case <-wake:
			return nil
		case <-l.ctx.Done():
			return context.Cause(l.ctx)
		case <-beats:
			if err := l.req.Beat(); err != nil {
				return err
			}
		}
	}
}

// tickHeld lets time pass in a core that holds requests, and says whether it
// does.
func (p *Pool) tickHeld() bool {
	p.mu.Lock()
	defer p.unlock()
	if len(p.held) == 0 {
		return false
	}
	now := time.Now()
	p.carryOut(now, nil, p.core.Tick(now))
	return true
}

// expireHeld refuses what was held for too long. Callers hold mu.
func (p *Pool) expireHeld(now time.Time) {
	for _, l := range p.held {
		if now.Sub(l.place.since) > 2*p.configured.Limits.Wait {
			l.refused = &Refused{Why: WaitedLong, RetryAfter: maxRetryAfter}
			p.release(l)
		}
	}
}

// close refuses what is held, and what would be from now on. Leases go on to
// their end.
func (p *Pool) close(why routing.Why) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = &Refused{Why: why, RetryAfter: time.Second}
	for _, l := range p.held {
		l.refused = p.closed
		p.release(l)
	}
}

// RefuseHeld refuses, with the reason Stopping, what waits, and what would have
// to from now on. It is for a gateway that stops and has waited long enough.
func (s *Set) RefuseHeld() {
	for _, p := range s.Pools() {
		p.close(Stopping)
	}
}
