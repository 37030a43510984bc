// Package bench measures what routing policies do to a workload: it lets sessions
// run in a closed loop, step by step of concurrency and arm by arm, and turns
// what the clients saw into the figures of package results.
//
// A Workload makes the sessions, a Protocol runs them, a System serves them.
// Protocol and measures are the same for every System; Simulate is the one in
// virtual time, with the gateway's own decision core (package routing) in front
// of modelled engines (package enginesim).
//
// Everything runs on one goroutine per System: callbacks never overlap.
package bench

import (
	"context"
	"time"
)

// System is what is measured, with its clock: replicas behind a router, in
// virtual time or live. Times are since its start.
type System interface {
	// Switch brings an arm into force. cold empties the caches.
	Switch(arm string, cold bool) error
	// Replicas is their number, 0 when it is not known.
	Replicas() int
	// BlockTokens is the unit of the engines' caches.
	BlockTokens() int

	// Settle lets so much time pass between two steps, and waits before it for what
	// is to mend by itself. Its error ends the measurement.
	Settle(ctx context.Context, d time.Duration) error
	// Begin says that a step's load begins now.
	Begin(Step)
	Now() time.Duration
	// After does something on the System's goroutine when so much time has passed.
	After(d time.Duration, do func())
	// Send sends a turn and calls done exactly once, after it has returned: when the
	// answer has ended at the client, has failed or was cut.
	Send(r Request, done func(Result))
	// Cut cancels every open turn, as a client that leaves does. It has called done
	// for all of them when it returns.
	Cut()
	// Run lets time pass until the given time, until idle says so after a callback,
	// or until ctx ends, which is the only error.
	Run(ctx context.Context, until time.Duration, idle func() bool) error

	Counters() Counters
}

// Step is one number of sessions at once under one arm.
type Step struct {
	Arm      string
	Sessions int
	// Length is how long it lasts; 0 is until the workload has no more sessions.
	Length time.Duration
}

// Request is one turn on its way.
type Request struct {
	// Session and Parent name the conversation and the one that started it as a
	// sub-agent; 0 is none. A request without a Session belongs to no conversation.
	Session, Parent uint64
	Turn            Turn
	// Last says that no turn of the session follows.
	Last bool
}

// Result is what a client saw of one turn. A time that did not come is negative.
type Result struct {
	End  End
	Sent time.Duration
	// First is when the first event of the answer came, whatever is in it; what only
	// keeps a connection alive is none. Token is when the first one came that holds
	// something generated. A System that does not tell them apart has them equal.
	First, Token time.Duration
	Last         time.Duration // its end
	// Prompt, Cached and Output are the engine's counts; negative when it gave none.
	Prompt, Cached, Output int
	// Replica served it, or -1 when that is not known.
	Replica int
	// Reason is the router's (package routing), empty when none is known.
	Reason string
	Error  string // of a turn that failed
}

// End is how a turn ended.
type End string

// Ends of a turn.
const (
	Finished End = "finished"
	Cut      End = "cut"    // by the end of its step
	Failed   End = "failed" // refused, broken, or ended by an error
)

// Counters are the engines' own since the System's start, all replicas pooled;
// NaN is not known.
type Counters struct {
	PromptTokens, CachedTokens float64 // asked of the prefix cache, and found there
	// BusySeconds sums over the replicas the time in which requests ran there.
	BusySeconds float64
	Preemptions float64
}
