package bench

import (
	"cmp"
	"math/rand/v2"
	"time"

	"lmwarden/internal/routing"
)

// PublishedOn is the arm that stands for the published measurement's router as
// it was measured. It is kept for reproduction only.
const PublishedOn = "published-on"

// publishedSpill is how many requests in flight made a home full, when a Box does
// not say otherwise.
const publishedSpill = 8

// publishedOn is sticky, but gives new conversations a home blind to load: the
// published replicas were too unevenly busy for anything else. A turn, a first one
// too, whose home has spill in flight goes to the replica with the least, and the
// home stays.
type publishedOn struct {
	replicas []routing.Replica
	spill    int
	rand     *rand.Rand
	inFlight []int
	homes    map[routing.Key]int
	open     map[routing.RequestID]int // the replica of each
}

func newPublishedOn(replicas []routing.Replica, spill int, rng *rand.Rand) *publishedOn {
	return &publishedOn{
		replicas: replicas, spill: cmp.Or(spill, publishedSpill), rand: rng, inFlight: make([]int, len(replicas)),
		homes: make(map[routing.Key]int), open: make(map[routing.RequestID]int),
	}
}

func (p *publishedOn) Arrive(_ time.Time, r routing.Request) []routing.Action {
	least := p.leastInFlight()
	d := routing.Decision{Replica: least, Reason: routing.Unbound, Home: routing.None, From: routing.None}
	if r.Key != (routing.Key{}) {
		home, known := p.homes[r.Key]
		d.Reason, d.From = routing.Stayed, home
		if !known {
			home = p.rand.IntN(len(p.replicas))
			p.homes[r.Key] = home
			d.Reason, d.From = routing.Placed, routing.None
		}
		d.Replica, d.Home = home, home
		if p.inFlight[home] >= p.spill && p.inFlight[least] < p.inFlight[home] {
			d.Replica, d.Reason, d.Why = least, routing.Spilled, routing.HomeFull
		}
	}
	d.Server = p.replicas[d.Replica].Server
	p.inFlight[d.Replica]++
	p.open[r.ID] = d.Replica
	return []routing.Action{{Kind: routing.Dispatch, ID: r.ID, Decision: d}}
}

func (p *publishedOn) leastInFlight() int {
	least := 0
	for i, n := range p.inFlight {
		if n < p.inFlight[least] {
			least = i
		}
	}
	return least
}

func (p *publishedOn) Finish(_ time.Time, id routing.RequestID, _ routing.Outcome) []routing.Action {
	if replica, open := p.open[id]; open {
		p.inFlight[replica]--
		delete(p.open, id)
	}
	return nil
}

// Retry refuses: in virtual time no attempt fails that another could replace.
func (p *publishedOn) Retry(_ time.Time, id routing.RequestID) []routing.Action {
	return []routing.Action{{Kind: routing.Refuse, ID: id, Why: routing.NoReplica}}
}

func (p *publishedOn) FirstByte(time.Time, routing.RequestID)                  {}
func (p *publishedOn) Observe(time.Time, int, routing.Load)                    {}
func (p *publishedOn) SetState(time.Time, int, routing.State) []routing.Action { return nil }
func (p *publishedOn) Tick(time.Time) []routing.Action                         { return nil }
