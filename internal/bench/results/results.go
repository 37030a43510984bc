// Package results is the form of a measurement: what results.json holds, how it
// is read and checked, the table that people read, and the comparison of two
// measurements. It measures nothing.
//
// A measurement is one protocol run under one or more arms (policies, or other
// routers): a step for each number of sessions, and in it one run per seed.
package results

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// Schema is the version of the file's form.
const Schema = 1

// Results is a whole measurement. It holds no clock times: equal seeds give
// equal bytes.
type Results struct {
	Schema int `json:"schema"` // version of the form
	// Workload, Protocol and Box are the settings. Two measurements can be compared
	// when the first two are equal.
	Workload Settings `json:"workload"` // what the sessions sent
	Protocol Settings `json:"protocol"` // how they were run
	Box      Settings `json:"box"`      // what served them

	Arms []Arm `json:"arms"` // in the order in which they ran
	// Requests are what the figures were made of, arm by arm and step by step. They
	// are in requests.jsonl, not in results.json.
	Requests []Request `json:"-"`
}

// Arm is everything that was measured under one policy.
type Arm struct {
	Name  string `json:"name"`  // of the policy, or of another router
	Steps []Step `json:"steps"` // one for each number of sessions
}

// Step is one number of sessions: the mean over the runs.
type Step struct {
	Sessions int `json:"sessions"` // at once
	Measures
	// CI is the half width of the 95% confidence interval of each mean; nothing in
	// it is measured when there was one run.
	CI       Measures `json:"ci"`
	Replicas []Part   `json:"replicas"` // the same requests by the replica that served them
	ByTurn   []Part   `json:"by_turn"`  // the same requests by their number in the conversation
	Runs     []Run    `json:"runs"`     // figures of each run, in the order of the seeds
}

// Part is a share of a step's turns; the figures are means over the runs.
type Part struct {
	// Index is the replica from 0, or the number of the turn from 1.
	Index            int      `json:"index"`
	Turns            *float64 `json:"turns"`              // that finished
	FirstTurns       *float64 `json:"first_turns"`        // of them, the first of their conversation
	PrefixHitPercent *float64 `json:"prefix_hit_percent"` // by the counts in the answers
	TTFBP50          *float64 `json:"ttfb_p50_s"`         // median
}

// Run is one step of one seed.
type Run struct {
	Seed uint64 `json:"seed"` // equal seeds of two arms make a pair
	Measures
}

// Settings are named values as JSON has them, so that settings that were just
// made and settings that were read from a file compare equal.
type Settings map[string]any

// Describe turns a struct with json tags into settings.
func Describe(v any) (Settings, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("describe settings: %w", err)
	}
	var s Settings
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("describe settings: %w", err)
	}
	return s, nil
}

// Arm returns the arm of that name, nil when there is none.
func (r *Results) Arm(name string) *Arm {
	for i := range r.Arms {
		if r.Arms[i].Name == name {
			return &r.Arms[i]
		}
	}
	return nil
}

// Step returns the step with so many sessions, nil when there is none.
func (a *Arm) Step(sessions int) *Step {
	for i := range a.Steps {
		if a.Steps[i].Sessions == sessions {
			return &a.Steps[i]
		}
	}
	return nil
}

// JSON is the content of results.json.
func (r *Results) JSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("encode results: %w", err)
	}
	return b.Bytes(), nil
}

// Figure is a measured value, rounded to four decimals so that the last bits of
// a sum, which differ between processors, do not reach a file. NaN and infinite
// values are not measured.
func Figure(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	v = math.Round(v*1e4) / 1e4
	return &v
}
