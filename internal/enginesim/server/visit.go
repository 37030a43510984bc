package server

import (
	"context"
	"net/http"
	"slices"
	"sync"
)

// Counts say how many requests for an answer are open, and how the others ended: each in exactly one
// of the ways below. They are of the whole simulation, not of one life of its server.
type Counts struct {
	Open    int `json:"open"`
	Served  int `json:"served"`  // answered to the end
	Aborted int `json:"aborted"` // ended by the engine before their time, with what looks like an end
	Failed  int `json:"failed"`  // cut, reset, or ended by an error after they were taken
	Refused int `json:"refused"` // answered with an error status, and never taken
	Left    int `json:"left"`    // the client went away first
}

// outcome chooses the field of Counts in which a request ended.
type outcome func(*Counts) *int

func served(c *Counts) *int  { return &c.Served }
func aborted(c *Counts) *int { return &c.Aborted }
func failed(c *Counts) *int  { return &c.Failed }
func refused(c *Counts) *int { return &c.Refused }
func left(c *Counts) *int    { return &c.Left }

// tally counts visits.
type tally struct {
	mu       sync.Mutex
	unrouted Counts   // guarded by mu: those that no rank has taken
	ranks    []Counts // guarded by mu
}

func (t *tally) arrive() *visit {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unrouted.Open++
	return &visit{tally: t, rank: unrouted}
}

// row is called with mu held.
func (t *tally) row(rank int) *Counts {
	if rank == unrouted {
		return &t.unrouted
	}
	for rank >= len(t.ranks) {
		t.ranks = append(t.ranks, Counts{})
	}
	return &t.ranks[rank]
}

func (t *tally) counts() (unrouted Counts, ranks []Counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unrouted, slices.Clone(t.ranks)
}

// visit is one request for an answer, from its arrival to its outcome. It belongs to the handler's
// goroutine.
type visit struct {
	tally   *tally
	rank    int
	outcome outcome // as far as it is known; nil before
}

// unrouted is the rank of a visit that none has taken yet.
const unrouted = -1

// take books the visit on the rank that got it, or its first sequence.
func (v *visit) take(rank int) {
	v.tally.mu.Lock()
	defer v.tally.mu.Unlock()
	v.tally.row(v.rank).Open--
	v.tally.row(rank).Open++
	v.rank = rank
}

func (v *visit) leave() {
	v.tally.mu.Lock()
	defer v.tally.mu.Unlock()
	row := v.tally.row(v.rank)
	row.Open--
	*v.outcome(row)++
}

type visitKey struct{}

// visitOf returns the visit that a request on a route that generates is.
func visitOf(r *http.Request) *visit {
	v, _ := r.Context().Value(visitKey{}).(*visit)
	return v
}

// tallied counts the requests of a route that generates.
func (s *Server) tallied(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := s.tally.arrive()
		returned := false
		defer func() {
			switch {
			case !returned: // it was cut
				v.outcome = failed
			case v.outcome != nil:
			case r.Context().Err() == nil:
				v.outcome = refused
			case s.process().ending.Load():
				v.outcome = failed
			default:
				v.outcome = left
			}
			v.leave()
		}()
		serve(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
		returned = true
	}
}
