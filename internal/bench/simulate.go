package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"lmwarden/internal/bench/results"
)

// Simulation is a measurement in virtual time.
type Simulation struct {
	Workload Workload // used by several goroutines at once
	// Name is the workload's, Settings a struct with json tags that describes it.
	Name     string
	Settings any
	Protocol Protocol
	Box      Box
	// Preset is the name of the engine's parameters.
	Preset string
	Seed   uint64
	Seeds  int // runs with Seed, Seed+1, ...; at least 1
}

// Progress says that a step of a run has ended.
type Progress struct {
	Seed     uint64
	Arm      string
	Sessions int
	Measures results.Measures
}

// Simulate runs all seeds, as many at once as there are cores, and returns the
// means. progress may be nil; it is called from several goroutines, but never
// twice at once. Equal simulations give equal results.
func Simulate(ctx context.Context, s Simulation, progress func(Progress)) (*results.Results, error) {
	if err := s.Protocol.Validate(); err != nil {
		return nil, err
	}
	if s.Seeds < 1 {
		return nil, fmt.Errorf("%d seeds: give at least 1", s.Seeds)
	}
	runs := make([]*run, s.Seeds)
	for i := range runs {
		runs[i] = &run{simulation: s, seed: s.Seed + uint64(i)}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	report := func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if progress != nil {
			progress(p)
		}
	}
	next := make(chan *run)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), s.Seeds) {
		workers.Go(func() {
			for r := range next {
				if err := r.do(ctx, report); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, r := range runs {
		next <- r
	}
	close(next)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return s.results(runs)
}

// run is the protocol under one seed.
type run struct {
	simulation Simulation
	seed       uint64
	steps      []runStep // arm by arm
}

type runStep struct {
	results.Run
	replicas, byTurn []results.Part
}

func (r *run) do(ctx context.Context, report func(Progress)) error {
	s := r.simulation
	v, err := newVirtual(s.Box, r.seed)
	if err != nil {
		return err
	}
	return s.Protocol.Run(ctx, r.seed, s.Workload, v, func(o Observation) {
		sessions := s.Protocol.Sessions[o.Sessions]
		m := measure(o, sessions, v.Replicas(), v.BlockTokens())
		r.steps = append(r.steps, runStep{
			results.Run{Seed: r.seed, Measures: m}, byReplica(o, v.Replicas()), byTurn(o),
		})
		report(Progress{Seed: r.seed, Arm: s.Protocol.Arms[o.Arm], Sessions: sessions, Measures: m})
	})
}

// results joins the runs, all of which are complete.
func (s Simulation) results(runs []*run) (*results.Results, error) {
	all := &results.Results{Schema: results.Schema}
	for arm, name := range s.Protocol.Arms {
		a := results.Arm{Name: name}
		for step, sessions := range s.Protocol.Sessions {
			var figures []results.Run
			var replicas, byTurn [][]results.Part
			for _, r := range runs {
				one := r.steps[arm*len(s.Protocol.Sessions)+step]
				figures = append(figures, one.Run)
				replicas = append(replicas, one.replicas)
				byTurn = append(byTurn, one.byTurn)
			}
			a.Steps = append(a.Steps, results.NewStep(sessions, figures, replicas, byTurn))
		}
		all.Arms = append(all.Arms, a)
	}
	var err error
	for _, part := range []struct {
		to   *results.Settings
		what any
	}{{&all.Workload, s.Settings}, {&all.Protocol, s.Protocol.describe()}, {&all.Box, s.describeBox()}} {
		if *part.to, err = results.Describe(part.what); err != nil {
			return nil, err
		}
	}
	all.Workload["name"] = s.Name
	return all, nil
}

// describeBox is the box as settings.
func (s Simulation) describeBox() any {
	return struct {
		Mode       string  `json:"mode"`
		Preset     string  `json:"preset"`
		Replicas   int     `json:"replicas"`
		Servers    int     `json:"servers"`
		RoundTripS float64 `json:"round_trip_s"`
		Spill      int     `json:"spill_threshold"`
		Engine     any     `json:"engine"`
	}{"virtual time", s.Preset, s.Box.Replicas, max(s.Box.Servers, 1), s.Box.RoundTrip.Seconds(), s.Box.SpillThreshold, s.Box.Engine}
}
