package bench

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"lmwarden/internal/bench/results"
	"lmwarden/internal/routing"
)

// Simulation is a measurement in virtual time.
type Simulation struct {
	Workload Workload // used by several goroutines at once
	Protocol Protocol
	Box      Box
	Seed     uint64
	Seeds    int // runs with Seed, Seed+1, ...; at least 1
}

// Validate reports the first setting that makes no sense.
func (s Simulation) Validate() error {
	for _, arm := range s.Protocol.Arms {
		if arms := Arms(); !slices.Contains(arms, arm) {
			return fmt.Errorf("unknown arm %q: the arms are %s", arm, strings.Join(arms, ", "))
		}
	}
	if s.Seeds < 1 {
		return fmt.Errorf("%d seeds: give at least 1", s.Seeds)
	}
	return cmp.Or(s.Protocol.Validate(), s.Protocol.Suits(s.Workload), s.Box.Validate())
}

// Arms lists the arms that Simulate knows.
func Arms() []string { return append(routing.Policies(), PublishedOn) }

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
	if err := s.Validate(); err != nil {
		return nil, err
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
	var steps []Measured
	for _, r := range runs {
		steps = append(steps, r.steps...)
	}
	return s.Protocol.Join(s.Workload, s.Box.settings(), steps)
}

// run is the protocol under one seed.
type run struct {
	simulation Simulation
	seed       uint64
	steps      []Measured
}

func (r *run) do(ctx context.Context, report func(Progress)) error {
	s := r.simulation
	v, err := newVirtual(s.Box, r.seed)
	if err != nil {
		return err
	}
	return s.Protocol.Run(ctx, r.seed, s.Workload, v, func(o Observation) {
		m := s.Protocol.Measure(r.seed, o, v)
		r.steps = append(r.steps, m)
		report(Progress{Seed: r.seed, Arm: m.Arm, Sessions: m.Sessions, Measures: m.Measures})
	})
}
