package routing_test

import (
	"encoding/binary"
	"testing"
	"time"

	. "lmwarden/internal/routing"
)

// box drives a core the way a pool does, and ends the test on what no driver
// could carry out.
type box struct {
	t    testing.TB
	core *Core
	now  time.Time
	last RequestID
}

// separate is n servers with a replica each.
func separate(n int) []Replica {
	rs := make([]Replica, n)
	for i := range rs {
		rs[i].Server = i
	}
	return rs
}

// ranks is servers with the given numbers of replicas.
func ranks(perServer ...int) []Replica {
	var rs []Replica
	for s, n := range perServer {
		for range n {
			rs = append(rs, Replica{Server: s})
		}
	}
	return rs
}

// newBox returns a core whose replicas are all ready.
func newBox(t testing.TB, policy string, replicas []Replica) *box {
	t.Helper()
	return newBoxWith(t, Options{Policy: policy, Replicas: replicas})
}

func newBoxWith(t testing.TB, o Options) *box {
	t.Helper()
	core, err := New(o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	b := &box{t: t, core: core, now: time.Date(2026, 10, 4, 8, 0, 0, 0, time.UTC)}
	for i := range o.Replicas {
		b.set(i, Ready)
	}
	return b
}

func (b *box) set(replica int, s State) { b.core.SetState(b.now, replica, s) }

// key is the n-th conversation.
func key(n int) (k Key) {
	binary.BigEndian.PutUint64(k[:], uint64(n)+1)
	return k
}

// turn is a request of the n-th conversation.
func turn(n int) Request { return Request{Key: key(n), Pin: None, Tokens: 1000} }

// unbound is a request that makes no conversation.
func unbound() Request { return Request{Pin: None} }

// try sends a request and returns its one action.
func (b *box) try(r Request) (RequestID, Action) {
	b.t.Helper()
	b.last++
	r.ID = b.last
	return r.ID, b.one(r.ID, b.core.Arrive(b.now, r))
}

func (b *box) one(id RequestID, actions []Action) Action {
	b.t.Helper()
	if len(actions) != 1 || actions[0].ID != id {
		b.t.Fatalf("actions %+v: want one for request %d", actions, id)
	}
	return actions[0]
}

// open sends a request that must be dispatched, and leaves it open.
func (b *box) open(r Request) (RequestID, Decision) {
	b.t.Helper()
	id, a := b.try(r)
	if a.Kind != Dispatch {
		b.t.Fatalf("request %+v: %+v, want a dispatch", r, a)
	}
	return id, a.Decision
}

// retry fails a request's attempt and wants another one.
func (b *box) retry(id RequestID) Decision {
	b.t.Helper()
	a := b.one(id, b.core.Retry(b.now, id))
	if a.Kind != Dispatch {
		b.t.Fatalf("retry: %+v, want a dispatch", a)
	}
	return a.Decision
}

// refuse sends a request that must be refused.
func (b *box) refuse(r Request) Why {
	b.t.Helper()
	_, a := b.try(r)
	if a.Kind != Refuse {
		b.t.Fatalf("request %+v: %+v, want a refusal", r, a)
	}
	return a.Why
}

func (b *box) finish(id RequestID, o Outcome) { b.core.Finish(b.now, id, o) }

// complete is the outcome of a complete answer.
func complete(prompt, cached, completion int64) Outcome {
	return Outcome{OK: true, Prompt: prompt, Cached: cached, Completion: completion, Known: true, CachedKnown: true}
}

// serve sends a request and completes it.
func (b *box) serve(r Request) Decision {
	b.t.Helper()
	id, d := b.open(r)
	b.finish(id, complete(1000, 0, 100))
	return d
}

// fill opens n requests on a replica and returns their ids.
func (b *box) fill(replica, n int) []RequestID {
	b.t.Helper()
	ids := make([]RequestID, n)
	for i := range ids {
		r := unbound()
		r.Pin = replica
		ids[i], _ = b.open(r)
	}
	return ids
}

func (b *box) finishAll(ids []RequestID) {
	for _, id := range ids {
		b.finish(id, Outcome{OK: true})
	}
}

func (b *box) view() View { return b.core.View(b.now) }

func (b *box) home(n int) Home {
	b.t.Helper()
	h, ok := b.core.Home(key(n))
	if !ok {
		b.t.Fatalf("conversation %d is not known", n)
	}
	return h
}

func (b *box) inFlight() []int {
	var n []int
	for _, r := range b.view().Replicas {
		n = append(n, r.InFlight)
	}
	return n
}

// placedAt sends first turns of conversations from..to-1, one after the other,
// and counts where they went.
func (b *box) placedAt(from, to int) []int {
	b.t.Helper()
	n := make([]int, len(b.view().Replicas))
	for i := from; i < to; i++ {
		d := b.serve(turn(i))
		if d.Reason != Placed {
			b.t.Fatalf("conversation %d: %v, want placed", i, d.Reason)
		}
		n[d.Replica]++
	}
	return n
}

// burst opens first turns of conversations from..to-1 at once and counts where
// they went.
func (b *box) burst(from, to int) ([]int, []RequestID) {
	b.t.Helper()
	n := make([]int, len(b.view().Replicas))
	var ids []RequestID
	for i := from; i < to; i++ {
		id, d := b.open(turn(i))
		n[d.Replica]++
		ids = append(ids, id)
	}
	return n, ids
}
