package bench

import "lmwarden/internal/bench/results"

// Measured are the figures of one step of one run.
type Measured struct {
	Arm      string
	Sessions int
	results.Run
	Replicas, ByTurn []results.Part
	Requests         []results.Request
}

// Measure turns what was seen of a step of the protocol on s into figures.
func (p Protocol) Measure(seed uint64, o Observation, s System) Measured {
	sessions := p.Sessions[o.Sessions]
	return Measured{
		Arm: p.Arms[o.Arm], Sessions: sessions,
		Run:      results.Run{Seed: seed, Measures: measure(o, sessions, s.Replicas(), s.BlockTokens())},
		Replicas: byReplica(o, s.Replicas()), ByTurn: byTurn(o),
		Requests: o.Requests(p.Arms[o.Arm], sessions, seed),
	}
}

// Join puts the steps of all runs together, in the order of the protocol. What
// no run has measured, because it was interrupted, is left out. box is a struct
// with json tags that says what was measured.
func (p Protocol) Join(w Workload, box any, steps []Measured) (*results.Results, error) {
	all := &results.Results{Schema: results.Schema}
	for _, name := range p.Arms {
		arm := results.Arm{Name: name}
		for _, sessions := range p.Sessions {
			var runs []results.Run
			var replicas, byTurn [][]results.Part
			for _, m := range steps {
				if m.Arm == name && m.Sessions == sessions {
					runs = append(runs, m.Run)
					replicas, byTurn = append(replicas, m.Replicas), append(byTurn, m.ByTurn)
					all.Requests = append(all.Requests, m.Requests...)
				}
			}
			if len(runs) > 0 {
				arm.Steps = append(arm.Steps, results.NewStep(sessions, runs, replicas, byTurn))
			}
		}
		if len(arm.Steps) > 0 {
			all.Arms = append(all.Arms, arm)
		}
	}
	var err error
	for _, part := range []struct {
		to   *results.Settings
		what any
	}{{&all.Workload, w.Settings()}, {&all.Protocol, p.settings()}, {&all.Box, box}} {
		if *part.to, err = results.Describe(part.what); err != nil {
			return nil, err
		}
	}
	return all, nil
}
