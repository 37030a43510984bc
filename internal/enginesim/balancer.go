package enginesim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// BalancerVersion names an algorithm by which an API server picks the rank of a
// request that names none.
type BalancerVersion string

const (
	// BalancerA (vLLM up to 0.25): the lowest 4 x waiting + running, always scanned
	// from the same rank.
	BalancerA BalancerVersion = "A"
	// BalancerB (0.26): as A, but the scan starts one rank further every time.
	BalancerB BalancerVersion = "B"
	// BalancerC (0.27 and later): as B, but scored by the API server's own count of
	// requests in flight, waiting + running, and the KV use of ranks with a queue.
	BalancerC BalancerVersion = "C"
	// BalancerBlind picks at random. No version of vLLM does; it is what the
	// published measurement looks like.
	BalancerBlind BalancerVersion = "blind"
)

func balancerVersions() []BalancerVersion {
	return []BalancerVersion{BalancerA, BalancerB, BalancerC, BalancerBlind}
}

// BalancerOptions configure a Balancer.
type BalancerOptions struct {
	Params Params // version and publication
	Ranks  int
	// Client is the index of this API server among Clients, 0 to Clients-1.
	Client, Clients int
	// Rand is required for the version BalancerBlind.
	Rand *rand.Rand
}

// Balancer is one API server's view of the ranks. Each API server has its own:
// it knows the engines' counts as they were last published, and its own
// decisions since.
type Balancer struct {
	version  BalancerVersion
	clients  int
	rand     *rand.Rand
	board    board
	view     []Load // as published, and raised by own decisions
	inFlight []int
	start    int // where the next scan starts
}

// NewBalancer returns a balancer of idle ranks.
func NewBalancer(o BalancerOptions) (*Balancer, error) {
	if err := o.Params.Validate(); err != nil {
		return nil, err
	}
	switch {
	case o.Ranks < 1:
		return nil, fmt.Errorf("the balancer has %d ranks: it needs at least 1", o.Ranks)
	case o.Client < 0 || o.Client >= o.Clients:
		return nil, fmt.Errorf("the balancer is API server %d of %d: number them from 0", o.Client, o.Clients)
	case o.Params.Balancer == BalancerBlind && o.Rand == nil:
		return nil, fmt.Errorf("the balancer %q has no random source: set Rand", BalancerBlind)
	}
	return &Balancer{
		version:  o.Params.Balancer,
		clients:  o.Clients,
		rand:     o.Rand,
		board:    newBoard(o.Params, o.Ranks),
		view:     make([]Load, o.Ranks),
		inFlight: make([]int, o.Ranks),
		start:    o.Ranks * o.Client / o.Clients,
	}, nil
}

// Choose picks the rank of a request and counts it there. Every Choose and Add
// needs one Done. Times must not run backwards over all calls.
func (b *Balancer) Choose(now time.Time) int {
	b.board.publish(now, b.view)
	pick := b.start
	if b.version == BalancerBlind {
		pick = b.rand.IntN(len(b.view))
	} else {
		for i := 1; i < len(b.view); i++ {
			if rank := (b.start + i) % len(b.view); b.score(rank) < b.score(pick) {
				pick = rank
			}
		}
	}
	if b.version == BalancerB || b.version == BalancerC {
		b.start = (b.start + 1) % len(b.view)
	}
	// Other API servers decide as this one does until the next publication.
	b.view[pick].Waiting += b.clients
	b.inFlight[pick]++
	return pick
}

// score of a rank; the lowest is picked.
func (b *Balancer) score(rank int) float64 {
	load := b.view[rank]
	if b.version != BalancerC {
		return float64(4*load.Waiting + load.Running)
	}
	score := float64(max(b.clients*b.inFlight[rank], load.Waiting+load.Running))
	return score + float64(6*load.Waiting)*max(0, load.KVUsed-0.5)
}

// Add counts a request whose rank was named by its header.
func (b *Balancer) Add(rank int) { b.inFlight[rank]++ }

// Done ends a request that Choose or Add counted.
func (b *Balancer) Done(rank int) { b.inFlight[rank]-- }

// InFlight is the number of this API server's requests on a rank.
func (b *Balancer) InFlight(rank int) int { return b.inFlight[rank] }

// Report is what an engine tells about itself before and after each step. It
// reaches the balancer's view with the delay of publication.
func (b *Balancer) Report(now time.Time, rank int, load Load) {
	b.board.publish(now, b.view)
	b.board.report(now, rank, load)
}

// board is vLLM's coordinator: it collects the engines' counts and publishes
// them to the API servers from time to time.
type board struct {
	silent                  bool // engines report nothing
	collect, interval, idle time.Duration

	loads     []Load // as the engines last reported
	changed   bool   // since the last publication, first at changedAt
	changedAt time.Time
	started   bool // published is set; before, no time is known
	published time.Time
}

func newBoard(p Params, ranks int) board {
	return board{
		silent:   p.CountsUnpublished,
		collect:  milliseconds(p.PublishCollectMS),
		interval: milliseconds(p.PublishIntervalMS),
		idle:     milliseconds(p.PublishIdleMS),
		loads:    make([]Load, ranks),
	}
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond))
}

// report takes what an engine tells. An engine tells its KV use with its counts, and
// nothing while only that changes.
func (b *board) report(now time.Time, rank int, load Load) {
	last := b.loads[rank]
	if b.silent || last.Running == load.Running && last.Waiting == load.Waiting {
		return
	}
	b.loads[rank] = load
	if !b.changed {
		b.changed, b.changedAt = true, now
	}
}

// publish replaces view with the last publication that is due by now, if it has
// not had it. The loads are those of that moment, since they have not changed
// since the last call.
func (b *board) publish(now time.Time, view []Load) {
	if !b.started {
		b.started, b.published = true, now
	}
	if b.changed {
		due := later(b.changedAt.Add(b.collect), b.published.Add(b.interval))
		if due.After(now) {
			return
		}
		b.changed, b.published = false, due
		copy(view, b.loads)
	}
	if periods := now.Sub(b.published) / b.idle; periods > 0 {
		b.published = b.published.Add(periods * b.idle)
		copy(view, b.loads)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
