package pool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lmwarden/internal/routing"
)

// replica is one full copy of the model. It keeps its identity while its number
// changes.
type replica struct {
	server  *server
	rank    int // its place among the ranks of the server
	index   int // its number, routing.None when it is no longer in the pool
	drained bool
	state   routing.State // as told to the core
	progress
}

// expected is the number of ranks to number, 0 when it is not known yet.
func (s *server) expected() int { return cmp.Or(s.stated, s.last.Info.Ranks) }

// wanted is how many replicas the server is to have. One that was not heard yet
// is taken to have as many ranks as the largest that was, so that the numbers of
// those behind it need not change later. Ranks that it no longer shows stay, as
// down: it may be about to show them again.
func (s *server) wanted(guess int) int {
	switch known := s.expected(); {
	case known == 0:
		return cmp.Or(len(s.replicas), guess)
	case s.stated > 0 || s.guessed:
		return known
	default:
		return max(known, len(s.replicas))
	}
}

// number gives the replicas their numbers, by server and then by rank, and makes
// the core or reshapes it, if there is anything to change. Before there is a core
// it waits until the ranks are known, or for the last servers long enough. It
// returns the servers that have new replicas. Callers hold mu.
func (p *Pool) number(now time.Time) (grown []*server, err error) {
	guess, missing, unheard := 0, false, false
	for _, s := range p.servers {
		guess = max(guess, s.expected(), len(s.replicas))
		missing = missing || s.expected() == 0
		unheard = unheard || s.expected() == 0 && s.last.Time.IsZero()
	}
	if p.core == nil && (guess == 0 || missing && p.found.IsZero() || unheard && now.Sub(p.found) < buildGrace) {
		return nil, nil
	}
	guess = max(guess, 1) // there are servers, and none was heard: others were before

	byServer := make([][]*replica, len(p.servers))
	var shape []routing.Replica
	var was []int
	for i, s := range p.servers {
		n := s.wanted(guess)
		list := slices.Clone(s.replicas[:min(n, len(s.replicas))])
		if len(list) < n {
			grown = append(grown, s)
		}
		for len(list) < n {
			list = append(list, &replica{server: s, rank: len(list), index: routing.None})
		}
		for _, r := range list {
			shape, was = append(shape, routing.Replica{Server: i}), append(was, r.index)
		}
		byServer[i] = list
	}
	replicas := slices.Concat(byServer...)
	if slices.Equal(replicas, p.replicas) {
		return nil, nil
	}
	if err := p.reshape(now, shape, was); err != nil {
		return nil, fmt.Errorf("model %q: %w", p.name, err)
	}

	renumbered := false
	for _, r := range p.replicas {
		renumbered = renumbered || r.index >= len(replicas) || replicas[r.index] != r
		r.index = routing.None
	}
	if renumbered {
		p.receipts = receiptRing{} // their numbers mean others now
	}
	for i, s := range p.servers {
		s.replicas, s.guessed = byServer[i], s.expected() == 0
	}
	for i, r := range replicas {
		r.index = i
	}
	p.replicas, p.blind = replicas, nil
	p.restore(now)
	return grown, nil
}

// reshape makes the core, or gives it other replicas.
func (p *Pool) reshape(now time.Time, replicas []routing.Replica, was []int) error {
	if p.core != nil {
		return p.core.Reshape(now, replicas, was)
	}
	opts := p.opts
	opts.Replicas = replicas
	c, err := p.newCore(opts)
	if err != nil {
		return err
	}
	p.core = c
	p.core.RestoreLearned(p.learned)
	return nil
}
