package main

import (
	"context"
	"time"

	"lmwarden/internal/app"
)

// simCommand has a flag for every parameter of the engine model; those without a
// default here keep the preset's value.
type simCommand struct {
	Listen   string   `default:"127.0.0.1:8000" placeholder:"ADDR" help:"Address of the first server (${default})."`
	Replicas int      `default:"4" placeholder:"N" help:"Replicas: ranks behind one port, or servers with --ports (${default})."`
	Ports    bool     `help:"One port per replica, counting up from --listen."`
	Preset   string   `default:"a4000-qwen3-4b" placeholder:"NAME" help:"Engine parameters: ${presets}."`
	Speed    float64  `default:"1" placeholder:"X" help:"Time runs X times as fast."`
	Model    []string `placeholder:"NAME" sep:"none" help:"Served name; repeatable."`

	EngineVersion   string        `default:"0.32.0" placeholder:"VERSION" help:"Release of vLLM to play; decides balancer, error names and the rank on /v1/responses (${default})."`
	ResponsesRank   bool          `help:"Honour the rank header on /v1/responses whatever the version."`
	NoPromptDetails bool          `help:"Leave cached tokens out of the usage, as without --enable-prompt-tokens-details."`
	APIKey          string        `name:"api-key" placeholder:"KEY" help:"Key that guards the /v1 routes."`
	SSEKeepAlive    time.Duration `name:"sse-keep-alive-interval" placeholder:"TIME" help:"Comment line on streams after that much silence."`
	MaxQueuedReqs   int           `name:"max-num-queued-reqs" placeholder:"N" help:"Answer 503 beyond that many open requests."`
	AnswerTokens    int           `placeholder:"N" help:"Mean length of answers that nothing else limits."`
	Seed            uint64        `default:"1" placeholder:"N" help:"Changes all answers, and which requests fail (${default})."`
	Fail            []string      `placeholder:"FAILURE" sep:"none" help:"Let something go wrong: [SERVER:]KIND[@TIME][,KEY=VALUE...], explained above; repeatable. SERVER is a number with --ports."`

	KVTokens                   *int     `name:"kv-tokens" placeholder:"TOKENS" help:"KV cache of one replica."`
	BlockTokens                *int     `placeholder:"TOKENS" help:"Size of a block."`
	TokenBudget                *int     `placeholder:"TOKENS" help:"Most tokens that a step computes."`
	MaxSequences               *int     `placeholder:"N" help:"Most sequences that run at once."`
	MaxModelLen                *int     `placeholder:"TOKENS" help:"Most tokens of a prompt and its answer."`
	ReserveFullPrompt          *bool    `negatable:"" help:"Admit a prompt only when all of its blocks are free."`
	OverheadMS                 *float64 `name:"overhead-ms" placeholder:"MS" help:"Fixed part of a step."`
	WeightsMS                  *float64 `name:"weights-ms" placeholder:"MS" help:"Reading the weights once."`
	LinearUSPerToken           *float64 `name:"linear-us-per-token" placeholder:"US" help:"Linear layers."`
	AttentionNSPerTokenContext *float64 `name:"attention-ns-per-token-context" placeholder:"NS" help:"Prefill attention, per token and token of context."`
	KVReadUSPerContextToken    *float64 `name:"kv-read-us-per-context-token" placeholder:"US" help:"Decode, per token of context."`
	BytesPerToken              *int     `placeholder:"BYTES" help:"Bytes of text that make a token, 1 to 7."`
	Balancer                   *string  `placeholder:"NAME" help:"Internal balancer: A, B, C or blind."`
	CountsUnpublished          *bool    `negatable:"" help:"Keep the engines' counts from the balancer, as dense models did up to vLLM 0.26."`
	PublishCollectMS           *float64 `name:"publish-collect-ms" placeholder:"MS" help:"Delay from a change of the counts to its publication."`
	PublishIntervalMS          *float64 `name:"publish-interval-ms" placeholder:"MS" help:"Least time between two publications."`
	PublishIdleMS              *float64 `name:"publish-idle-ms" placeholder:"MS" help:"Time between publications without a change."`

	LogFormat string `default:"text" placeholder:"FORMAT" help:"text or json."`
}

// Help is shown above the flags.
func (c simCommand) Help() string { return app.SimFailures() }

func (c simCommand) Run(ctx context.Context, io app.IO) error {
	return app.Sim(ctx, io, app.SimOptions{
		Listen: c.Listen, Replicas: c.Replicas, Ports: c.Ports, Preset: c.Preset, Adjust: c.adjust,
		Speed: c.Speed, Models: c.Model, Version: c.EngineVersion, ResponsesRank: c.ResponsesRank,
		NoPromptDetails: c.NoPromptDetails, APIKey: c.APIKey, SSEKeepAlive: c.SSEKeepAlive,
		MaxQueuedReqs: c.MaxQueuedReqs, AnswerTokens: c.AnswerTokens, Seed: c.Seed, Failures: c.Fail, LogFormat: c.LogFormat,
	})
}

func (c simCommand) adjust(p *app.SimParams) {
	set(&p.KVTokens, c.KVTokens)
	set(&p.BlockTokens, c.BlockTokens)
	set(&p.TokenBudget, c.TokenBudget)
	set(&p.MaxSequences, c.MaxSequences)
	set(&p.MaxModelLen, c.MaxModelLen)
	set(&p.ReserveFullPrompt, c.ReserveFullPrompt)
	set(&p.OverheadMS, c.OverheadMS)
	set(&p.WeightsMS, c.WeightsMS)
	set(&p.LinearUSPerToken, c.LinearUSPerToken)
	set(&p.AttentionNSPerTokenContext, c.AttentionNSPerTokenContext)
	set(&p.KVReadUSPerContextToken, c.KVReadUSPerContextToken)
	set(&p.BytesPerToken, c.BytesPerToken)
	set((*string)(&p.Balancer), c.Balancer)
	set(&p.CountsUnpublished, c.CountsUnpublished)
	set(&p.PublishCollectMS, c.PublishCollectMS)
	set(&p.PublishIntervalMS, c.PublishIntervalMS)
	set(&p.PublishIdleMS, c.PublishIdleMS)
}

// set overrides a value when its flag was given.
func set[T any](value *T, flag *T) {
	if flag != nil {
		*value = *flag
	}
}
