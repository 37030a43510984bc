package enginesim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Params describe one engine and the balancer in front of it. Units stand in
// the names; *Tokens are tokens. The presets' figures come from a fit to a
// published measurement or are estimates by the same formula.
type Params struct {
	// KVTokens is the KV cache of one rank. It is used in whole blocks, of which
	// vLLM keeps one (the null block) for itself.
	KVTokens int
	// BlockTokens is the size of a block, the unit of caching.
	BlockTokens int
	// TokenBudget is the most tokens that one step computes (vLLM's
	// max_num_batched_tokens).
	TokenBudget int
	// MaxSequences is the most sequences that run at once (max_num_seqs).
	MaxSequences int
	// MaxModelLen is the most tokens of a prompt and its answer (max_model_len); 0
	// is as much as the cache holds.
	MaxModelLen int
	// ReserveFullPrompt admits a prompt only when all of its blocks are free, not
	// just those of its first chunk (scheduler_reserve_full_isl, vLLM's default).
	ReserveFullPrompt bool

	// A step takes Overhead + max(Weights, Linear x tokens of the step) + Attention
	// x sum over its prefill tokens of their context + KVRead x sum over its decodes
	// of their context.
	OverheadMS                 float64
	WeightsMS                  float64
	LinearUSPerToken           float64
	AttentionNSPerTokenContext float64
	KVReadUSPerContextToken    float64

	// HostKVGiB is a second tier of the cache in the host's memory, of each rank
	// (kv_offloading_size of vLLM's native offloading); 0 is none. A step waits for
	// what it loads from there, at HostLinkGBPerS (1e9 bytes).
	HostKVGiB       float64
	KVBytesPerToken int
	HostLinkGBPerS  float64

	// BytesPerToken is how many bytes of text make a token, 1 to 7.
	BytesPerToken int

	// Balancer picks the rank of a request that names none.
	Balancer BalancerVersion
	// CountsUnpublished keeps the engines' counts from the balancer, as dense models
	// did up to vLLM 0.26: it sees its own decisions, and zeros when idle.
	CountsUnpublished bool
	// A change of an engine's counts reaches the balancer PublishCollectMS after it
	// happened, at the earliest PublishIntervalMS after the last publication; without
	// a change the counts are published every PublishIdleMS. Only ranks in lockstep,
	// those of mixture-of-experts models, are waited for (50 ms).
	PublishCollectMS  float64
	PublishIntervalMS float64
	PublishIdleMS     float64
}

// maxBytesPerToken keeps a token's bytes and their number within a Token.
const maxBytesPerToken = 7

// Preset returns the named parameters. The error names those that exist.
func Preset(name string) (Params, error) {
	p, ok := presets()[name]
	if !ok {
		return Params{}, fmt.Errorf("preset %q does not exist: choose one of %s", name, strings.Join(Presets(), ", "))
	}
	return p, nil
}

// Presets returns the names of the presets, sorted.
func Presets() []string {
	return slices.Sorted(maps.Keys(presets()))
}

func presets() map[string]Params {
	base := Params{
		BlockTokens:       16,
		TokenBudget:       2048,
		MaxSequences:      256,
		ReserveFullPrompt: true,
		KVBytesPerToken:   144 << 10,
		HostLinkGBPerS:    20, // PCIe 4.0 x16, as far as it goes
		BytesPerToken:     4,
		Balancer:          BalancerC,
		PublishIntervalMS: 100,
		PublishIdleMS:     5000,
	}

	// Four of these boxes ran the published measurement; the fit reproduces its
	// throughput, hit rates and busy replicas within 7%.
	a4000 := base
	a4000.KVTokens = 40_000
	a4000.OverheadMS, a4000.WeightsMS, a4000.LinearUSPerToken = 2, 20.5, 151
	a4000.AttentionNSPerTokenContext, a4000.KVReadUSPerContextToken = 13.7, 0.366
	a4000.Balancer = BalancerBlind

	rtx5090 := base
	rtx5090.KVTokens = 140_000
	rtx5090.OverheadMS, rtx5090.WeightsMS, rtx5090.LinearUSPerToken = 3, 14, 400
	rtx5090.KVBytesPerToken = 32 << 10
	rtx5090.AttentionNSPerTokenContext, rtx5090.KVReadUSPerContextToken = 8, 0.08

	h100 := base
	h100.KVTokens = 420_000
	h100.TokenBudget, h100.MaxSequences = 8192, 1024
	h100.OverheadMS, h100.WeightsMS, h100.LinearUSPerToken = 2, 5.6, 32
	h100.KVBytesPerToken, h100.HostLinkGBPerS = 128<<10, 40
	h100.AttentionNSPerTokenContext, h100.KVReadUSPerContextToken = 1.05, 0.046

	tiny := base
	tiny.KVTokens = 20_000
	tiny.MaxSequences = 64
	tiny.OverheadMS, tiny.WeightsMS, tiny.LinearUSPerToken = 0.2, 1, 10

	// The real vLLM on a CPU with a two-layer model that the recordings in testdata
	// come from. Its step times are measured, see docs/engines.md.
	cpu := base
	cpu.KVTokens, cpu.BlockTokens = 12_800, 32
	cpu.MaxSequences, cpu.MaxModelLen = 128, 8192
	cpu.OverheadMS, cpu.WeightsMS, cpu.LinearUSPerToken = 1, 2, 20
	cpu.AttentionNSPerTokenContext, cpu.KVReadUSPerContextToken = 14, 0.25
	cpu.KVBytesPerToken = 1 << 10 // two layers of two heads of 32, keys and values, float32
	cpu.BytesPerToken = 1

	return map[string]Params{
		"a4000-qwen3-4b": a4000,
		"rtx5090-27b":    rtx5090,
		"h100-8b":        h100,
		"tiny-fast":      tiny,
		"cpu-tiny":       cpu,
	}
}

// Blocks is the number of blocks of one rank, the null block included (vLLM's
// num_gpu_blocks).
func (p Params) Blocks() int { return p.KVTokens / p.BlockTokens }

// HostBlocks is the number of blocks that the host's memory holds for one rank.
func (p Params) HostBlocks() int {
	return int(p.HostKVGiB * (1 << 30) / (float64(p.KVBytesPerToken) * float64(p.BlockTokens)))
}

// ModelLen is the most tokens of a prompt and its answer.
func (p Params) ModelLen() int {
	if p.MaxModelLen > 0 {
		return p.MaxModelLen
	}
	return (p.Blocks() - 1) * p.BlockTokens
}

// CheckPrompt returns a *PromptError when a prompt of that many tokens can never
// be served: it leaves no room for one token of an answer.
func (p Params) CheckPrompt(tokens int) error {
	if limit := p.ModelLen() - 1; tokens > limit {
		return &PromptError{Tokens: tokens, Limit: limit}
	}
	return nil
}

// Validate reports everything that is wrong with the parameters.
func (p Params) Validate() error {
	var errs []error
	bad := func(name string, value any, remedy string) {
		errs = append(errs, fmt.Errorf("%s is %v: %s", name, value, remedy))
	}
	positive := func(name string, value int) {
		if value < 1 {
			bad(name, value, "it must be at least 1")
		}
	}
	notNegative := func(name string, value float64) {
		if !(value >= 0 && value <= 1e9) { // NaN fails every comparison
			bad(name, value, "it must be between 0 and 1e9")
		}
	}

	positive("TokenBudget", p.TokenBudget)
	positive("MaxSequences", p.MaxSequences)
	positive("BlockTokens", p.BlockTokens)
	if p.BlockTokens >= 1 {
		usable := (p.Blocks() - 1) * p.BlockTokens
		if usable < max(p.BlockTokens, 2) {
			bad("KVTokens", p.KVTokens, fmt.Sprintf("it must hold at least 2 blocks of %d tokens (one is reserved), and a prompt with an answer", p.BlockTokens))
		} else if p.MaxModelLen < 0 || p.MaxModelLen == 1 || p.MaxModelLen > usable {
			bad("MaxModelLen", p.MaxModelLen, fmt.Sprintf("it must be between 2 and the %d tokens that the cache holds, or 0 for all of them: lower it or raise KVTokens", usable))
		}
	}
	notNegative("OverheadMS", p.OverheadMS)
	notNegative("WeightsMS", p.WeightsMS)
	notNegative("LinearUSPerToken", p.LinearUSPerToken)
	notNegative("AttentionNSPerTokenContext", p.AttentionNSPerTokenContext)
	notNegative("KVReadUSPerContextToken", p.KVReadUSPerContextToken)
	notNegative("HostKVGiB", p.HostKVGiB)
	positive("KVBytesPerToken", p.KVBytesPerToken)
	if !(p.HostLinkGBPerS > 0 && p.HostLinkGBPerS <= 1e9) {
		bad("HostLinkGBPerS", p.HostLinkGBPerS, "it must be above 0 and at most 1e9")
	}
	if p.BytesPerToken < 1 || p.BytesPerToken > maxBytesPerToken {
		bad("BytesPerToken", p.BytesPerToken, fmt.Sprintf("it must be between 1 and %d", maxBytesPerToken))
	}
	if !slices.Contains(balancerVersions(), p.Balancer) {
		bad("Balancer", fmt.Sprintf("%q", p.Balancer), fmt.Sprintf("choose one of %q", balancerVersions()))
	}
	notNegative("PublishCollectMS", p.PublishCollectMS)
	notNegative("PublishIntervalMS", p.PublishIntervalMS)
	notNegative("PublishIdleMS", p.PublishIdleMS)
	if p.PublishIdleMS == 0 {
		bad("PublishIdleMS", p.PublishIdleMS, "it must be above 0")
	}
	return errors.Join(errs...)
}
