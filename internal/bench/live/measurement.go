package live

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"

	"slices"
	"strings"

	"lmwarden/internal/bench"
	"lmwarden/internal/bench/results"
)

// Measurement is a protocol to be run on a System, perhaps several times.
type Measurement struct {
	Workload bench.Workload
	Protocol bench.Protocol
	Seed     uint64
	// Repeat is how often the whole protocol is run, with Seed, Seed+1, ...
	Repeat int
	Order  Order
}

// Order is in which order the arms of a repetition stand.
type Order string

// Orders of arms.
const (
	AsGiven   Order = "given"
	Reversed  Order = "reversed"
	Alternate Order = "alternate" // as given, and reversed in every second repetition
	Random    Order = "random"    // drawn for each repetition by its seed
)

// Orders lists them.
func Orders() []Order { return []Order{AsGiven, Reversed, Alternate, Random} }

// Validate reports the first setting that makes no sense.
func (m Measurement) Validate() error {
	if m.Repeat < 1 {
		return fmt.Errorf("%d repetitions: give at least 1", m.Repeat)
	}
	if !slices.Contains(Orders(), m.Order) {
		return fmt.Errorf("unknown order %q: the orders are %s, %s, %s and %s", m.Order, AsGiven, Reversed, Alternate, Random)
	}
	return cmp.Or(m.Protocol.Validate(), m.Protocol.Suits(m.Workload))
}

// arms is the order of the arms in the n-th repetition, from 0.
func (m Measurement) arms(n int) []string {
	arms := slices.Clone(m.Protocol.Arms)
	switch {
	case m.Order == Reversed, m.Order == Alternate && n%2 == 1:
		slices.Reverse(arms)
	case m.Order == Random:
		rng := rand.New(rand.NewPCG(m.Seed+uint64(n), 0))
		rng.Shuffle(len(arms), func(i, j int) { arms[i], arms[j] = arms[j], arms[i] })
	}
	return arms
}

// Run runs it and hands over each step as it ends. When ctx ends or something
// breaks, the results are those of what was seen until then, nil when that is
// nothing, and the error says what it was.
func (m Measurement) Run(ctx context.Context, s *System, each func(bench.Measured)) (*results.Results, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := s.lasting(m.Protocol.Step); err != nil {
		return nil, err
	}
	if err := s.Check(m.Protocol.Arms); err != nil {
		return nil, err
	}
	var steps []bench.Measured
	var stopped error
	caches := map[string]string{}
	for n := range m.Repeat {
		p, seed := m.Protocol, m.Seed+uint64(n)
		p.Arms = m.arms(n)
		stopped = p.Run(ctx, seed, m.Workload, s, func(o bench.Observation) {
			step := p.Measure(seed, o, s)
			caches[step.Arm] = s.caches
			steps = append(steps, step)
			each(step)
		})
		if stopped != nil {
			break
		}
	}
	if len(steps) == 0 {
		return nil, stopped
	}
	why := ""
	switch {
	case ctx.Err() != nil:
		why = "interrupted"
	case stopped != nil:
		why = stopped.Error()
	}
	r, err := m.Protocol.Join(m.Workload, m.box(s, caches, why), steps)
	return r, cmp.Or(stopped, err)
}

// box says what was measured, as it stands in results.
func (m Measurement) box(s *System, caches map[string]string, stopped string) any {
	var engines, incidents, routers, started []string
	for _, p := range s.engines.all {
		engines = append(engines, p.url.Redacted())
	}
	for _, e := range s.started {
		started = append(started, e.URL.Redacted()+"="+e.Command)
	}
	for _, i := range s.o.Incidents {
		incidents = append(incidents, i.String())
	}
	for name, u := range s.o.Routers {
		routers = append(routers, name+"="+u.Redacted())
	}
	slices.Sort(routers)
	target := ""
	if s.o.Target != nil {
		target = s.o.Target.Redacted()
	}
	return struct {
		Mode          string            `json:"mode"`
		Target        string            `json:"target"`
		Routers       string            `json:"routers"`
		Engines       string            `json:"engines"`
		Model         string            `json:"model"`
		Dialect       Dialect           `json:"dialect"`
		Replicas      int               `json:"replicas"`
		Caches        map[string]string `json:"caches_before_arm"`
		Order         Order             `json:"order_of_arms"`
		Repeat        int               `json:"repeat"`
		Incidents     string            `json:"incidents"`
		BytesPerToken int               `json:"bytes_per_token"`
		TimeoutS      float64           `json:"timeout_s"`
		Started       []string          `json:"started,omitempty"` // commands of engines
		Stopped       string            `json:"stopped,omitempty"` // why it ended before its time
		Speed         float64           `json:"speed"`             // of simulated engines
	}{
		"live", target, strings.Join(routers, " "), strings.Join(engines, " "), s.model, s.o.Dialect, len(s.places), caches,
		m.Order, m.Repeat, strings.Join(incidents, ", "), s.o.BytesPerToken, s.o.Timeout.Seconds(), started, stopped, s.o.Speed,
	}
}
