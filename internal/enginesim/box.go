package enginesim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// AnyRank leaves the choice of the rank to the balancer.
const AnyRank = -1

// BoxOptions configure a Box.
type BoxOptions struct {
	Params Params
	Ranks  int // at least 1
	// APIServers is how many processes take requests, each with a balancer of its
	// own; 0 means 1.
	APIServers int
	// Rand drives the blind balancer, which needs it.
	Rand *rand.Rand
}

// Box is one vLLM server: ranks behind the balancers of its API servers. It is
// one failure domain, since vLLM's engines and API servers live and die
// together: what was in a box that failed is gone, and a restart is a new Box.
//
// A driver runs Begin and End for each rank as it would for a lone Rank, and
// says what time it is. Sequence IDs are unique per box.
type Box struct {
	ranks     []*Rank
	balancers []*Balancer
	open      map[uint64]route
}

// route is where a living sequence came in and went.
type route struct{ apiServer, rank int }

// RankError says that a request named a rank that the box does not have. Its
// text is vLLM's own.
type RankError struct{ Rank, Ranks int }

func (e *RankError) Error() string {
	return fmt.Sprintf("data_parallel_rank %d is out of range [0, %d).", e.Rank, e.Ranks)
}

// NewBox returns an idle box with empty caches.
func NewBox(o BoxOptions) (*Box, error) {
	if err := o.Params.Validate(); err != nil {
		return nil, err
	}
	if o.APIServers == 0 {
		o.APIServers = 1
	}
	b := &Box{open: make(map[uint64]route)}
	for client := range o.APIServers {
		balancer, err := NewBalancer(BalancerOptions{
			Params: o.Params, Ranks: o.Ranks, Client: client, Clients: o.APIServers, Rand: o.Rand,
		})
		if err != nil {
			return nil, err
		}
		b.balancers = append(b.balancers, balancer)
	}
	if len(b.balancers) == 0 {
		return nil, fmt.Errorf("the box has %d API servers: it needs at least 1", o.APIServers)
	}
	for range o.Ranks {
		b.ranks = append(b.ranks, NewRank(o.Params))
	}
	return b, nil
}

// Ranks is the number of ranks.
func (b *Box) Ranks() int { return len(b.ranks) }

// Submit hands a sequence to a rank, or to the balancer's choice with AnyRank.
// apiServer is the one that it came in at, 0 to APIServers-1. Submit returns the
// rank, which the driver must start if it is idle. It refuses with a *RankError,
// a *PromptError, or an error about the sequence; then nothing is counted.
func (b *Box) Submit(now time.Time, apiServer, rank int, s *Sequence) (int, error) {
	if rank != AnyRank && (rank < 0 || rank >= len(b.ranks)) {
		return 0, &RankError{Rank: rank, Ranks: len(b.ranks)}
	}
	if _, open := b.open[s.ID]; open {
		return 0, duplicateError(s.ID)
	}
	if err := b.ranks[0].check(s); err != nil {
		return 0, err
	}
	balancer := b.balancers[apiServer]
	if rank == AnyRank {
		rank = balancer.Choose(now)
	} else {
		balancer.Add(rank)
	}
	b.open[s.ID] = route{apiServer, rank}
	b.ranks[rank].queue(s)
	return rank, nil
}

// Abort is Rank.Abort for a sequence on whichever rank it is.
func (b *Box) Abort(id uint64) bool {
	at, ok := b.open[id]
	if !ok {
		return false
	}
	b.done(id)
	return b.ranks[at.rank].Abort(id)
}

// Begin is Rank.Begin.
func (b *Box) Begin(now time.Time, rank int) (time.Duration, bool) {
	// vLLM reports before scheduling: what just came in counts as waiting.
	b.report(now, rank)
	return b.ranks[rank].Begin()
}

// End is Rank.End.
func (b *Box) End(now time.Time, rank int) []Emit {
	emits := b.ranks[rank].End()
	for _, e := range emits {
		if e.Done {
			b.done(e.ID)
		}
	}
	b.report(now, rank)
	return emits
}

// Stats is Rank.Stats.
func (b *Box) Stats(rank int) Stats { return b.ranks[rank].Stats() }

// Reset empties every rank's prefix cache that is not in use, and returns
// whether that was all of them.
func (b *Box) Reset() bool {
	all := true
	for _, r := range b.ranks {
		all = r.Reset() && all
	}
	return all
}

func (b *Box) done(id uint64) {
	at := b.open[id]
	delete(b.open, id)
	b.balancers[at.apiServer].Done(at.rank)
}

func (b *Box) report(now time.Time, rank int) {
	load := b.ranks[rank].Load()
	for _, balancer := range b.balancers {
		balancer.Report(now, rank, load)
	}
}
