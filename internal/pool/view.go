package pool

import (
	"slices"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// View is a pool at one moment, a copy.
type View struct {
	Name, ServedName string
	Aliases          []string
	Since            time.Time // the counters run since then
	// Waiting is how many requests are held back until a replica takes them.
	Waiting  int
	Held     []Held // the first of them
	Routing  routing.View
	Replicas []ReplicaView
	Servers  []ServerView
}

// Held is a request that waits.
type Held struct {
	RequestID    string
	Conversation string // the short name; empty for none
	routing.Waiting
}

// mostHeld bounds View.Held.
const mostHeld = 20

// ReplicaView adds to the core's row what only the pool knows. In its Load, a
// number of requests that the engine does not tell is -1, its KVUsed NaN.
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
	Error string // what is wrong with it; empty when nothing is
	// Blind lists the paths on which this server ignores the rank header although
	// it has several ranks.
	Blind []string
}

// View copies the pool's state.
func (p *Pool) View() View {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	v := View{
		Name: p.name, ServedName: p.served, Aliases: p.allAliases(),
		Since: p.since, Waiting: len(p.held),
	}
	if p.core != nil {
		v.Routing = p.core.View(now)
		v.Held = p.heldNow(now)
	} else {
		if c, err := trialCore(p.opts); err == nil {
			v.Routing = c.View(now)
			v.Routing.Replicas = nil
		}
	}
	for _, s := range p.servers {
		v.Servers = append(v.Servers, ServerView{
			URL: s.base.String(), Info: s.last.Info, Error: p.trouble(now, s), Blind: s.blindPaths(),
		})
	}
	for i, r := range p.replicas {
		s := r.server
		row := ReplicaView{
			URL: s.base.String(), Rank: r.rank, ReplicaView: v.Routing.Replicas[i],
			PrefixHitPercent: s.hitPercent(r.rank), ScrapeAge: -1,
		}
		if len(s.replicas) == 1 {
			row.Rank = routing.None
		}
		if row.State == routing.Ejected {
			row.State = routing.Down
		}
		if r.rank < len(s.samples) {
			row.ScrapeAge = now.Sub(s.scraped)
		} else {
			row.Load = s.load(r.rank)
		}
		v.Replicas = append(v.Replicas, row)
	}
	return v
}

// heldNow lists the first of what waits. Callers hold mu.
func (p *Pool) heldNow(now time.Time) (list []Held) {
	if len(p.held) == 0 {
		return nil
	}
	for _, w := range p.core.Waiting(now) {
		if l := p.held[w.ID]; l != nil && len(list) < mostHeld {
			list = append(list, Held{l.req.ID, l.req.Conversation, w})
		}
	}
	return list
}

// Receipt is one decision for the decisions log.
type Receipt struct {
	Time         time.Time
	RequestID    string
	Conversation string
	Decision     routing.Decision
	// Position and Predicted are the place in the queue, from 1, and the likely wait
	// when the request was held; 0 when it was not, or the wait was not known.
	Position  int
	Predicted time.Duration
}

// Receipts returns the newest n receipts, newest first. The pool keeps the last
// 1000; a retried request has one for each attempt.
func (p *Pool) Receipts(n int) []Receipt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.receipts.newest(n)
}

const maxReceipts = 1000

// receiptRing keeps the last receipts. The zero ring is empty.
type receiptRing struct {
	ring []Receipt
	next int // where the next one goes once the ring is full
}

func (r *receiptRing) add(receipt Receipt) {
	if len(r.ring) < maxReceipts {
		r.ring = append(r.ring, receipt)
		return
	}
	r.ring[r.next] = receipt
	r.next = (r.next + 1) % maxReceipts
}

func (r *receiptRing) newest(n int) []Receipt {
	n = max(min(n, len(r.ring)), 0)
	list := make([]Receipt, n)
	for i := range list {
		at := (r.next - 1 - i + 2*len(r.ring)) % len(r.ring)
		list[i] = r.ring[at]
		list[i].Decision.Candidates = slices.Clone(list[i].Decision.Candidates)
	}
	return list
}
