package routing

import (
	"fmt"
	"slices"
	"time"
)

// Home is one row of the home table, a copy.
type Home struct {
	Key       Key
	Replica   int   // None when the conversation is known and has no home
	Turns     int64 // requests of the conversation, open ones included
	Spills    int64
	Moves     int64
	Tokens    int64 // context after the last complete turn, 0 when not measured
	Epoch     int   // the home's epoch at the last complete turn there, 0 when not known
	LastSeen  time.Time
	InFlight  int
	LastSpill int // None when it never spilled
}

// Home tells where a conversation lives.
func (c *Core) Home(k Key) (Home, bool) {
	v := c.homes.get(k)
	if v == nil {
		return Home{}, false
	}
	return c.row(v), true
}

func (c *Core) row(v *conversation) Home {
	h := Home{
		Key: v.key, Replica: v.home(), Turns: v.turns, Spills: v.spills, Moves: v.moves,
		Epoch: int(v.bond.epoch), LastSeen: c.clock.at(v.seen),
		InFlight: int(v.open), LastSpill: int(v.lastSpill),
	}
	if v.measured {
		h.Tokens = v.tokens
	}
	return h
}

// HomedAt lists the conversations whose home is a replica, in no particular order;
// all is false when there are more than n, and then none is listed.
func (c *Core) HomedAt(replica, n int) (keys []Key, all bool) {
	if !c.exists(replica) {
		return nil, true
	}
	for r := c.homes.homed[replica]; r != 0; r = c.homes.at(r).homeNext {
		if len(keys) == n {
			return nil, false
		}
		keys = append(keys, c.homes.at(r).key)
	}
	return keys, true
}

// Release forgets a conversation's home; its next turn is placed anew. It
// reports whether the conversation was known.
func (c *Core) Release(k Key) bool {
	v := c.homes.get(k)
	if v == nil {
		return false
	}
	c.homes.bind(v, bond{replica: None, from: None})
	v.lastSpill, v.lastServer = None, None
	return true
}

// Rehome gives a known conversation another home. Its next turn there has the
// reason Moved. It fails when the conversation or the replica is not known, and
// when the replica takes no conversations.
func (c *Core) Rehome(now time.Time, k Key, replica int) error {
	c.advance(now)
	v := c.homes.get(k)
	if v == nil {
		return fmt.Errorf("conversation %x is not known: it may have been idle too long", k[:4])
	}
	if !c.exists(replica) {
		return fmt.Errorf("replica %d does not exist: give one of 0 to %d", replica, len(c.replicas)-1)
	}
	if r := c.replicas[replica]; !r.takesNew() {
		return fmt.Errorf("replica %d is %v and takes no conversations: give one that is ready", replica, r.state)
	}
	if v.home() != replica {
		c.homes.bind(v, bond{replica: int32(replica), byOperator: true, from: v.bond.replica})
	}
	return nil
}

// Snapshot is the home table, in no particular order. Conversations without a
// home are left out.
func (c *Core) Snapshot() []Home {
	rows := make([]Home, 0, len(c.homes.byKey))
	for _, r := range c.homes.byKey {
		if v := c.homes.at(r); v.home() != None {
			rows = append(rows, c.row(v))
		}
	}
	return rows
}

// Restore fills the table, before or after the first requests; what is known
// already stays as it is. Rows whose replica does not exist are left out and
// counted.
func (c *Core) Restore(now time.Time, homes []Home) (dropped int) {
	c.clock.advance(now)
	newestFirst := slices.SortedStableFunc(slices.Values(homes), func(a, b Home) int {
		return b.LastSeen.Compare(a.LastSeen)
	})
	for _, h := range newestFirst {
		if !c.exists(h.Replica) {
			dropped++
			continue
		}
		if h.Key == (Key{}) || c.homes.get(h.Key) != nil {
			continue
		}
		v := c.homes.add(h.Key, min(h.LastSeen.Sub(c.clock.started), c.clock.now))
		c.homes.bind(v, bond{replica: int32(h.Replica), epoch: int32(h.Epoch), from: None})
		v.turns, v.spills, v.moves = h.Turns, h.Spills, h.Moves
		v.tokens, v.measured = h.Tokens, h.Tokens > 0
		if c.exists(h.LastSpill) {
			v.lastSpill = int32(h.LastSpill)
		}
		// Rows come newest first and all are older than what this process saw
		// itself, so the front is the place.
		if v.seen+c.homes.liveFor > c.clock.now {
			c.homes.setLive(v, true)
			c.homes.pushFront(recent, v)
		} else {
			c.homes.pushFront(idle, v)
		}
	}
	c.homes.expire(c.clock.now)
	c.homes.trim()
	return dropped
}
