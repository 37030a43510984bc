// Package routing is the decision core: one pure state machine per model that
// decides which replica serves which request. It does no I/O, reads no clock
// and draws no random number of its own; time comes with each call, and the
// same calls in the same order give the same choices. The gateway drives it
// with real requests in real time, the simulator with modelled engines in
// virtual time.
//
// It knows nothing of HTTP, of engines or of how a conversation is recognised:
// it sees keys, replicas and numbers. It is not safe for concurrent use; its
// driver serialises the calls.
package routing

import (
	"fmt"
	"time"
)

// RequestID names one request between Arrive and Finish. The driver picks it;
// it must not be in use.
type RequestID uint64

// Key names a conversation. The zero Key stands for none.
type Key [16]byte

// None is the index that stands for "no replica", "no home" or "no pin".
const None = -1

// Replica is one full copy of the model as the core sees it. Its index is its
// place in the slice given to New, or last to Core.Reshape.
type Replica struct {
	// Server numbers the engine process that runs the replica. The ranks of one
	// server are one failure domain and share one URL.
	Server int
}

// Request is what a driver knows when a request is complete at the gateway.
type Request struct {
	ID RequestID
	// Key is the conversation, or zero for a request that makes none (title,
	// count_tokens, embedding); such a request is placed by load and binds
	// nothing.
	Key Key
	// Parent is the conversation that started this one as a sub-agent, or zero.
	// Its home is preferred at placement while it has room.
	Parent Key
	// Extends is a known conversation whose history this new one continues
	// (fork, resume under another id), or zero. Its home is preferred at
	// placement, before Parent's, while it has room.
	Extends Key
	// Pin is the replica that the client asked for, or None. It gives a home to a
	// conversation that has none (its cache is there now) and moves no other: a
	// pinned turn is like a spill that the client ordered.
	Pin int
	// Blind lists by server index where the engine ignores the rank header on
	// this request's route; nil means nowhere. On a blind server with several
	// replicas the engine's own balancer picks, and the reason is Engine, for a
	// pin too. The core keeps the slice until Finish.
	Blind []bool
	// Tokens estimates the prompt, in tokens; 0 means unknown. The core learns how
	// far the engine's own counts are from it, so a fixed part of the bytes is
	// good enough.
	Tokens int64
	// MaxOutput is the longest answer that the client allows, in tokens; 0 means
	// not said.
	MaxOutput int64
	// Whole marks a request whose answer comes in one piece, so that its first byte
	// does not tell when the prompt was read.
	Whole bool
	// Tenant is who sends the request (a hash of the API key), zero for nobody in
	// particular. Those with requests waiting take turns.
	Tenant Key
	// Class is who waits first.
	Class Class
	// Light marks a request that the engine answers beside its scheduler
	// (count_tokens, tokenize). It is routed and counted, but not in flight: a
	// client that counts tokens 26 times at once must not make its home look full.
	Light bool
}

// Class orders the requests that wait.
type Class uint8

const (
	Interactive Class = iota // somebody looks at it
	Batch                    // waits for the others, but not for ever
)

// Reason says why a request went where it went. The list is closed; the names
// are in the X-Warden-Decision header, the metrics and the API.
type Reason string

const (
	Placed  Reason = "placed"  // a new conversation was given a home
	Stayed  Reason = "stayed"  // the request went to its conversation's home
	Spilled Reason = "spilled" // the home was full, another replica took it; the home is unchanged
	Moved   Reason = "moved"   // the conversation was given another home
	Pinned  Reason = "pinned"  // the client named the replica
	Unbound Reason = "unbound" // the request belongs to no conversation
	Off     Reason = "off"     // the policy leaves the choice to the engine's balancer
	Engine  Reason = "engine"  // the engine ignores the rank header on this route and chose itself
)

// Why explains a move, a spill, a hold or a refusal. A request that failed at its home
// has another Why at each outcome: Failed while the home keeps the conversation
// (a spill), HomeStuck or Failed when it does not (a move).
type Why string

const (
	HomeFull      Why = "home full"
	HomeDown      Why = "home down"
	HomeDraining  Why = "home draining"
	HomeStuck     Why = "home stuck"
	HomeRemoved   Why = "home removed"   // its replica is no longer one of the model's
	Failed        Why = "attempt failed" // the replica refused or reset before the first byte; also refuses to retry a pin elsewhere
	ByOperator    Why = "operator"       // moved through the admin API
	ByPolicy      Why = "policy"         // the policy chooses anew for each turn
	NoReplica     Why = "no replica"     // none is up
	PinDown       Why = "pinned replica is down"
	NoSuchReplica Why = "no such replica"  // a pin out of range
	QueueFull     Why = "queue full"       // as many wait as may, or one more would wait too long
	TierServes    Why = "host-memory tier" // View.InsteadWhy
	ReadsQuickly  Why = "quick reading"    // View.InsteadWhy
	NoRoom        Why = "caches full"      // held: it fits on no replica beside what is there
	HomeBusy      Why = "home busy"        // held: its history is at its home, where it does not fit now
)

// Candidate is one replica as it was compared: the numbers of the receipt.
// They are small because placements keep one of each replica.
type Candidate struct {
	Replica           int32
	InFlight          int32
	LiveConversations int32
	KVUsed            float32 // 0..1, NaN when not known or stale
	LiveTokens        int64   // context of the live conversations, estimated until measured
}

// Decision is a choice with its receipt.
type Decision struct {
	// Replica is the index, or None when the engine's balancer picks among the
	// ranks of Server.
	Replica int
	Server  int
	Reason  Reason
	Why     Why // for Spilled and Moved
	// Home is the conversation's home after the decision, From the one before
	// it; None where there is none. When an operator moved the conversation, From
	// is the home before that.
	Home, From int
	// Cold is set when the home's engine restarted since the conversation's last
	// turn there, so its cache is known to be gone.
	Cold bool
	// Candidates are the replicas that were compared, in index order, with the
	// numbers before this choice; empty when nothing was (stayed at a home with
	// room, pinned, hashed). A home at its threshold is among them.
	Candidates []Candidate
	// Waited is how long the request was held before this decision, Held why.
	Waited time.Duration
	Held   Why
}

// ActionKind says what the driver must do.
type ActionKind uint8

const (
	Dispatch ActionKind = iota // send the request as Decision says
	Hold                       // keep the request; a later action of any call follows, or its Finish
	Refuse                     // answer the client with an error
)

// Action is an order of the core to its driver.
type Action struct {
	Kind     ActionKind
	ID       RequestID
	Decision Decision // Dispatch
	Position int      // Hold: place in the queue, from 1
	// Wait is how long a held request is likely to wait, 0 when that is not known.
	Wait time.Duration
	Why  Why // Hold, Refuse
	// RetryAfter is when a refused client should come back, 1 to 30 s; 0 means not
	// said.
	RetryAfter time.Duration
}

// Outcome is how a request ended.
type Outcome struct {
	// OK is set when the answer was complete. A request that failed or was
	// cancelled leaves the conversation's context as it was.
	OK bool
	// Prompt, Cached and Completion are the engine's own counts in tokens; Known
	// and CachedKnown say whether it gave them.
	Prompt, Cached, Completion int64
	Known, CachedKnown         bool
}

// State is what a replica may be given.
type State uint8

const (
	Unknown  State = iota // not heard from yet; used only when nothing is Ready
	Ready                 // takes everything
	Draining              // keeps open requests, takes no new conversation; its conversations move at their next turn
	Stuck                 // answers but makes no progress: no new conversation
	Ejected               // kept out, though it may answer: used only when nothing better is up, and keeps its conversations
	Down                  // takes nothing
)

// String returns the state's name as it stands in the API and on the pages, where
// what is kept out is down.
func (s State) String() string {
	if s > Down {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return [...]string{"unknown", "ready", "draining", "stuck", "down", "down"}[s]
}

// Load is one scrape of a replica.
type Load struct {
	Running, Waiting int
	KVUsed           float64 // 0..1
	Capacity         int64   // KV tokens of this replica, 0 when not known
	HostTier         bool    // what its cache pushes out is kept in the host's memory
	Slots            int     // requests that it works on at once, 0 when not known or not bounded
	Epoch            int     // life of the engine process, from 1; a rise makes the replica's conversations cold
	// Stale is set when the last scrape failed: the numbers are old and must not
	// decide anything.
	Stale bool
}

// Router decides, for one model, which replica serves which request and when.
type Router interface {
	// Arrive takes a request that is complete at the gateway. The choice and
	// the in-flight count are one step. A request may be held: it is then open,
	// and in flight nowhere, until it is dispatched, refused or finished.
	Arrive(now time.Time, r Request) []Action
	// FirstByte says that a request's answer began, so that its prompt has been read.
	FirstByte(now time.Time, id RequestID)
	// Retry says that a dispatched request's attempt failed before its first
	// byte. The core releases it there and chooses a replica in a failure domain
	// that this request has not tried, or refuses; a refused request must still
	// be finished. The request counts once, by its last decision. How often to
	// retry is the driver's business.
	Retry(now time.Time, id RequestID) []Action
	// Finish ends a request, exactly once on every path. An unknown id is
	// ignored.
	Finish(now time.Time, id RequestID, o Outcome) []Action
	// Observe takes a scrape of a replica.
	Observe(now time.Time, replica int, l Load)
	// SetState changes what a replica may be given.
	SetState(now time.Time, replica int, s State) []Action
	// Tick lets time pass: idle conversations are forgotten, places are no longer
	// kept, patience ends. Call it every second at least, and every tenth of one
	// while a request is held.
	Tick(now time.Time) []Action
}
