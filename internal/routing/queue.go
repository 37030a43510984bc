package routing

import (
	"cmp"
	"slices"
	"time"
)

// queue holds the requests that wait, in the order of their turns.
//
// Classes come one after the other. Within a class the tenants take turns: a
// request is ranked with the head of the queue if its tenant has none waiting,
// else one after the tenant's last (start-time fair queueing, Goyal, Vin and
// Cheng 1996). A tenant alone is served in the order of arrival. Of the requests
// of one tree the first takes its tenant's next rank, the others come later by a
// round of the tenant's trees each.
type queue struct {
	waiters []waiter
	seq     uint64
	tenants map[tenantClass]*tenant
	trees   int // that wait, each counted once per tenant and class
}

// waiter is a place in the queue, with what a walk through it looks at: most
// requests are passed over without a look at themselves.
type waiter struct {
	class Class
	rank  int64
	seq   uint64
	since time.Duration
	// prompt and output are what the request needs.
	prompt, output int64
	beside         bool // another request of its conversation is in flight
	q              *request
}

func (w *waiter) compare(o *waiter) int {
	return cmp.Or(cmp.Compare(w.class, o.class), cmp.Compare(w.rank, o.rank), cmp.Compare(w.seq, o.seq))
}

type tenantClass struct {
	tenant Key
	class  Class
}

// tenant is an API key with requests waiting.
type tenant struct {
	waiting int
	next    int64 // rank of its next request
	trees   map[Key]*tree
}

// tree is a conversation with its sub-agents that has requests waiting.
type tree struct {
	waiting int
	last    int64 // rank of its last request
}

// add puts q into the queue and returns its place, from 0.
func (s *queue) add(q *request) int {
	name := tenantClass{q.Tenant, q.Class}
	t := s.tenants[name]
	if t == nil {
		t = &tenant{next: s.head(q.Class), trees: make(map[Key]*tree)}
		s.tenants[name] = t
	}
	t.waiting++
	own := t.trees[q.root]
	switch {
	case q.root == (Key{}):
		q.rank = t.next
		t.next++
	case own == nil:
		t.trees[q.root] = &tree{waiting: 1, last: t.next}
		s.trees++
		q.rank = t.next
		t.next++
	default:
		own.waiting++
		own.last = max(own.last+int64(len(t.trees))+1, s.head(q.Class))
		q.rank = own.last
	}
	s.seq++
	q.seq = s.seq
	at, _ := s.find(q)
	w := waiter{class: q.Class, rank: q.rank, seq: q.seq, since: q.since, prompt: q.prompt, output: q.output, q: q}
	if v := q.conv; v != nil {
		v.waiting++
		w.beside = v.running > 0
	}
	s.waiters = slices.Insert(s.waiters, at, w)
	return at
}

// beside notes whether a request of v is in flight.
func (s *queue) beside(v *conversation) {
	if v.waiting == 0 {
		return
	}
	for i := range s.waiters {
		if w := &s.waiters[i]; w.q.conv == v {
			w.beside = v.running > 0
		}
	}
}

// remove takes q out of the queue.
func (s *queue) remove(q *request) {
	at, found := s.find(q)
	if !found {
		return
	}
	s.waiters = slices.Delete(s.waiters, at, at+1)
	if q.conv != nil {
		q.conv.waiting--
	}
	name := tenantClass{q.Tenant, q.Class}
	t := s.tenants[name]
	if own := t.trees[q.root]; own != nil {
		if own.waiting--; own.waiting == 0 {
			delete(t.trees, q.root)
			s.trees--
		}
	}
	if t.waiting--; t.waiting == 0 {
		delete(s.tenants, name)
	}
}

// head is the rank of the first of a class, 0 when none waits.
func (s *queue) head(class Class) int64 {
	at, _ := slices.BinarySearchFunc(s.waiters, class, func(w waiter, class Class) int {
		return cmp.Or(cmp.Compare(w.class, class), 1)
	})
	if at < len(s.waiters) && s.waiters[at].class == class {
		return s.waiters[at].rank
	}
	return 0
}

// find returns q's place.
func (s *queue) find(q *request) (int, bool) {
	w := waiter{class: q.Class, rank: q.rank, seq: q.seq}
	return slices.BinarySearchFunc(s.waiters, w, func(a, b waiter) int { return a.compare(&b) })
}

// agents counts the requests of sub-agents in flight: those of one tree may not
// take every place of a replica.
type agents struct {
	all int
	by  map[Key][]agentsAt // by the root of the tree
}

type agentsAt struct {
	on *replica
	n  int
}

// add counts n more of q's tree where q is, if q is of a sub-agent.
func (s *agents) add(q *request, n int) {
	if q.root == q.Key || q.at == nil {
		return
	}
	s.all += n
	at := s.by[q.root]
	i := slices.IndexFunc(at, func(a agentsAt) bool { return a.on == q.at })
	if i < 0 {
		i = len(at)
		at = append(at, agentsAt{on: q.at})
	}
	if at[i].n += n; at[i].n == 0 {
		at = slices.Delete(at, i, i+1)
	}
	if len(at) == 0 {
		delete(s.by, q.root)
		return
	}
	s.by[q.root] = at
}

// on is how many of q's tree are on a replica, 0 when q is not of a sub-agent.
func (s *agents) on(q *request, r *replica) int {
	if q.root == q.Key {
		return 0
	}
	for _, a := range s.by[q.root] {
		if a.on == r {
			return a.n
		}
	}
	return 0
}
