package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"lmwarden/internal/bench"
	"lmwarden/internal/bench/results"
	"lmwarden/internal/enginesim"
)

// Names of package bench that flags are made of.
type (
	Protocol   = bench.Protocol
	ClaudeCode = bench.ClaudeCode
	Dist       = bench.Dist
)

// SimulatedArms lists the arms of warden simulate by name.
func SimulatedArms() []string { return bench.Arms() }

// SimulateOptions are the flags of warden simulate.
type SimulateOptions struct {
	Protocol Protocol
	Workload ClaudeCode
	// Trace are files to replay instead of Workload, with pauses of at most MaxThink.
	Trace     []string
	MaxThink  time.Duration
	Seed      uint64
	Seeds     int
	Out       string // folder for the files, empty for none
	Replicas  int
	Servers   int
	RoundTrip time.Duration
	Preset    string
	Adjust    func(*SimParams) // changes the preset's parameters; nil leaves them
	// SpillThreshold 0 is automatic.
	SpillThreshold int
}

// Simulate runs a measurement in virtual time, prints its table and writes its
// files.
func Simulate(ctx context.Context, io IO, o SimulateOptions) error {
	params, err := enginesim.Preset(o.Preset)
	if err != nil {
		return usageErrorf("--preset: %v", err)
	}
	if o.Adjust != nil {
		o.Adjust(&params)
	}
	s := bench.Simulation{
		Workload: o.Workload, Protocol: o.Protocol, Seed: o.Seed, Seeds: o.Seeds,
		Box: bench.Box{
			Preset: o.Preset, Engine: params, Replicas: o.Replicas, Servers: o.Servers, RoundTrip: o.RoundTrip, SpillThreshold: o.SpillThreshold,
		},
	}
	if len(o.Trace) > 0 {
		s.Workload, err = bench.ReadTrace(o.Trace, bench.TraceOptions{MaxThink: o.MaxThink, BytesPerToken: params.BytesPerToken})
		if err != nil {
			return err
		}
	}
	if err := cmp.Or(o.Workload.Validate(), s.Validate()); err != nil {
		return UsageError{err.Error()}
	}
	r, err := bench.Simulate(ctx, s, printProgress(io.Err))
	if err != nil {
		return err
	}
	if o.Out != "" {
		if err := r.Write(o.Out); err != nil {
			return err
		}
	}
	_, err = fmt.Fprint(io.Out, r.Table())
	return err
}

// printProgress writes a line per step.
func printProgress(to io.Writer) func(bench.Progress) {
	return func(p bench.Progress) {
		fmt.Fprintf(to, "seed %d, %s, %d sessions:", p.Seed, p.Arm, p.Sessions)
		for _, c := range results.Columns()[:results.Published] {
			fmt.Fprintf(to, "  %s %s", c.Title, c.Format(c.Of(&p.Measures)))
		}
		fmt.Fprintln(to)
	}
}
