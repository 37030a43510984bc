package routing

import (
	"errors"
	"time"
)

// Options are what New needs.
type Options struct {
	Replicas []Replica
	Policy   string // a name of Policies()
	// SpillThreshold is how many requests a home may have in flight before a
	// request leaves it; 0 means automatic.
	SpillThreshold int
	// LiveFor is how long after its last request a conversation counts as live.
	// Default 10 minutes.
	LiveFor time.Duration
	// IdleFor is how long an idle conversation keeps its home. Default 1 hour.
	IdleFor time.Duration
	// MaxConversations bounds the home table; the one that is idle longest leaves
	// first, never one with an open request. Default 1,000,000.
	MaxConversations int
}

// Core is the Router that every policy shares: homes, counts and loads; the
// policy chooses among candidates.
type Core struct{}

var _ Router = (*Core)(nil)

// New returns a core with every replica Unknown. It fails on an unknown policy
// name (the message lists the known ones), on no replicas, or on a negative
// number.
func New(o Options) (*Core, error) { return nil, errors.New("not built") }

// Policies lists the policy names in the order in which pages show them.
func Policies() []string { return nil }

// SetPolicy takes effect with the next request. Homes are kept.
func (c *Core) SetPolicy(name string) error { return nil }

// SetSpillThreshold sets the threshold; 0 means automatic.
func (c *Core) SetSpillThreshold(n int) error { return nil }

// Release forgets a conversation's home; its next turn is placed anew. It
// reports whether the conversation was known.
func (c *Core) Release(k Key) bool { return false }

// Rehome gives a known conversation another home. It fails when the
// conversation or the replica is not known.
func (c *Core) Rehome(now time.Time, k Key, replica int) error { return nil }

// Home tells where a conversation lives.
func (c *Core) Home(k Key) (Home, bool) { return Home{}, false }

// Home is one row of the home table, a copy.
type Home struct {
	Key       Key
	Replica   int
	Turns     int64
	Spills    int64
	Moves     int64
	Tokens    int64 // context after the last complete turn, 0 when not measured
	Epoch     int   // the home's epoch at the last turn there
	LastSeen  time.Time
	InFlight  int
	LastSpill int // None when it never spilled
}

// Snapshot is the home table, in no particular order.
func (c *Core) Snapshot() []Home { return nil }

// Restore fills an empty table. Rows whose replica does not exist are left out
// and counted.
func (c *Core) Restore(now time.Time, homes []Home) (dropped int) { return 0 }

// View is the state of a core at one moment, a copy.
type View struct {
	Policy         string
	SpillThreshold int // in force
	SpillAuto      bool
	InFlight       int   // all requests open, those that the engine's balancer placed included
	EngineChosen   int64 // requests with reason Off or Engine
	Replicas       []ReplicaView
	Live, Known    int // conversations
	WorkingSet     WorkingSet
}

// ReplicaView is one replica's row. The counters run since New; a request that
// was retried counts once, where it was served.
type ReplicaView struct {
	State    State
	InFlight int
	// Requests by reason.
	Placed, Sticky, SpilledIn, MovedIn, ClientPinned, Unbound int64
	LiveConversations                                         int
	LiveTokens                                                int64
	Load                                                      Load
	Observed                                                  time.Time // of the last Load, zero before the first
}

// WorkingSet compares what the live conversations need with what the caches
// hold. Each field is -1 until it is measured.
type WorkingSet struct {
	// Tokens is the sum of the live conversations' last prompt and answer, the
	// shared prefix counted once per replica.
	Tokens int64
	// Capacity is the KV capacity of all replicas.
	Capacity int64
	// Fits is the number of conversations of the present mean size that the
	// caches hold: the sum over replicas of
	// floor((capacity - shared) / mean(context - shared)).
	Fits int
	// Shared is the prefix that first turns found in the cache.
	Shared int64
}

// View copies the state. It is O(replicas), not O(conversations).
func (c *Core) View(now time.Time) View { return View{} }

func (c *Core) Arrive(now time.Time, r Request) []Action               { return nil }
func (c *Core) FirstByte(now time.Time, id RequestID)                  {}
func (c *Core) Retry(now time.Time, id RequestID) []Action             { return nil }
func (c *Core) Finish(now time.Time, id RequestID, o Outcome) []Action { return nil }
func (c *Core) Observe(now time.Time, replica int, l Load)             {}
func (c *Core) SetState(now time.Time, replica int, s State) []Action  { return nil }
func (c *Core) Tick(now time.Time) []Action                            { return nil }
