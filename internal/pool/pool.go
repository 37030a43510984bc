// Package pool holds the replicas of each model at run time: their state, their
// load and the leases on them. It drives the routing core in real time: it
// serialises the calls, carries out the actions, and turns what engines report
// into what the core observes. It reads no request and writes no answer.
package pool

import (
	"context"
	"net/url"
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
}

// Pool is all replicas of one model. Safe for concurrent use.
type Pool struct{}

// Acquire chooses a replica and takes a lease on it. The error is a *Refused
// when no replica can serve, or ctx's cause when the client left first.
func (p *Pool) Acquire(ctx context.Context, r Request) (*Lease, error) { return nil, nil }

// Lease is one request's hold on a replica.
type Lease struct{}

// Target is where an attempt goes.
type Target struct {
	Base *url.URL // of the server, without a trailing slash; do not modify
	// Rank is the value of X-data-parallel-rank, or routing.None to send none.
	Rank int
	// Key is the engine's API key, empty for none.
	Key string
}

// Decision is the choice in force, with its receipt.
func (l *Lease) Decision() routing.Decision { return routing.Decision{} }

// Target is where the attempt in force goes.
func (l *Lease) Target() Target { return Target{} }

// FirstByte says that the answer's body began.
func (l *Lease) FirstByte() {}

// Retry says that the attempt failed before its first byte and asks for another
// failure domain; err is why (a dial error or a reset marks the whole server
// down until a probe succeeds; any other cause leaves its state alone). It
// returns a *Refused when there is no further replica; the lease must be ended
// in any case.
func (l *Lease) Retry(err error) error { return nil }

// End releases the lease. Only the first call counts.
func (l *Lease) End(o routing.Outcome) {}

// Refused is why no replica takes a request.
type Refused struct {
	Why        routing.Why
	RetryAfter time.Duration // 0 when not said
}

func (e *Refused) Error() string { return string(e.Why) }

// View is a pool at one moment, a copy.
type View struct {
	Name, ServedName string
	Aliases          []string
	Since            time.Time // the counters run since then
	Routing          routing.View
	Replicas         []ReplicaView
	Servers          []ServerView
}

// ReplicaView adds to the core's row what only the pool knows.
type ReplicaView struct {
	URL  string
	Rank int // routing.None when the replica has a URL of its own
	routing.ReplicaView
	// PrefixHitPercent is the engine's own prefix-cache hit rate since the gateway
	// first saw it (this epoch), 0..100; NaN when not measured.
	PrefixHitPercent float64
	ScrapeAge        time.Duration // since the last good scrape; negative before the first
}

// ServerView is one engine process.
type ServerView struct {
	URL   string
	Info  engine.Info
	Error string // why the last probe or scrape failed; empty when it did not
	// Blind lists the paths on which this server ignores the rank header although
	// it has several ranks.
	Blind []string
}

// View copies the pool's state.
func (p *Pool) View() View { return View{} }

// Receipt is one decision for the decisions log.
type Receipt struct {
	Time         time.Time
	RequestID    string
	Conversation string
	Decision     routing.Decision
}

// Receipts returns the newest n receipts, newest first.
func (p *Pool) Receipts(n int) []Receipt { return nil }

// SetPolicy switches the policy by name. SetAffinity(true) restores the last
// policy that was not "off".
func (p *Pool) SetPolicy(name string) error { return nil }

// SetAffinity switches between "off" and the last other policy.
func (p *Pool) SetAffinity(on bool) error { return nil }

// SetSpillThreshold sets the threshold; 0 means automatic.
func (p *Pool) SetSpillThreshold(n int) error { return nil }

// Drain stops new conversations on a replica; Resume takes it back. The error
// names the replicas that exist.
func (p *Pool) Drain(replica int) error { return nil }

// Resume ends a drain.
func (p *Pool) Resume(replica int) error { return nil }

// Release forgets a conversation's home, Move gives it another, Home tells it.
func (p *Pool) Release(k routing.Key) bool { return false }

func (p *Pool) Move(k routing.Key, replica int) error { return nil }

func (p *Pool) Home(k routing.Key) (routing.Home, bool) { return routing.Home{}, false }

// Set is the pools of a gateway, by the names that clients use.
type Set struct{}

// Lookup finds the pool for a name as a client sent it: the model's name, an
// exact alias, a served name, then a glob alias. An empty name finds the only
// pool there is.
func (s *Set) Lookup(model string) (*Pool, bool) { return nil, false }

// Pools lists the pools in the order of the configuration.
func (s *Set) Pools() []*Pool { return nil }
