package live

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"lmwarden/internal/bench"
)

// canHappen checks that an incident can be brought about here.
func (s *System) canHappen(ctx context.Context, i bench.Incident) error {
	if i.Replica >= len(s.places) {
		return fmt.Errorf("%s: there is no such replica: %d are known", i, len(s.places))
	}
	engine := s.places[i.Replica].engine
	if i.Kind == bench.DrainReplica {
		if s.gateway == nil {
			return fmt.Errorf("%s: only a gateway with an admin API drains a replica", i)
		}
		return nil
	}
	switch {
	case engine == nil:
		return fmt.Errorf("%s: the URL of the replica is not known", i)
	case i.Kind == bench.Kill && s.startedAt(engine) != nil:
		return nil
	}
	if err := callJSON(ctx, s.plain, http.MethodGet, engine.JoinPath("sim", "state"), "", nil, nil); err != nil {
		if i.Kind == bench.Slow {
			// Stopping and continuing its process again and again would not do it: what a card
			// has been given it computes as fast as ever.
			return fmt.Errorf("%s: only a simulated engine (warden sim) can be slowed: %w", i, err)
		}
		return fmt.Errorf("%s: only a simulated engine (warden sim), or one that this measurement has started, can be killed: %w", i, err)
	}
	return nil
}

// lasting checks that every incident of steps of that length has an end.
func (s *System) lasting(step time.Duration) error {
	for _, i := range s.o.Incidents {
		if i.Kind == bench.Kill && i.For == 0 && step == 0 {
			return fmt.Errorf("%s: steps have no length, so say for how long: %s+20s", i, i)
		}
	}
	return nil
}

// strike brings an incident about, in a step of that length.
func (s *System) strike(i bench.Incident, length time.Duration) {
	at := s.places[i.Replica]
	switch i.Kind {
	case bench.Kill:
		if e := s.startedAt(at.engine); e != nil {
			s.killStarted(e, i)
			return
		}
		down := i.For
		if down == 0 {
			down = max(length-i.At, time.Millisecond)
		}
		s.fail(i.String(), at, map[string]any{"kind": "restart", "down": down.String()})
		return
	case bench.Slow:
		s.fail(i.String(), at, map[string]any{"kind": "slow", "rank": max(at.rank, 0), "factor": i.Factor})
		s.mends[i] = func() {
			s.fail("end of "+i.String(), at, map[string]any{"kind": "slow", "rank": max(at.rank, 0), "factor": 1})
		}
	case bench.DrainReplica:
		s.order(i.String(), i.Replica, "drain")
		s.mends[i] = func() { s.order("end of "+i.String(), i.Replica, "resume") }
	}
	if i.For > 0 {
		s.inStep(i.For, func() { s.mend(i) })
	}
}

// killStarted kills an engine of our own. Without a time it stays down until the
// step is over.
func (s *System) killStarted(e *startedEngine, i bench.Incident) {
	e.kill()
	if i.For > 0 {
		s.inStep(i.For, func() {
			if e.killed {
				e.begin(&s.lives)
				e.loaded = true // the step goes on
			}
		})
	}
}

// mend ends an incident that is on.
func (s *System) mend(i bench.Incident) {
	if end := s.mends[i]; end != nil {
		delete(s.mends, i)
		end()
	}
}

// fail makes a simulated engine fail.
func (s *System) fail(what string, at place, failure map[string]any) {
	s.bringAbout(what, func(ctx context.Context) error {
		return callJSON(ctx, s.plain, http.MethodPost, at.engine.JoinPath("sim", "fail"), "", failure, nil)
	})
}

// order has the gateway drain or resume a replica.
func (s *System) order(what string, replica int, order string) {
	s.bringAbout(what, func(ctx context.Context) error {
		at := s.gateway.at(s.gateway.found.Name).JoinPath("replicas", strconv.Itoa(replica), order)
		return s.gateway.call(ctx, http.MethodPost, at, nil, nil)
	})
}

// bringAbout does something beside the load, after whatever it was told before:
// the end of an incident must not overtake its beginning. That it did not work
// belongs beside the result.
func (s *System) bringAbout(what string, do func(context.Context) error) {
	before, done := s.brought, make(chan struct{})
	s.brought = done
	s.running.Go(func() {
		defer close(done)
		if before != nil {
			<-before
		}
		ctx, cancel := context.WithTimeout(context.Background(), adminWithin)
		defer cancel()
		if err := do(ctx); err != nil {
			s.o.Warn(fmt.Sprintf("%s: %v", what, err))
		}
	})
}
