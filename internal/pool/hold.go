package pool

import (
	"context"
	"hash/fnv"
	"time"

	"lmwarden/internal/routing"
)

// Stopping is why a gateway that stops refuses what it still holds.
const Stopping routing.Why = "gateway stopping"

// heldPlace is what the core said of a request when it held it.
type heldPlace struct {
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
			p.hold(to, a)
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
func (p *Pool) hold(l *Lease, a routing.Action) {
	l.place = heldPlace{a.Position, a.Wait}
	l.refused = p.closed
	if l.wake != nil || p.closed != nil {
		return
	}
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
