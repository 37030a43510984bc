package main

import "lmwarden/internal/app"

// engineFlags choose the parameters of the engine model: one flag for each of
// them, and those that are not given keep the preset's value.
type engineFlags struct {
	Preset string `default:"a4000-qwen3-4b" placeholder:"NAME" help:"Engine parameters: ${presets}."`

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
	HostKVGiB                  *float64 `name:"host-kv" placeholder:"GIB" help:"Second tier of the cache in the host's memory, of each replica."`
	HostLinkGBPerS             *float64 `name:"host-link-gb-per-s" placeholder:"GB" help:"How fast it is loaded from there."`
	KVBytesPerToken            *int     `name:"kv-bytes-per-token" placeholder:"BYTES" help:"KV state of one token."`
	BytesPerToken              *int     `placeholder:"BYTES" help:"Bytes of text that make a token, 1 to 7."`
	Balancer                   *string  `placeholder:"NAME" help:"Internal balancer: A, B, C or blind."`
	CountsUnpublished          *bool    `negatable:"" help:"Keep the engines' counts from the balancer, as dense models did up to vLLM 0.26."`
	PublishCollectMS           *float64 `name:"publish-collect-ms" placeholder:"MS" help:"Delay from a change of the counts to its publication."`
	PublishIntervalMS          *float64 `name:"publish-interval-ms" placeholder:"MS" help:"Least time between two publications."`
	PublishIdleMS              *float64 `name:"publish-idle-ms" placeholder:"MS" help:"Time between publications without a change."`
}

func (c engineFlags) adjust(p *app.SimParams) {
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
	set(&p.HostKVGiB, c.HostKVGiB)
	set(&p.HostLinkGBPerS, c.HostLinkGBPerS)
	set(&p.KVBytesPerToken, c.KVBytesPerToken)
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
