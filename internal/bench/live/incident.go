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
	switch i.Kind {
	case bench.Kill:
		engine := s.places[i.Replica].engine
		if engine == nil {
			return fmt.Errorf("%s: the URL of the replica is not known", i)
		}
		if err := callJSON(ctx, s.plain, http.MethodGet, engine.JoinPath("sim", "state"), "", nil, nil); err != nil {
			return fmt.Errorf("%s: only a simulated engine (warden sim) can be killed: %w", i, err)
		}
	case bench.DrainReplica:
		if s.gateway == nil {
			return fmt.Errorf("%s: only a gateway with an admin API drains a replica", i)
		}
	default:
		return fmt.Errorf("%s: this can happen in virtual time only", i)
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
	switch i.Kind {
	case bench.Kill:
		down := i.For
		if down == 0 {
			down = max(length-i.At, time.Millisecond)
		}
		fail := map[string]string{"kind": "restart", "down": down.String()}
		s.bringAbout(i, func(ctx context.Context) error {
			return callJSON(ctx, s.plain, http.MethodPost, s.places[i.Replica].engine.JoinPath("sim", "fail"), "", fail, nil)
		})
	case bench.DrainReplica:
		s.drained[i.Replica] = true
		s.bringAbout(i, func(ctx context.Context) error { return s.gateway.order(ctx, i.Replica, "drain") })
		if i.For > 0 {
			s.inStep(i.For, func() { s.resume(i.Replica) })
		}
	}
}

// resume ends the draining of a replica.
func (s *System) resume(replica int) {
	if !s.drained[replica] {
		return
	}
	delete(s.drained, replica)
	s.bringAbout(bench.Incident{Kind: "resume", Replica: replica}, func(ctx context.Context) error {
		return s.gateway.order(ctx, replica, "resume")
	})
}

// bringAbout does something beside the load. That it did not work belongs beside
// the result.
func (s *System) bringAbout(i bench.Incident, do func(context.Context) error) {
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminWithin)
		defer cancel()
		if err := do(ctx); err != nil {
			s.o.Warn(fmt.Sprintf("%s: %v", i, err))
		}
	})
}

// order is POST .../replicas/N/drain or resume.
func (g *gateway) order(ctx context.Context, replica int, what string) error {
	return g.call(ctx, http.MethodPost, g.at(g.found.Name).JoinPath("replicas", strconv.Itoa(replica), what), nil, nil)
}
