package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Protocol is how a workload is run: all steps under the first arm, then all
// under the next.
type Protocol struct {
	Arms     []string
	Sessions []int // at once, one step each
	// Step is the length of a step; 0 lasts until the workload has no more sessions.
	Step time.Duration
	// Drain is how long the sessions that are open at the end of the last step may
	// go on. They start no new one, and what they do counts to the step. Then, and
	// at the end of every other step, open turns are cut.
	Drain time.Duration
	// DrainAll does the same after every step.
	DrainAll bool
	// Rate is how many sessions begin in a minute, however busy the system is: an
	// open loop, of at most so many sessions at once. Waits count from when a session
	// was to begin. 0 is a closed loop.
	Rate float64
	// Cold empties the caches before each arm; else an arm finds what the arm
	// before left.
	Cold bool
	// Fresh draws the sizes of the sessions anew for each arm; else they are the same
	// in all arms. Texts are an arm's own in any case.
	Fresh bool
}

// PublishedProtocol is that of the published measurement, whose last step alone
// cannot have been cut.
func PublishedProtocol() Protocol {
	return Protocol{
		Arms:     []string{"off", "affinity"},
		Sessions: []int{4, 8, 16, 24, 32},
		Step:     180 * time.Second,
		Drain:    110 * time.Second,
	}
}

// settle is how long a system is left alone before each step: engines take a
// moment to drop what was cut, and the gateway to hear of it. Nothing of it is
// measured.
const settle = 2 * time.Second

// mostRate is a session every 60 µs.
const mostRate = 1_000_000

// every is the mean time between two sessions of an open loop; 0 is a closed one.
func (p Protocol) every() time.Duration {
	if p.Rate == 0 {
		return 0
	}
	return max(time.Duration(float64(time.Minute)/p.Rate), 1)
}

// Validate reports the first setting that makes no sense.
func (p Protocol) Validate() error {
	switch {
	case len(p.Arms) == 0:
		return fmt.Errorf("no arms: name at least one policy")
	case len(p.Sessions) == 0:
		return fmt.Errorf("no steps: give at least one number of sessions")
	case !(p.Rate >= 0 && p.Rate <= mostRate):
		return fmt.Errorf("rate of %v sessions a minute: give 0 to %v", p.Rate, float64(mostRate))
	case p.Step < 0 || p.Drain < 0:
		return fmt.Errorf("step of %v and drain of %v: neither may be negative", p.Step, p.Drain)
	}
	for i, arm := range p.Arms {
		if slices.Contains(p.Arms[:i], arm) {
			return fmt.Errorf("arm %q is there twice: each arm runs once, repeat it with more seeds", arm)
		}
	}
	for i, n := range p.Sessions {
		if n < 1 || slices.Contains(p.Sessions[:i], n) {
			return fmt.Errorf("%d sessions: each step has another number, at least 1", n)
		}
	}
	return nil
}

// Suits tells whether the steps of a workload come to an end.
func (p Protocol) Suits(w Workload) error {
	if p.Step == 0 && w.Endless() {
		return fmt.Errorf("step of 0 lasts until the workload has no more sessions, and this one always has: give a length")
	}
	return nil
}

// settings is the protocol as it stands in results.
func (p Protocol) settings() any {
	return struct {
		Arms     string  `json:"arms"`
		Sessions []int   `json:"sessions"`
		StepS    float64 `json:"step_s"`
		DrainS   float64 `json:"drain_s"`
		DrainAll bool    `json:"drain_all"`
		Rate     float64 `json:"sessions_per_min,omitempty"` // of an open loop
		Cold     bool    `json:"cold"`
		Fresh    bool    `json:"fresh_sizes_per_arm"`
	}{strings.Join(p.Arms, ","), p.Sessions, p.Step.Seconds(), p.Drain.Seconds(), p.DrainAll, p.Rate, p.Cold, p.Fresh}
}

// Observation is everything that was seen of one step.
type Observation struct {
	Arm, Sessions int // indexes into the Protocol
	// Length is the time of load, without what was drained.
	Length  time.Duration
	Records []Record
	Ended   []EndedSession // sessions that came to their end
	// Moved are the engines' counters over the whole step. Busy is the mean number
	// of replicas with requests running, over Length.
	Moved Counters
	Busy  float64
}

// Record is one turn as a client saw it. N is its number in its conversation,
// from 1, or 0 for a request without a session.
type Record struct {
	Session, Parent uint64
	Client, N       int
	Known           int // as in Turn
	Result
}

// EndedSession is a session from its first request to its last answer.
type EndedSession struct {
	Session  uint64
	From, To time.Duration
}

// Run runs the protocol and hands over each step as it ends. An error of ctx
// ends the step under way first, so that what was seen of it is handed over too.
func (p Protocol) Run(ctx context.Context, seed uint64, w Workload, s System, each func(Observation)) error {
	if err := cmp.Or(p.Validate(), p.Suits(w)); err != nil {
		return err
	}
	for arm, name := range p.Arms {
		if err := s.Switch(name, p.Cold && arm > 0); err != nil {
			return fmt.Errorf("switch to arm %q: %w", name, err)
		}
		for step := range p.Sessions {
			o, err := p.step(ctx, seed, arm, step, w, s)
			if o.Length > 0 {
				each(o)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// step runs one step and cuts what is open at its end.
func (p Protocol) step(ctx context.Context, seed uint64, arm, step int, w Workload, s System) (Observation, error) {
	place := Place{Seed: seed, Arm: arm, Step: step}
	if p.Fresh {
		place.Draw = arm
	}
	if err := s.Settle(ctx, settle); err != nil {
		return Observation{}, err
	}
	before, start := s.Counters(), s.Now()
	s.Begin(Step{Arm: p.Arms[arm], Sessions: p.Sessions[step], Length: p.Step})
	l := newLoad(s, w, place, p.Sessions[step])
	l.every = p.every()
	l.start()
	until := time.Duration(math.MaxInt64)
	if p.Step > 0 {
		until = start + p.Step
	}
	err := s.Run(ctx, until, l.idle)
	loaded := s.Counters()
	o := Observation{Arm: arm, Sessions: step, Length: s.Now() - start}
	o.Busy = (loaded.BusySeconds - before.BusySeconds) / o.Length.Seconds()

	l.close()
	if err == nil && (p.DrainAll || step == len(p.Sessions)-1) && p.Drain > 0 {
		err = s.Run(ctx, s.Now()+p.Drain, l.idle)
	}
	l.over = true
	s.Cut()
	after := s.Counters()
	o.Records, o.Ended = l.records, l.ended
	o.Moved = Counters{
		PromptTokens: after.PromptTokens - before.PromptTokens,
		CachedTokens: after.CachedTokens - before.CachedTokens,
		BusySeconds:  after.BusySeconds - before.BusySeconds,
		Preemptions:  after.Preemptions - before.Preemptions,
	}
	return o, err
}
