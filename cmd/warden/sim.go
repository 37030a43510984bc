package main

import (
	"context"
	"time"

	"lmwarden/internal/app"
)

type simCommand struct {
	Listen   string   `default:"127.0.0.1:8000" placeholder:"ADDR" help:"Address of the first server (${default})."`
	Replicas int      `default:"4" placeholder:"N" help:"Replicas: ranks behind one port, or servers with --ports (${default})."`
	Ports    bool     `help:"One port per replica, counting up from --listen."`
	Speed    float64  `default:"1" placeholder:"X" help:"Time runs X times as fast."`
	Model    []string `placeholder:"NAME" sep:"none" help:"Served name; repeatable."`

	EngineVersion   string        `default:"0.32.0" placeholder:"VERSION" help:"Release of vLLM to play; decides balancer, error names and the rank on /v1/responses (${default})."`
	ResponsesRank   bool          `help:"Honour the rank header on /v1/responses whatever the version."`
	NoPromptDetails bool          `help:"Leave cached tokens out of the usage, as without --enable-prompt-tokens-details."`
	APIKey          string        `name:"api-key" placeholder:"KEY" help:"Key that guards the /v1 routes."`
	SSEKeepAlive    time.Duration `name:"sse-keep-alive-interval" placeholder:"TIME" help:"Comment line on streams after that much silence."`
	MaxQueuedReqs   int           `name:"max-num-queued-reqs" placeholder:"N" help:"Answer 503 beyond that many open requests."`
	AnswerTokens    int           `placeholder:"N" help:"Mean length of answers that nothing else limits."`
	KVEvents        int           `name:"kv-events" placeholder:"PORT" help:"Publish KV events, the first rank on PORT, and send former ones again on PORT+100; further ranks count up."`
	Seed            uint64        `default:"1" placeholder:"N" help:"Changes all answers, and which requests fail (${default})."`
	Fail            []string      `placeholder:"FAILURE" sep:"none" help:"Let something go wrong: [SERVER:]KIND[@TIME][,KEY=VALUE...], explained above; repeatable. SERVER is a number with --ports."`

	Engine engineFlags `embed:""`

	LogFormat string `default:"text" placeholder:"FORMAT" help:"text or json."`
}

// Help is shown above the flags.
func (c simCommand) Help() string { return app.SimFailures() }

func (c simCommand) Run(ctx context.Context, io app.IO) error {
	return app.Sim(ctx, io, app.SimOptions{
		Listen: c.Listen, Replicas: c.Replicas, Ports: c.Ports, Preset: c.Engine.Preset, Adjust: c.Engine.adjust,
		Speed: c.Speed, Models: c.Model, Version: c.EngineVersion, ResponsesRank: c.ResponsesRank,
		NoPromptDetails: c.NoPromptDetails, APIKey: c.APIKey, SSEKeepAlive: c.SSEKeepAlive,
		MaxQueuedReqs: c.MaxQueuedReqs, AnswerTokens: c.AnswerTokens, KVEvents: c.KVEvents, Seed: c.Seed, Failures: c.Fail, LogFormat: c.LogFormat,
	})
}
