package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim"
	"lmwarden/internal/enginesim/server"
	"lmwarden/internal/pool"
)

// The demo's box is the one of the published measurement; its time runs fast so
// that half a minute shows several sessions of each agent.
const (
	demoPreset   = "a4000-qwen3-4b"
	demoReplicas = 4
	demoSpeed    = 10
	demoModel    = "qwen3-4b-dp4"
	demoSeed     = 7
)

// DemoOptions are the flags of warden demo.
type DemoOptions struct {
	Keep   bool          // stay up after the comparison
	Phase  time.Duration // of each of the two
	Agents int
}

// Demo runs a simulated box, a gateway and agents: first with affinity off, then
// on, and prints what changed.
func Demo(ctx context.Context, io IO, o DemoOptions) error {
	if o.Agents < 1 || o.Phase < time.Second {
		return usageErrorf("--agents %d --phase %v: there must be at least 1 agent and 1 second", o.Agents, o.Phase)
	}
	params, err := enginesim.Preset(demoPreset)
	if err != nil {
		return err
	}
	engine, err := server.New(server.Options{
		Params: params, Replicas: demoReplicas, Models: []string{demoModel}, Speed: demoSpeed, Seed: demoSeed,
	})
	if err != nil {
		return err
	}
	var box simulatedBox
	if err := box.listen("127.0.0.1:0", engine); err != nil {
		return err
	}
	boxCtx, stopBox := context.WithCancel(context.Background())
	var boxErr error
	var running sync.WaitGroup
	running.Go(func() { boxErr = box.serve(boxCtx) })
	defer running.Wait()
	defer stopBox()

	cfg, err := demoConfig(box.urls()[0])
	if err != nil {
		return err
	}
	g, err := NewGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := g.Start(); err != nil {
		return err
	}
	defer g.Stop()
	model, err := g.awaitModel(ctx)
	if err != nil {
		return err
	}

	fmt.Fprintf(io.Out, "A simulated box (%s, %d replicas, time runs %dx), the gateway, and %d agents.\n", demoPreset, demoReplicas, demoSpeed, o.Agents)
	fmt.Fprintf(io.Out, "Routing card: %s/models/%s    clients: %s    engine: %s\n\n", g.AdminURL(), demoModel, g.URL(), box.urls()[0])
	var phases []*phase
	for i, on := range []bool{false, true} {
		if err := model.SetAffinity(on); err != nil {
			return err
		}
		if _, err := http.Post(box.urls()[0]+"/reset_prefix_cache", "", nil); err != nil {
			return fmt.Errorf("empty the simulated caches: %w", err)
		}
		p := &phase{affinity: on, length: o.Phase, seed: demoSeed + uint64(i)}
		phases = append(phases, p)
		p.run(ctx, io.Out, g.URL(), model, o.Agents)
		if ctx.Err() != nil {
			break // interrupted: report what there is
		}
	}
	printPhases(io.Out, phases)
	if o.Keep && ctx.Err() == nil {
		fmt.Fprintf(io.Out, "\nStaying up with affinity on and no load; interrupt to end.\n")
		<-ctx.Done()
	}
	return boxErr
}

// demoConfig is a gateway on free ports that keeps nothing.
func demoConfig(engine string) (*config.Config, error) {
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Data = "127.0.0.1:0", "127.0.0.1:0", config.MemoryOnly
	cfg.StopTimeout = config.Duration(2 * time.Second)
	// A conversation is live for ten minutes of the box's time.
	m := config.Model{Name: demoModel, Engines: make([]config.Engine, 1), LiveFor: config.Duration(10 * time.Minute / demoSpeed)}
	if err := m.Engines[0].URL.UnmarshalText([]byte(engine)); err != nil {
		return nil, err
	}
	cfg.Models = []config.Model{m}
	cfg.Fill()
	return cfg, cfg.Validate(Policies())
}

// awaitModel waits until the only model is ready.
func (g *Gateway) awaitModel(ctx context.Context) (*pool.Pool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := g.models.Ready()
		if err == nil {
			return g.models.Pools()[0], nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the simulated box: %w", err)
		}
	}
}

// phase is one half of the demo and what the agents measured in it.
type phase struct {
	affinity bool
	length   time.Duration
	seed     uint64
	ran      time.Duration

	mu sync.Mutex
	// Guarded by mu.
	turns, sessions, failed int
	prompt, cached, output  int64
	ttfb                    []time.Duration
}

// run lets the agents work for the phase's length and prints a line a second.
func (p *phase) run(ctx context.Context, out io.Writer, url string, model *pool.Pool, n int) {
	ctx, cancel := context.WithTimeout(ctx, p.length)
	defer cancel()
	start := time.Now()
	var working sync.WaitGroup
	working.Go(func() {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
		defer client.CloseIdleConnections()
		agents(ctx, client, url, n, p.seed, p.add)
	})
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.line(out, time.Since(start), model.View())
		case <-ctx.Done():
			working.Wait()
			p.ran = time.Since(start)
			return
		}
	}
}

func (p *phase) add(t turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.failed != nil {
		p.failed++
		return
	}
	p.turns++
	if t.completedSession {
		p.sessions++
	}
	p.prompt += t.prompt
	p.cached += t.cached
	p.output += t.completion
	p.ttfb = append(p.ttfb, t.ttfb)
}

func (p *phase) name() string {
	if p.affinity {
		return "on"
	}
	return "off"
}

func (p *phase) line(out io.Writer, at time.Duration, v pool.View) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(out, "%3.0f s  affinity %-3s  turns %4d  cached %5.1f%%  TTFB p50 %5.2f s  running", at.Seconds(), p.name(), p.turns, p.cachedPercent(), p.quantile(0.5))
	for _, r := range v.Replicas {
		fmt.Fprintf(out, " %d", r.Load.Running)
	}
	if p.failed > 0 {
		fmt.Fprintf(out, "  failed %d", p.failed)
	}
	fmt.Fprintln(out)
}

// The methods below are called with mu held, or when the phase is over. Times
// and rates are those of the simulated box.

func (p *phase) cachedPercent() float64 {
	if p.prompt == 0 {
		return 0
	}
	return 100 * float64(p.cached) / float64(p.prompt)
}

// quantile is a TTFB in simulated seconds, by nearest rank; NaN without turns.
func (p *phase) quantile(q float64) float64 {
	if len(p.ttfb) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(p.ttfb))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)].Seconds() * demoSpeed
}

func (p *phase) perMinute(n int64) float64 {
	if p.ran <= 0 {
		return 0
	}
	return float64(n) / (p.ran.Minutes() * demoSpeed)
}

// printPhases prints the comparison.
func printPhases(out io.Writer, phases []*phase) {
	fmt.Fprintf(out, "\nWhat changed (times are those of the simulated box):\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, value func(*phase) string) {
		fmt.Fprintf(w, "%s\t", name)
		for _, p := range phases {
			fmt.Fprintf(w, "%s\t", value(p))
		}
		fmt.Fprintln(w)
	}
	row("affinity", (*phase).name)
	row("prompt tokens from cache", func(p *phase) string { return fmt.Sprintf("%.1f%%", p.cachedPercent()) })
	row("TTFB p50", func(p *phase) string { return fmt.Sprintf("%.2f s", p.quantile(0.5)) })
	row("TTFB p95", func(p *phase) string { return fmt.Sprintf("%.2f s", p.quantile(0.95)) })
	row("turns a minute", func(p *phase) string { return fmt.Sprintf("%.1f", p.perMinute(int64(p.turns))) })
	row("output tokens a minute", func(p *phase) string { return fmt.Sprintf("%.0f", p.perMinute(p.output)) })
	row("sessions completed", func(p *phase) string { return fmt.Sprint(p.sessions) })
	row("failed turns", func(p *phase) string { return fmt.Sprint(p.failed) })
	w.Flush()
}
