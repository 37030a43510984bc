package web

import (
	"lmwarden/internal/pool"
	"lmwarden/internal/session"
)

// Pool is what the console needs of one model's pool.
type Pool interface {
	View() pool.View
	// Receipts returns the newest n, newest first.
	Receipts(n int) []pool.Receipt
	SetPolicy(name string) error
	SetAffinity(on bool) error
	SetSpillThreshold(n int) error // 0 means automatic
	Drain(replica int) error
	Resume(replica int) error
	Home(session.Key) (Home, bool)
	// HomedAt lists the conversations whose home is a replica; all is false when
	// there are more than n, and then none is listed.
	HomedAt(replica, n int) (keys []session.Key, all bool)
	Release(session.Key) bool
	Move(k session.Key, replica int) error
}

// Home is where a conversation lives, and how often it did not.
type Home struct {
	Replica       int
	Spills, Moves int64
}

// Conversations is what the console needs of the conversation table.
type Conversations interface {
	Conversations(session.Query) (page []session.Conversation, next string, err error)
	Find(name string) (session.Conversation, bool)
}

// PoolsOf makes the pools of a set fit Options.
func PoolsOf(s *pool.Set) func() []Pool {
	return func() []Pool {
		pools := s.Pools()
		fit := make([]Pool, len(pools))
		for i, p := range pools {
			fit[i] = fitted{p}
		}
		return fit
	}
}

// fitted gives a pool the session's keys. Both packages have a type of their own
// for a key, so that neither imports the other.
type fitted struct{ *pool.Pool }

func (f fitted) Home(k session.Key) (Home, bool) {
	h, ok := f.Pool.Home([16]byte(k))
	return Home{Replica: h.Replica, Spills: h.Spills, Moves: h.Moves}, ok
}

func (f fitted) HomedAt(replica, n int) ([]session.Key, bool) {
	found, all := f.Pool.HomedAt(replica, n)
	keys := make([]session.Key, len(found))
	for i, k := range found {
		keys[i] = session.Key(k)
	}
	return keys, all
}

func (f fitted) Release(k session.Key) bool { return f.Pool.Release([16]byte(k)) }

func (f fitted) Move(k session.Key, replica int) error { return f.Pool.Move([16]byte(k), replica) }
