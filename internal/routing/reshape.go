package routing

import (
	"fmt"
	"slices"
	"time"
)

// Reshape gives the core another list of replicas. was tells of each new one
// which old one it is, or None for one that is new and Unknown; an old one that
// is not named is removed. A server is the same if one of its replicas is.
//
// State, load, counts and conversations follow their replica. A conversation
// whose home is removed moves at its next turn. Requests that are open on a
// removed replica stay in the model's in flight until they are finished.
//
// It costs time in proportion to the conversations. The error names what is wrong
// with the list, and then nothing has changed.
func (c *Core) Reshape(now time.Time, replicas []Replica, was []int) error {
	if err := checkReplicas(replicas); err != nil {
		return err
	}
	if len(was) != len(replicas) {
		return fmt.Errorf("%d replicas, but %d former ones", len(replicas), len(was))
	}
	moved, servers := newRenumbering(len(c.replicas)), newRenumbering(len(c.servers))
	for i, old := range was {
		if old == None {
			continue
		}
		if !c.exists(old) {
			return fmt.Errorf("replica %d was %d, which does not exist", i, old)
		}
		if !moved.set(old, i) {
			return fmt.Errorf("replica %d becomes two", old)
		}
		if !servers.set(c.replicas[old].server, replicas[i].Server) {
			return fmt.Errorf("replica %d leaves its server", old)
		}
	}
	c.advance(now)
	for old, i := range moved {
		if i == None {
			c.homes.clear(old)
		}
	}
	c.arrange(replicas, moved, servers)
	c.homes.reshape(len(replicas), moved, servers)
	for _, q := range c.requests {
		q.renumber(len(c.servers), moved, servers)
	}
	return nil
}

// checkReplicas refuses a list that no core can have.
func checkReplicas(replicas []Replica) error {
	if len(replicas) == 0 {
		return fmt.Errorf("no replicas: a model needs at least one")
	}
	for i, r := range replicas {
		if r.Server < 0 || r.Server >= len(replicas) {
			return fmt.Errorf("replica %d is on server %d: servers are numbered from 0 and none is without a replica", i, r.Server)
		}
	}
	return nil
}

// arrange makes the replicas and servers of a list. Those that the renumberings
// name are taken over; a request keeps what it counts on, so its counts go with
// them, or nowhere.
func (c *Core) arrange(replicas []Replica, moved, servers renumbering) {
	oldReplicas, oldServers := c.replicas, c.servers
	// One allocation each: choices walk through them.
	freshReplicas, freshServers := make([]replica, len(replicas)), make([]server, len(replicas))
	c.replicas, c.servers = make([]*replica, len(replicas)), make([]*server, len(replicas))
	for i := range replicas {
		c.replicas[i], c.servers[i] = &freshReplicas[i], &freshServers[i]
		c.replicas[i].observeKV()
	}
	for old, i := range moved {
		if i != None {
			c.replicas[i] = oldReplicas[old]
		}
	}
	for old, i := range servers {
		if i != None {
			c.servers[i] = oldServers[old]
			c.servers[i].replicas = nil
		}
	}
	for i, r := range replicas {
		c.replicas[i].server = r.Server
		c.servers[r.Server].replicas = append(c.servers[r.Server].replicas, i)
	}
	c.among = make([]int, 0, len(replicas))
	c.claims = make([]*request, len(replicas))
}

// renumbering tells by old index the new one, None for what is removed.
type renumbering []int

func newRenumbering(n int) renumbering { return slices.Repeat([]int{None}, n) }

// set is false when the old index has another new one already, or the new index
// another old one.
func (m renumbering) set(old, to int) bool {
	if at := slices.Index(m, to); at >= 0 && at != old || m[old] != None && m[old] != to {
		return false
	}
	m[old] = to
	return true
}

func (m renumbering) of(old int) int {
	if old == None {
		return None
	}
	return m[old]
}

// renumber turns the indices of an open request into the new ones; size is the
// number of servers.
func (q *request) renumber(size int, moved, servers renumbering) {
	d := &q.decision
	d.Replica, d.Server = moved.of(d.Replica), servers.of(d.Server)
	d.Home, d.From = moved.of(d.Home), moved.of(d.From)
	q.undo.bond.renumber(moved)
	q.undo.lastSpill = int32(moved.of(int(q.undo.lastSpill)))
	var tried []int
	for _, s := range q.tried {
		if to := servers.of(s); to != None {
			tried = append(tried, to)
		}
	}
	q.tried = tried
	if q.Blind == nil {
		return
	}
	old := q.Blind
	q.Blind = make([]bool, size)
	for s, to := range servers {
		if to != None && s < len(old) {
			q.Blind[to] = old[s]
		}
	}
}

// renumber marks a bond whose home is removed.
func (b *bond) renumber(moved renumbering) {
	had := b.replica != None
	b.replica, b.from = int32(moved.of(int(b.replica))), int32(moved.of(int(b.from)))
	if had && b.replica == None {
		*b = bond{replica: None, from: None, removed: true}
	}
}

// reshape turns the indices of all conversations into the new ones.
func (t *table) reshape(replicas int, moved, servers renumbering) {
	held := make([]contents, replicas+1)
	homeless := &held[replicas]
	*homeless = *t.heldAt(None)
	for old, to := range moved {
		if to == None {
			homeless.join(&t.held[old])
		} else {
			held[to] = t.held[old]
		}
	}
	t.held = held
	caches := make([]cache, replicas)
	for old, to := range moved {
		if to != None {
			caches[to] = t.caches[old]
		}
	}
	t.caches = caches
	t.homed = make([]row, replicas)
	for r := row(1); r <= t.used; r++ {
		v := t.at(r)
		if v.key == (Key{}) {
			continue // not in use
		}
		v.bond.renumber(moved)
		t.enter(v)
		v.lastSpill = int32(moved.of(int(v.lastSpill)))
		v.lastServer = int32(servers.of(int(v.lastServer)))
		v.runningAt = int32(moved.of(int(v.runningAt)))
		v.cachedAt = int32(moved.of(int(v.cachedAt)))
		if v.keptAt = int32(moved.of(int(v.keptAt))); v.keptAt == None {
			v.kept = 0
		}
	}
}

func (h *contents) join(o *contents) {
	h.live += o.live
	h.sized += o.sized
	h.measured += o.measured
	h.exact += o.exact
	h.guessed += o.guessed
}
