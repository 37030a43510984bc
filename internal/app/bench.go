package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lmwarden/internal/bench"
	"lmwarden/internal/bench/live"
	"lmwarden/internal/bench/report"
	"lmwarden/internal/bench/results"
)

// BenchOptions are the flags of warden bench.
type BenchOptions struct {
	Target, Admin string   // URLs; empty when only other routers are measured
	Routers       []string // NAME=URL
	EngineMetrics []string // base URLs of engines
	Model         string
	Dialect       string
	Key           string

	Protocol Protocol
	Workload ClaudeCode
	// Trace are files to replay instead of Workload, with pauses of at most MaxThink.
	Trace    []string
	MaxThink time.Duration
	// ThinkFrom are files of recorded sessions whose pauses Workload has in place of
	// Think.
	ThinkFrom    []string
	Seed         uint64
	Repeat       int
	Order        string
	Kill         []string // as bench.ParseIncident reads them
	Slow         []string
	DrainReplica []string

	// Start are engines to be started, as URL=COMMAND; each may take StartWithin until
	// it is ready.
	Start       []string
	StartWithin time.Duration

	BytesPerToken int
	Speed         float64
	Timeout       time.Duration
	Out           string // folder for the files, empty for none

	dial dialFunc // of tests; nil is the network
}

// BenchDialects and BenchOrders list what the flags of those names take.
func BenchDialects() []string { return names(live.Dialects()) }
func BenchOrders() []string   { return names(live.Orders()) }

func names[T ~string](all []T) []string {
	var list []string
	for _, one := range all {
		list = append(list, string(one))
	}
	return list
}

// Bench measures a running box under live load, prints the table and writes the
// files. When it is interrupted it does so with what it has.
func Bench(ctx context.Context, io IO, o BenchOptions) error {
	m, options, err := o.measurement()
	if err != nil {
		return err
	}
	view := newBenchView(io.Err)
	options.Warn = view.warn
	if n := len(options.Start); n > 0 {
		view.print(fmt.Sprintf("starting engines: %d, with their output in %s\n", n, options.Logs))
	}
	s, err := live.New(ctx, options)
	if err != nil {
		return err
	}
	stop := view.follow(s.Status)
	var steps []bench.Measured
	r, err := m.Run(ctx, s, func(step bench.Measured) {
		steps = append(steps, step)
		view.ended(step)
	})
	stop()
	err = cmp.Or(err, s.Close())
	if ctx.Err() != nil {
		err = errors.New("interrupted: the results are of what was measured until then")
	}
	if r == nil {
		return err
	}
	if o.Out != "" {
		err = errors.Join(err, report.Write(o.Out, r, machine()))
	}
	if _, printed := fmt.Fprint(io.Out, r.Table(), failures(steps)); printed != nil {
		err = errors.Join(err, printed)
	}
	if err == nil && !anyFinished(steps) {
		err = errors.New("no request was answered")
	}
	return err
}

// measurement checks the flags.
func (o BenchOptions) measurement() (live.Measurement, live.Options, error) {
	m := live.Measurement{Workload: o.Workload, Protocol: o.Protocol, Seed: o.Seed, Repeat: o.Repeat, Order: live.Order(o.Order)}
	v, commit, _ := buildVersion()
	options := live.Options{
		Model: o.Model, Dialect: live.Dialect(o.Dialect), Key: o.Key, BytesPerToken: o.BytesPerToken,
		Salt: rand.Uint64(), Speed: o.Speed, Timeout: o.Timeout, Cold: o.Protocol.Cold, Dial: o.dial,
		UserAgent: "warden-bench/" + strings.Fields(v + " " + commit)[0],
	}
	fail := func(err error) (live.Measurement, live.Options, error) { return m, options, err }
	var err error
	if options.Target, err = endpoint("--target", o.Target); err != nil {
		return fail(err)
	}
	if options.Admin, err = endpoint("--admin", o.Admin); err != nil {
		return fail(err)
	}
	if options.Routers, err = routers(o.Routers); err != nil {
		return fail(err)
	}
	for _, text := range o.EngineMetrics {
		u, err := endpoint("--engine-metrics", strings.TrimSuffix(text, "/metrics"))
		if err != nil {
			return fail(err)
		}
		options.Engines = append(options.Engines, u)
	}
	if options.Incidents, err = incidents(map[bench.IncidentKind][]string{bench.Kill: o.Kill, bench.Slow: o.Slow, bench.DrainReplica: o.DrainReplica}); err != nil {
		return fail(err)
	}
	if options.Start, err = engineStarts(o.Start); err != nil {
		return fail(err)
	}
	options.StartWithin, options.Logs = o.StartWithin, filepath.Join(o.Out, enginesFolder)
	if len(o.Start) > 0 && o.Out == "" {
		return fail(usageErrorf("--start without --out: give a folder, the engines' output goes there"))
	}
	others := slices.Sorted(maps.Keys(options.Routers))
	switch {
	case options.Target == nil && options.Admin != nil:
		return fail(usageErrorf("--admin without --target: give the gateway's address for clients too"))
	case options.Admin == nil && len(others) == 0:
		return fail(usageErrorf("nothing to measure: give --target and --admin of a gateway, whose policies are the arms, or --arm NAME=URL for any other endpoint"))
	case options.Admin == nil:
		m.Protocol.Arms = others
	default:
		m.Protocol.Arms = append(slices.Clone(m.Protocol.Arms), others...)
	}
	recorded := bench.TraceOptions{MaxThink: o.MaxThink, BytesPerToken: o.BytesPerToken}
	if m.Workload, err = workload(o.Workload, o.Trace, o.ThinkFrom, recorded); err != nil {
		return fail(err)
	}
	if err := cmp.Or(o.Workload.Validate(), m.Validate(), options.Validate()); err != nil {
		return fail(UsageError{err.Error()})
	}
	return m, options, nil
}

// endpoint reads a URL; an empty one is nil.
func endpoint(flag, text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return nil, usageErrorf("%s %q: give a URL like http://127.0.0.1:8100", flag, text)
	}
	return u, nil
}

// enginesFolder has the output of started engines.
const enginesFolder = "engines"

func engineStarts(texts []string) ([]live.Start, error) {
	var all []live.Start
	for _, text := range texts {
		at, command, ok := strings.Cut(text, "=")
		if !ok || at == "" || strings.TrimSpace(command) == "" {
			return nil, usageErrorf("--start %q: give URL=COMMAND, like 'http://127.0.0.1:8000=vllm serve MODEL --port 8000'", text)
		}
		u, err := endpoint("--start", at)
		if err != nil {
			return nil, err
		}
		all = append(all, live.Start{URL: u, Command: command})
	}
	return all, nil
}

func routers(texts []string) (map[string]*url.URL, error) {
	all := map[string]*url.URL{}
	for _, text := range texts {
		name, at, ok := strings.Cut(text, "=")
		if !ok || name == "" || at == "" || all[name] != nil {
			return nil, usageErrorf("--arm %q: give NAME=URL, each name once", text)
		}
		var err error
		if all[name], err = endpoint("--arm", at); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func incidents(texts map[bench.IncidentKind][]string) ([]bench.Incident, error) {
	var all []bench.Incident
	for _, kind := range slices.Sorted(maps.Keys(texts)) {
		for _, text := range texts[kind] {
			i, err := bench.ParseIncident(kind, text)
			if err != nil {
				return nil, usageErrorf("--%s: %v", kind, err)
			}
			all = append(all, i)
		}
	}
	return all, nil
}

func anyFinished(steps []bench.Measured) bool {
	return slices.ContainsFunc(steps, func(m bench.Measured) bool { return m.Turns != nil && *m.Turns > 0 })
}

// failures are the requests that failed, counted by step and class. They are in
// no average, so they stand beside the table.
func failures(steps []bench.Measured) string {
	var b strings.Builder
	for _, step := range steps {
		classes, failed := map[string]int{}, 0
		for _, q := range step.Requests {
			if q.End == results.Failed {
				class, _, _ := strings.Cut(*q.Error, ":")
				classes[class]++
				failed++
			}
		}
		if failed == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s, %d sessions, seed %d: %d of %d requests failed, and are in no average:", step.Arm, step.Sessions, step.Seed, failed, len(step.Requests))
		for i, class := range slices.Sorted(maps.Keys(classes)) {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, " %d %s", classes[class], class)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
