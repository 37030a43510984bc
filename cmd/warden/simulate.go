package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/app"
)

type simulateCommand struct {
	Protocol  protocolFlags `embed:""`
	Published bool          `help:"Print the published table beside simulated figures; the arms are the two that stand for its own."`
	Seeds     int           `default:"1" placeholder:"N" help:"Runs with --seed and the numbers after it; the table then shows means and 95% intervals (${default})."`
	Out       string        `placeholder:"DIR" help:"Folder for results.json, the tables, figures and report.html."`

	Replicas       replicaList   `default:"4" placeholder:"N" help:"Replicas (${default}); of several numbers, as in 2..8, each is measured on its own."`
	Servers        int           `default:"1" placeholder:"N" help:"Engine processes, each with a balancer of its own, that the replicas are spread over (${default})."`
	APIServers     int           `name:"api-servers" default:"1" placeholder:"N" help:"Processes of each that take requests, each with a balancer of its own (${default})."`
	RoundTrip      time.Duration `default:"220ms" placeholder:"TIME" help:"From the client to the gateway and back (${default})."`
	SpillThreshold int           `placeholder:"N" help:"Requests in flight that make a home full (default: automatic)."`
	Patience       time.Duration `placeholder:"TIME" help:"How long a request waits until the policy patience keeps a replica for it (default: automatic)."`
	Scrape         time.Duration `default:"1s" placeholder:"TIME" help:"How often the gateway looks at the engines (${default})."`
	EstimateError  float64       `placeholder:"SHARE" help:"How far off its estimates of prompts are, as in 0.2 (default: exact)."`
	Engine         engineFlags   `embed:""`

	Kill         []string `placeholder:"REPLICA@TIME[+TIME]" sep:"none" help:"A replica's server dies in each step, with all its replicas (see --servers), and returns with empty caches after the second time, or with the next step; repeatable, as in 1@60s+30s."`
	Slow         []string `placeholder:"REPLICAxFACTOR@TIME[+TIME]" sep:"none" help:"A replica takes FACTOR times as long; repeatable."`
	DrainReplica []string `placeholder:"REPLICA@TIME[+TIME]" sep:"none" help:"A replica is drained; repeatable."`

	Trace     []string      `placeholder:"FILE" sep:"none" help:"Replay recorded sessions instead of synthetic ones: Weka, Mooncake, AIPerf multi_turn or chat, as JSON lines; repeatable."`
	MaxThink  time.Duration `default:"60s" placeholder:"TIME" help:"Longest pause between two turns of a trace (${default})."`
	ThinkFrom []string      `placeholder:"FILE" help:"Draw the pauses of synthetic sessions from those of recorded ones (files as for --trace)."`
	Workload  workloadFlags `embed:""`
}

// Help is shown above the flags.
func (simulateCommand) Help() string {
	return `Runs a workload in virtual time: the gateway's own routing in front of modelled engines. The defaults are the published measurement. Prints table.md.

Sizes and times marked DIST are a number (400), a range (7200-7500), exp:MEAN, lognormal:MEDIAN,FACTOR (one value in six is above FACTOR times the median), or none.`
}

func (c simulateCommand) Run(ctx context.Context, io app.IO) error {
	return app.Simulate(ctx, io, app.SimulateOptions{
		Protocol: c.Protocol.options(len(c.Trace) > 0), Workload: c.Workload.options(), Trace: c.Trace, MaxThink: c.MaxThink, ThinkFrom: c.ThinkFrom, Seed: c.Protocol.Seed, Seeds: c.Seeds, Out: c.Out,
		Replicas: c.Replicas, Servers: c.Servers, APIServers: c.APIServers, RoundTrip: c.RoundTrip, SpillThreshold: c.SpillThreshold, Patience: c.Patience,
		ScrapeEvery: c.Scrape, EstimateError: c.EstimateError,
		Preset: c.Engine.Preset, Adjust: c.Engine.adjust, Kill: c.Kill, Slow: c.Slow, DrainReplica: c.DrainReplica, Published: c.Published,
	})
}

// protocolFlags say how a measurement is run.
type protocolFlags struct {
	Arms     []string       `default:"off,affinity" placeholder:"NAME" help:"Arms, one after the other: ${arms} (${default})."`
	Sessions sessionList    `default:"4,8,16,24,32" placeholder:"N" help:"Sessions at once, one step each; FROM..TO/STEP is a range (${default})."`
	Step     *time.Duration `placeholder:"TIME" help:"Length of a step (default 180s; with --trace until its sessions have ended, as 0 says)."`
	Drain    *time.Duration `placeholder:"TIME" help:"How long open sessions may go on after the last step; all else is cut (default 110s when the steps are the published ones, else 0)."`
	DrainAll bool           `help:"Drain after every step."`
	Rate     float64        `placeholder:"N" help:"Open loop: N sessions begin in a minute however busy the box is, at most --sessions at once, and waits count from when they were to begin (default: a closed loop)."`
	Cold     bool           `xor:"caches" help:"Empty the caches before each further arm; live before the first one too, where the engines can."`
	Warm     bool           `xor:"caches" help:"An arm finds what the arm before left (default)."`
	Fresh    bool           `help:"Draw the sizes of sessions anew for each arm; else all arms see the same sizes."`
	Seed     uint64         `default:"1" placeholder:"N" help:"Changes sessions and chance (${default})."`
}

// options says how it is run when nothing else is said: a trace to its end,
// else as published. What is drained counts to the last step and makes its rates
// too high, so it is drained only where the published figures need it.
func (f protocolFlags) options(trace bool) app.Protocol {
	published := app.PublishedProtocol()
	p := app.Protocol{Arms: f.Arms, Sessions: f.Sessions, DrainAll: f.DrainAll, Rate: f.Rate, Cold: f.Cold, Fresh: f.Fresh}
	switch {
	case f.Step != nil:
		p.Step = *f.Step
	case !trace:
		p.Step = published.Step
	}
	switch {
	case f.Drain != nil:
		p.Drain = *f.Drain
	case !trace && slices.Equal(p.Sessions, published.Sessions):
		p.Drain = published.Drain
	}
	return p
}

// workloadFlags are the synthetic sessions.
type workloadFlags struct {
	SystemTokens      int      `default:"3500" placeholder:"TOKENS" help:"System prompt that all sessions share (${default})."`
	FirstTokens       app.Dist `default:"7200-7500" placeholder:"DIST" help:"First message, without the system prompt (${default})."`
	Turns             int      `default:"6" placeholder:"N" help:"Turns of a session (${default})."`
	TurnTokens        app.Dist `default:"400" placeholder:"DIST" help:"New tokens of each later turn (${default})."`
	OutputTokens      app.Dist `default:"256" placeholder:"DIST" help:"Tokens of an answer (${default})."`
	Think             app.Dist `default:"none" placeholder:"DIST" help:"Seconds before each later turn (${default})."`
	Agents            int      `default:"0" placeholder:"N" help:"Sub-agents that a session starts after its first turn (${default})."`
	AgentTurns        int      `default:"3" placeholder:"N" help:"Turns of a sub-agent (${default})."`
	AgentFirstTokens  app.Dist `default:"1000-3000" placeholder:"DIST" help:"First message of a sub-agent (${default})."`
	Sessionless       float64  `default:"0" placeholder:"SHARE" help:"Share of requests without a session, 0 to 0.5 (${default})."`
	SessionlessTokens app.Dist `default:"200-600" placeholder:"DIST" help:"Their prompts (${default})."`
}

func (f workloadFlags) options() app.ClaudeCode { return app.ClaudeCode(f) }

// sessionList is numbers and ranges, as in 4,8..32/8.
type sessionList []int

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *sessionList) UnmarshalText(text []byte) (err error) {
	*l, err = parseNumbers(string(text), func(from int) int { return from })
	return err
}

// replicaList is numbers and ranges, as in 2..8.
type replicaList []int

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *replicaList) UnmarshalText(text []byte) (err error) {
	*l, err = parseNumbers(string(text), func(int) int { return 1 })
	return err
}

// parseNumbers reads a list of N, FROM..TO and FROM..TO/STEP; stepOf is STEP when it
// is not said.
func parseNumbers(text string, stepOf func(from int) int) (list []int, err error) {
	const most = 100_000
	for part := range strings.SplitSeq(text, ",") {
		first, rest, ranged := strings.Cut(part, "..")
		last, by, stepped := strings.Cut(rest, "/")
		if !ranged {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		step, err3 := stepOf(from), error(nil)
		if stepped {
			step, err3 = strconv.Atoi(by)
		}
		if cmp.Or(err1, err2, err3) != nil || from < 1 || to < from || to > most || step < 1 {
			return nil, fmt.Errorf("%q: give numbers from 1 to %d, as in 4,8,16 or 8..64/8", part, most)
		}
		for n := from; n <= to; n += step {
			list = append(list, n)
		}
	}
	return list, nil
}
