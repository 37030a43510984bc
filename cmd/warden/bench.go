package main

import (
	"context"
	"os/signal"
	"syscall"
	"time"

	"lmwarden/internal/app"
)

type benchCommands struct {
	Run     benchCommand   `cmd:"" default:"withargs" help:"Measure a running box (what warden bench alone does)."`
	Compare compareCommand `cmd:"" help:"Set two measurements side by side."`
}

type benchCommand struct {
	Target  string `placeholder:"URL" help:"The gateway's address for clients."`
	Admin   string `placeholder:"URL" help:"Its admin address; the arms are switched there."`
	Model   string `placeholder:"NAME" help:"The model (default: the only one)."`
	Dialect string `default:"anthropic" placeholder:"NAME" help:"Format of the requests: ${dialects} (${default})."`
	APIKey  string `name:"api-key" env:"WARDEN_BENCH_API_KEY" placeholder:"KEY" help:"Key for the target; also from the environment, as WARDEN_BENCH_API_KEY."`

	Arm           []string `placeholder:"NAME=URL" sep:"none" help:"A further arm that is another router, or the engine itself; repeatable."`
	EngineMetrics []string `placeholder:"URL" sep:"none" help:"An engine whose counters are read; repeatable (default: those of the gateway)."`

	Protocol protocolFlags `embed:""`
	Repeat   int           `default:"1" placeholder:"N" help:"Runs of the whole, with --seed and the numbers after it; the table then shows means and 95% intervals (${default})."`
	Order    string        `default:"given" placeholder:"NAME" help:"Order of the arms in the runs: ${orders} (${default})."`
	Out      string        `placeholder:"DIR" help:"Folder for results.json, the tables, figures and report.html."`

	Start       []string      `placeholder:"URL=COMMAND" sep:"none" help:"Start an engine with a command of the shell before the measurement, wait for its /health, and end it afterwards; repeatable. Its output goes to engines/ in --out."`
	StartWithin time.Duration `default:"15m" placeholder:"TIME" help:"Longest time until started engines are ready (${default})."`

	Kill         []string `placeholder:"REPLICA@TIME[+TIME]" sep:"none" help:"A replica's server is killed in each step, if it is simulated or of --start, and returns with empty caches after the second time, or at the end of the step; repeatable, as in 1@60s+30s."`
	Slow         []string `placeholder:"REPLICAxFACTOR@TIME[+TIME]" sep:"none" help:"A simulated replica takes FACTOR times as long; repeatable."`
	DrainReplica []string `placeholder:"REPLICA@TIME[+TIME]" sep:"none" help:"A replica is drained through the gateway; repeatable."`

	BytesPerToken int           `default:"4" placeholder:"BYTES" help:"Text that stands for a token, 2 to 7 bytes; 4 is a short English word (${default})."`
	Timeout       time.Duration `default:"10m" placeholder:"TIME" help:"Longest time to the end of an answer (${default})."`
	Speed         float64       `default:"1" placeholder:"X" help:"--speed of simulated engines: all times are theirs (${default})."`

	Trace     []string      `placeholder:"FILE" sep:"none" help:"Replay recorded sessions instead of synthetic ones: Weka, Mooncake, AIPerf multi_turn or chat, as JSON lines; repeatable."`
	MaxThink  time.Duration `default:"60s" placeholder:"TIME" help:"Longest pause between two turns of a trace (${default})."`
	ThinkFrom []string      `placeholder:"FILE" help:"Draw the pauses of synthetic sessions from those of recorded ones (files as for --trace)."`
	Workload  workloadFlags `embed:""`
}

// Help is shown above the flags.
func (benchCommand) Help() string {
	return `Lets sessions work against a running gateway as headless Claude Code does, under one policy after the other, and prints table.md. The defaults are the published measurement. The gateway gets back the policy that it had. An interrupt ends the step and reports what there is.

Example: warden bench --target http://127.0.0.1:8100 --admin http://127.0.0.1:8101 --out r

Sizes and times marked DIST are a number (400), a range (7200-7500), exp:MEAN, lognormal:MEDIAN,FACTOR (one value in six is above FACTOR times the median), or none.`
}

func (c benchCommand) Run(ctx context.Context, io app.IO) error {
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP) // a closed terminal must not leave engines behind
		defer stop()
	}
	return app.Bench(ctx, io, app.BenchOptions{
		Target: c.Target, Admin: c.Admin, Routers: c.Arm, EngineMetrics: c.EngineMetrics, Model: c.Model, Dialect: c.Dialect, Key: c.APIKey,
		Protocol: c.Protocol.options(len(c.Trace) > 0), Workload: c.Workload.options(), Trace: c.Trace, MaxThink: c.MaxThink, ThinkFrom: c.ThinkFrom,
		Seed: c.Protocol.Seed, Repeat: c.Repeat, Order: c.Order, Kill: c.Kill, Slow: c.Slow, Start: c.Start, StartWithin: c.StartWithin, DrainReplica: c.DrainReplica,
		BytesPerToken: c.BytesPerToken, Speed: c.Speed, Timeout: c.Timeout, Out: c.Out,
	})
}
