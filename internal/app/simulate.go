package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"lmwarden/internal/bench"
	"lmwarden/internal/bench/report"
	"lmwarden/internal/bench/results"
	"lmwarden/internal/enginesim"
)

// Names of package bench that flags are made of.
type (
	Protocol   = bench.Protocol
	ClaudeCode = bench.ClaudeCode
	Dist       = bench.Dist
)

// PublishedProtocol is that of the published measurement.
func PublishedProtocol() Protocol { return bench.PublishedProtocol() }

// SimulatedArms lists the arms of warden simulate by name.
func SimulatedArms() []string { return bench.Arms() }

// SimulateOptions are the flags of warden simulate.
type SimulateOptions struct {
	Protocol Protocol
	Workload ClaudeCode
	// Trace are files to replay instead of Workload, with pauses of at most MaxThink.
	Trace    []string
	MaxThink time.Duration
	// ThinkFrom are files of recorded sessions whose pauses Workload has in place of
	// Think.
	ThinkFrom []string
	Seed      uint64
	Seeds     int
	Out       string // folder for the files, empty for none
	Replicas  []int  // one measurement each
	Servers   int
	// APIServers is of each server.
	APIServers int
	RoundTrip  time.Duration
	Preset     string
	Adjust     func(*SimParams) // changes the preset's parameters; nil leaves them
	// SpillThreshold 0 is automatic.
	SpillThreshold int
	// Patience 0 is automatic.
	Patience time.Duration
	// ScrapeEvery and EstimateError are as in bench.Box.
	ScrapeEvery   time.Duration
	EstimateError float64
	Kill, Slow    []string // as bench.ParseIncident reads them
	DrainReplica  []string
	// Published prints the published table beside its simulated arms, which are run
	// instead of those of Protocol.
	Published bool
}

// Simulate runs a measurement in virtual time for each number of replicas, prints
// its table and writes its files.
func Simulate(ctx context.Context, io IO, o SimulateOptions) error {
	params, err := enginesim.Preset(o.Preset)
	if err != nil {
		return usageErrorf("--preset: %v", err)
	}
	if o.Adjust != nil {
		o.Adjust(&params)
	}
	table := (*results.Results).Table
	if o.Published {
		o.Protocol.Arms = bench.PublishedArms()
		table = func(r *results.Results) string { return bench.ReproductionTable(bench.Reproduction(r)) }
	}
	incidents, err := o.incidents()
	if err != nil {
		return err
	}
	s := bench.Simulation{
		Workload: o.Workload, Protocol: o.Protocol, Seed: o.Seed, Seeds: o.Seeds,
		Box: bench.Box{
			Preset: o.Preset, Engine: params, Servers: o.Servers, APIServers: o.APIServers, RoundTrip: o.RoundTrip, SpillThreshold: o.SpillThreshold, Patience: o.Patience,
			ScrapeEvery: o.ScrapeEvery, EstimateError: o.EstimateError, Incidents: incidents,
		},
	}
	recorded := bench.TraceOptions{MaxThink: o.MaxThink, BytesPerToken: params.BytesPerToken}
	if s.Workload, err = workload(o.Workload, o.Trace, o.ThinkFrom, recorded); err != nil {
		return err
	}
	for _, s.Box.Replicas = range o.Replicas {
		if err := cmp.Or(o.Workload.Validate(), s.Validate()); err != nil {
			return UsageError{err.Error()}
		}
	}
	for i, replicas := range o.Replicas {
		s.Box.Replicas = replicas
		out, title := o.Out, ""
		if len(o.Replicas) > 1 {
			title = fmt.Sprintf("%d replicas\n\n", replicas)
			if i > 0 {
				title = "\n" + title
			}
			if out != "" {
				out = filepath.Join(out, fmt.Sprintf("replicas-%d", replicas))
			}
		}
		r, err := bench.Simulate(ctx, s, printProgress(io.Err))
		if err != nil {
			return err
		}
		if out != "" {
			if err := report.Write(out, r, machine()); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprint(io.Out, title, table(r)); err != nil {
			return err
		}
	}
	return nil
}

func (o SimulateOptions) incidents() ([]bench.Incident, error) {
	var all []bench.Incident
	for _, f := range []struct {
		flag  string
		kind  bench.IncidentKind
		texts []string
	}{{"--kill", bench.Kill, o.Kill}, {"--slow", bench.Slow, o.Slow}, {"--drain-replica", bench.DrainReplica, o.DrainReplica}} {
		for _, text := range f.texts {
			i, err := bench.ParseIncident(f.kind, text)
			if err != nil {
				return nil, usageErrorf("%s %v", f.flag, err)
			}
			all = append(all, i)
		}
	}
	return all, nil
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

// workload is the synthetic sessions, with recorded pauses if there are files of
// them, or the recorded sessions of a trace instead.
func workload(w ClaudeCode, trace, thinkFrom []string, o bench.TraceOptions) (bench.Workload, error) {
	switch {
	case len(trace) > 0 && len(thinkFrom) > 0:
		return nil, usageErrorf("--trace and --think-from exclude each other: recorded sessions have their own pauses")
	case len(trace) > 0:
		return bench.ReadTrace(trace, o)
	case len(thinkFrom) > 0:
		t, err := bench.ReadTrace(thinkFrom, o)
		if err != nil {
			return nil, err
		}
		return w.PacedBy(t)
	}
	return w, nil
}
