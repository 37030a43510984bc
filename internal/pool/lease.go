package pool

import (
	"context"
	"errors"
	"net/url"
	"sync/atomic"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// Request is what the data plane knows when a request is complete.
type Request struct {
	ID                   string // the X-Request-Id, for receipts
	Conversation         string // the short name, for receipts; empty for none
	Key, Parent, Extends routing.Key
	Pin                  int    // replica index that the client asked for, or routing.None
	Path                 string // "/v1/responses": engines honour the rank on some paths only
	Tokens               int64  // estimate of the prompt, 0 when unknown
	Light                bool   // as in routing.Request
	MaxOutput            int64  // tokens, 0 when the client does not limit it
	Whole                bool   // the answer comes in one piece
	Tenant               string // the name of the client's API key, empty for none
	Batch                bool   // waits behind the requests that are not

	// Beat, if not nil, is called each time the request has been held for a further
	// BeatEvery, by the goroutine that waits in Acquire or Retry. An error ends the
	// wait and is what they return.
	Beat      func() error
	BeatEvery time.Duration
}

// Lease is one request's hold on a replica.
type Lease struct {
	p   *Pool
	req Request
	id  routing.RequestID
	// ctx is the request's. A lease is the life of one request, and Retry may
	// have to wait as Acquire does.
	ctx context.Context

	// The rest is guarded by p.mu.
	decision routing.Decision
	// sent is set while an attempt is at the server and replica of the decision;
	// the replica is nil when the engine chooses it.
	sent    bool
	sentAt  time.Time
	server  *server
	replica *replica
	attempt context.Context
	giveUp  context.CancelCauseFunc // ends attempt
	begun   bool                    // the attempt's answer began
	blamed  bool                    // the attempt failed
	// unmarked is set when the answer's end does not tell whether it is whole.
	unmarked bool
	refused  *Refused
	wake     chan struct{} // closed when a held request may go on; nil when it is not held
	place    heldPlace     // in the queue when it was held last
	ended    bool
	heardAt  time.Time // when bytes came last, as of the last tick; at first sentAt

	// heard is set by each byte of the answer, outside the lock, and taken back with
	// each tick.
	heard atomic.Bool
}

// Refused is why no replica takes a request.
type Refused struct {
	Why        routing.Why
	RetryAfter time.Duration // 0 when not said
}

func (e *Refused) Error() string { return string(e.Why) }

// Acquire chooses a replica and takes a lease on it; it waits while the request
// is held. The error is a *Refused when no replica can serve, ctx's cause when
// the client left first, or that of Request.Beat.
func (p *Pool) Acquire(ctx context.Context, r Request) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l := &Lease{p: p, req: r, ctx: ctx}
	p.mu.Lock()
	if p.core == nil {
		p.mu.Unlock()
		return nil, &Refused{Why: routing.NoReplica}
	}
	p.lastID++
	l.id = p.lastID
	now := time.Now()
	p.carryOut(now, l, p.core.Arrive(now, routing.Request{
		ID: l.id, Key: r.Key, Parent: r.Parent, Extends: r.Extends,
		Pin: r.Pin, Blind: p.blindOn(r.Path), Tokens: r.Tokens, Light: r.Light,
		MaxOutput: r.MaxOutput, Whole: r.Whole, Tenant: tenantKey(r.Tenant), Class: classOf(r),
	}))
	wake := l.wake
	p.unlock()

	if err := l.await(wake); err != nil {
		l.End(routing.Outcome{})
		return nil, err
	}
	return l, nil
}

// send puts a decision in force.
func (p *Pool) send(now time.Time, l *Lease, d routing.Decision) {
	l.decision, l.sent, l.refused = d, true, nil
	l.begun, l.blamed, l.unmarked = false, false, false
	l.sentAt, l.heardAt = now, now
	l.letGo()
	l.attempt, l.giveUp = context.WithCancelCause(l.ctx)
	l.server, l.replica = p.servers[d.Server], nil
	l.server.open[l] = struct{}{}
	if d.Replica != routing.None {
		l.replica = p.replicas[d.Replica]
		l.replica.begin(now)
	}
	receipt := Receipt{Time: now, RequestID: l.req.ID, Conversation: l.req.Conversation, Decision: d}
	if d.Held != "" {
		receipt.Position, receipt.Predicted = l.place.position, l.place.wait
	}
	p.receipts.add(receipt)
	s := l.server
	s.learner.Begin(l.req.Path, l.rank())
	if s.try(now, l); s.trial == l {
		p.refresh(now, s)
	}
}

// letGo ends the context of the last attempt. Until then its answer can be read,
// as that of a busy engine is for which no other was found.
func (l *Lease) letGo() {
	if l.giveUp != nil {
		l.giveUp(nil)
	}
}

// listen takes note of the bytes that came since the last time.
func (l *Lease) listen(now time.Time) {
	if !l.heard.Swap(false) {
		return
	}
	l.heardAt = now
	if l.replica != nil {
		l.replica.sign(now)
	}
}

// back takes an attempt from its server.
func (p *Pool) back(now time.Time, l *Lease, answered bool) {
	if !l.sent {
		return
	}
	l.sent = false
	s := l.server
	l.listen(now)
	delete(s.open, l)
	s.learner.End(now, answered)
	if l.replica != nil {
		l.replica.end(now, l.begun)
	}
	if s.trial == l { // it proved nothing: its client left, or the engine was busy
		s.trial = nil
		p.refresh(now, s)
	}
}

// rank is the value of the rank header. A server with one rank gets none: a
// plain server refuses a rank that it does not know.
func (l *Lease) rank() int {
	if l.replica == nil || len(l.server.replicas) == 1 {
		return routing.None
	}
	return l.replica.rank
}

// Target is where an attempt goes.
type Target struct {
	Base *url.URL // of the server, without a trailing slash; do not modify
	// Rank is the value of X-data-parallel-rank, or routing.None to send none.
	Rank int
	// Key is the engine's API key, empty for none.
	Key string

	info   engine.Info
	served string
}

// Model is the name by which to ask this server for a model that the client
// called asked: that name if the server knows it, else the served name; asked
// itself while the server was not heard.
func (t Target) Model(asked string) string {
	if t.served == "" || t.info.Serves(asked) {
		return asked
	}
	return t.served
}

// Context is that of the attempt in force. It ends with the request's own, with
// the lease, and with the cause ErrLost when the attempt is to be given up: no
// connection to its server can be made, and it has been silent, for Options.Stuck.
// That is then an error for Retry or Failed.
func (l *Lease) Context() context.Context {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.attempt
}

// Decision is the choice in force, with its receipt.
func (l *Lease) Decision() routing.Decision {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.decision
}

// Target is where the attempt in force goes.
func (l *Lease) Target() Target {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	s := l.server
	served, _ := l.p.nameOn(s)
	return Target{Base: s.base, Rank: l.rank(), Key: s.key, info: s.last.Info, served: served}
}

// FirstByte says that the answer itself began, so that its prompt has been read: not
// its announcement, and not an error that Failed was told of.
func (l *Lease) FirstByte() {
	p := l.p
	p.mu.Lock()
	defer p.unlock()
	if l.ended || !l.sent || l.begun {
		return
	}
	now := time.Now()
	s, r := l.server, l.replica
	l.begun = true
	changes := s.trial != nil
	if r != nil {
		changes = changes || r.stuck
		r.sign(now)
		r.begun++
	}
	if !l.blamed {
		s.answered()
	}
	if changes {
		p.refresh(now, s)
	}
	p.core.FirstByte(now, l.id)
}

// Progress says that a byte of the answer's body came. It is one store, for use
// with every read.
func (l *Lease) Progress() {
	if !l.heard.Load() {
		l.heard.Store(true)
	}
}

// Failed says that the attempt in force failed through its engine, and how, when
// it is not to be retried: before its first byte or in the midst of its answer,
// or with an answer that says so. Retry does it by itself. The lease must be
// ended nevertheless.
func (l *Lease) Failed(err error) {
	p := l.p
	p.mu.Lock()
	if l.ended || !l.sent {
		p.mu.Unlock()
		return
	}
	s := l.server
	p.blame(time.Now(), l, err)
	p.unlock()
	s.look()
}

// blame takes the failure of the attempt in force.
func (p *Pool) blame(now time.Time, l *Lease, err error) {
	if l.blamed {
		return
	}
	l.blamed = true
	s := l.server
	s.failed(now, l, err)
	if s.gone || errors.Is(err, ErrAborted) {
		p.doubt(now, s)
	}
	p.refresh(now, s)
}

// Retry says that the attempt failed before the client saw a byte of it and asks
// for another failure domain; err is why. A refused or reset connection takes the
// whole server out until a probe succeeds, ErrAborted for some seconds, any other
// failure but ErrBusy and ErrLost when it is one of several in a row. It returns
// a *Refused when there is no further replica, or the cause of the context of
// Acquire; the lease must be ended in any case.
func (l *Lease) Retry(err error) error {
	p := l.p
	p.mu.Lock()
	if l.ended || !l.sent {
		p.mu.Unlock()
		return &Refused{Why: routing.Failed}
	}
	now := time.Now()
	s := l.server
	p.blame(now, l, err)
	p.back(now, l, false)
	p.carryOut(now, l, p.core.Retry(now, l.id))
	wake := l.wake
	p.unlock()

	if !errors.Is(err, ErrBusy) {
		s.look()
	}
	return l.await(wake)
}

// End releases the lease. Only the first call counts.
func (l *Lease) End(o routing.Outcome) {
	p := l.p
	p.mu.Lock()
	defer p.unlock()
	if l.ended {
		return
	}
	l.ended = true
	now := time.Now()
	if l.sent && o.OK {
		l.server.doubts.note(now, l)
	}
	p.back(now, l, o.OK && o.Known && o.Prompt > 0)
	l.letGo()
	p.release(l)
	p.carryOut(now, nil, p.core.Finish(now, l.id, o))
}
