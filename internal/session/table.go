package session

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unique"

	"lmwarden/internal/llmapi"
)

// Options are what New needs.
type Options struct {
	// MaxConversations bounds the table; the one that is idle longest leaves first,
	// never one with an open request. Default 1,000,000. A conversation takes at
	// most 400 bytes.
	MaxConversations int
	// IdleFor is how long a conversation without requests is remembered. Default 1
	// hour.
	IdleFor time.Duration
	// Headers are further id headers in the operator's order. They come right after
	// the gateway's own and before all that clients are known to send.
	Headers []string
}

// Table remembers conversations. It is safe for concurrent use.
type Table struct {
	max        int
	idleFor    time.Duration
	extractors []extractor

	mu    sync.Mutex
	rows  map[Key]*row    // guarded by mu
	list  []*row          // guarded by mu; the same rows, for walks that let go of mu
	nodes map[uint64]*row // guarded by mu; ends of requests, by the hash of their history
	idle  row             // guarded by mu; head of the ring of rows without open requests, oldest first
	dirty []*row          // guarded by mu; changed since they were last saved
}

// maxLinks bounds the ends that one conversation keeps in the chain: its first
// request, to which a history that was rewound far leads back, and its newest.
const maxLinks = 3

// link is a request that we know by the hash of its history, and the hash that
// includes the answer to it, 0 until a later request shows that.
type link struct{ sum, after uint64 }

// row is a conversation. Table.mu guards all of it.
type row struct {
	key, parent           Key
	origin                unique.Handle[origin]
	scope                 uint64 // of links
	first, last           int64  // Unix milliseconds
	turns                 int64
	prompt, cached, reply int64 // tokens, or Unmeasured
	open                  int
	tools                 bool  // a request of it offered tools
	known                 uint8 // links in use
	links                 [maxLinks]link
	index                 int  // in Table.list
	dirty                 int  // in Table.dirty, counted from 1; 0 when not in it
	prev, next            *row // in Table.idle; nil while a request is open
}

// origin is what many rows have in common. It is kept once, since a row must be
// small and must not hold on to a request's buffers.
type origin struct{ model, source, client, tenant string }

// New returns an empty table. It fails on a negative number and on a header name
// that no client can send.
func New(o Options) (*Table, error) {
	if o.MaxConversations == 0 {
		o.MaxConversations = 1_000_000
	}
	if o.IdleFor == 0 {
		o.IdleFor = time.Hour
	}
	if o.MaxConversations < 0 {
		return nil, fmt.Errorf("max conversations %d: must be 1 or more", o.MaxConversations)
	}
	if o.IdleFor < 0 {
		return nil, fmt.Errorf("idle time %v: must be positive", o.IdleFor)
	}
	var errs []error
	for _, name := range o.Headers {
		if name == "" || !only(name, "-_.!#$%&'*+^`|~") {
			errs = append(errs, fmt.Errorf("session header %q: not a header name", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	t := &Table{
		max:        o.MaxConversations,
		idleFor:    o.IdleFor,
		extractors: extractors(o.Headers),
		rows:       map[Key]*row{},
		nodes:      map[uint64]*row{},
	}
	t.idle.prev, t.idle.next = &t.idle, &t.idle
	return t, nil
}

// Withdraw takes back an Identify whose request was refused before it began: a
// conversation that it made, and that no request has begun since, leaves again.
func (t *Table) Withdraw(id Identity) {
	if !id.New {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rows[id.Key]; r != nil && r.turns == 0 && r.open == 0 {
		t.remove(r)
	}
}

// Turn is one open request of a conversation. While it is open the conversation
// stays in the table. A nil Turn is valid and does nothing.
type Turn struct {
	table *Table
	key   Key
	ended bool // guarded by table.mu
}

// Begin opens a request that Identify has named, for the model it was named for.
// It returns nil when the request makes no conversation. The turn must be ended.
func (t *Table) Begin(now time.Time, id Identity, model string) *Turn {
	if id.Key == (Key{}) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[id.Key]
	if r == nil { // the bound took it since Identify
		r = t.add(id.Key, 0, now.UnixMilli())
		r.origin, r.parent = unique.Make(origin{model, id.Source, id.Client, id.Tenant}), id.Parent
	}
	r.open++
	r.unlink()
	t.touch(r, now.UnixMilli())
	if id.Turn {
		r.turns++
	}
	return &Turn{table: t, key: id.Key}
}

// Responded notes the id under which the engine keeps this turn's answer, so
// that a request which names it as its previous response belongs to the same
// conversation.
func (u *Turn) Responded(response string) {
	if u == nil || usable(response) == "" {
		return
	}
	t := u.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rows[u.key]; r != nil {
		t.chain(r, responseSum(r.scope, usable(response)))
		t.changed(r)
	}
}

// End closes the request with what the engine reported of it. Only the first
// call counts.
func (u *Turn) End(now time.Time, usage llmapi.Usage) {
	if u == nil {
		return
	}
	t := u.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.ended {
		return
	}
	u.ended = true
	r := t.rows[u.key] // never nil: an open conversation does not leave
	if usage.Known {
		r.prompt, r.reply, r.cached = usage.Prompt, usage.Completion, Unmeasured
		if usage.CacheState == llmapi.CacheReported {
			r.cached = usage.Cached
		}
	}
	r.open--
	t.touch(r, now.UnixMilli())
	t.evict(t.max)
}

// Expire forgets the conversations that were idle for longer than Options.IdleFor
// and returns their number.
func (t *Table) Expire(now time.Time) int {
	const batch = 1024 // rows per hold of the lock
	n := 0
	for {
		t.mu.Lock()
		left := 0
		for t.idle.next != &t.idle && t.stale(now.UnixMilli(), t.idle.next) && left < batch {
			t.remove(t.idle.next)
			left++
		}
		t.mu.Unlock()
		if n += left; left < batch {
			return n
		}
	}
}

// Len is the number of conversations in the table.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.list)
}

// The methods below are called with mu held.

// live finds a conversation that is not past its idle time.
func (t *Table) live(now int64, k Key) *row {
	r := t.rows[k]
	if r != nil && t.stale(now, r) {
		t.remove(r)
		return nil
	}
	return r
}

func (t *Table) stale(now int64, r *row) bool {
	return r.open == 0 && now-r.last > t.idleFor.Milliseconds()
}

// at finds the live conversation that a place in the chain belongs to. It never
// crosses the border of a tenant, even if someone makes two hashes meet.
func (t *Table) at(p place, sum uint64) *row {
	r := t.nodes[sum]
	if r == nil || r.scope != p.scope {
		return nil
	}
	if t.stale(p.now, r) {
		t.remove(r)
		return nil
	}
	return r
}

// add makes a row for a key that has none. The scope is that of its links.
func (t *Table) add(k Key, scope uint64, now int64) *row {
	t.evict(t.max - 1)
	r := &row{key: k, scope: scope, first: now, last: now, prompt: Unmeasured, cached: Unmeasured, reply: Unmeasured, index: len(t.list)}
	t.rows[k] = r
	t.list = append(t.list, r)
	t.append(r)
	return r
}

// touch notes that a row was used and has changed.
func (t *Table) touch(r *row, now int64) {
	r.last = max(r.last, now)
	if r.open == 0 {
		r.unlink()
		t.append(r)
	}
	t.changed(r)
}

func (t *Table) changed(r *row) {
	if r.dirty == 0 {
		t.dirty = append(t.dirty, r)
		r.dirty = len(t.dirty)
	}
}

// saved takes a row out of the changed ones.
func (t *Table) saved(r *row) {
	if r.dirty == 0 {
		return
	}
	last := t.dirty[len(t.dirty)-1]
	t.dirty[r.dirty-1], last.dirty = last, r.dirty
	t.dirty[len(t.dirty)-1] = nil
	t.dirty = t.dirty[:len(t.dirty)-1]
	r.dirty = 0
}

// evict shrinks the table to n rows, as far as idle rows allow.
func (t *Table) evict(n int) {
	for len(t.list) > n && t.idle.next != &t.idle {
		t.remove(t.idle.next)
	}
}

func (t *Table) remove(r *row) {
	for _, l := range r.links[:r.known] {
		delete(t.nodes, l.sum)
	}
	delete(t.rows, r.key)
	// The last row moves into the gap; walks run from the end, so they meet it
	// twice at worst.
	last := t.list[len(t.list)-1]
	t.list[r.index], last.index = last, r.index
	t.list[len(t.list)-1] = nil
	t.list = t.list[:len(t.list)-1]
	r.unlink()
	t.saved(r)
}

// chain gives a row an end in the chain. An end that another conversation has
// stays there.
func (t *Table) chain(r *row, sum uint64) {
	if t.nodes[sum] != nil {
		return
	}
	if r.known == maxLinks {
		delete(t.nodes, r.links[1].sum)
		copy(r.links[1:], r.links[2:])
		r.known--
	}
	r.links[r.known] = link{sum: sum}
	r.known++
	t.nodes[sum] = r
}

// append puts a row at the young end of the idle ring.
func (t *Table) append(r *row) {
	r.prev, r.next = t.idle.prev, &t.idle
	r.prev.next, r.next.prev = r, r
}

// unlink takes a row out of the idle ring, if it is in.
func (r *row) unlink() {
	if r.next != nil {
		r.prev.next, r.next.prev = r.next, r.prev
		r.prev, r.next = nil, nil
	}
}

// link finds the link with this sum; it must be there.
func (r *row) link(sum uint64) *link {
	for i := range r.links[:r.known] {
		if r.links[i].sum == sum {
			return &r.links[i]
		}
	}
	return &link{}
}

// follows reports whether the answer after m, which is an end of this row, is the
// one that was given there, as far as is known.
func (r *row) follows(m mark) bool {
	given := r.link(m.sum).after
	return m.after != 0 && (given == 0 || given == m.after)
}
