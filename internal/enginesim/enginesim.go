// Package enginesim models a vLLM box: blocks, prefix cache, scheduler, step
// time and the internal balancer. It reads no clock and starts no goroutine:
// whoever drives it says how time passes, so that the same model runs behind an
// HTTP server (package server beside it) and in virtual time.
//
// It models when tokens come and what is cached, not what they say.
//
// A Rank is one engine with a cache of its own, a Balancer is the part of an API
// server that picks a rank, and a Box joins both. A Tokenizer turns text and
// chat messages into tokens. Nothing here is safe for concurrent use.
//
// One rank is driven like this, for as long as Begin says that there is work:
//
//	took, ok := rank.Begin() // plans a step
//	// let took pass; Add and Abort may be called meanwhile
//	for _, e := range rank.End() { ... } // what the step brought
package enginesim

import "fmt"

// Token is one token of the vocabulary; see Tokenizer for how text becomes
// tokens. Equal bytes are equal tokens.
type Token uint64

// Reasons why an answer ended, in vLLM's words.
const (
	ReasonStop   = "stop"   // the answer ended by itself
	ReasonLength = "length" // max tokens or the model's length cut it
)

// Sequence is one prompt and the answer that the model will give to it. The
// model keeps the pointer and reads both while the sequence lives; the driver
// must not change them.
type Sequence struct {
	// ID is chosen by the driver and unique per rank (per box, if there is one)
	// while the sequence lives.
	ID     uint64
	Prompt []Token
	// Output is the whole answer, known beforehand; the model emits it token by
	// token and ends with Reason when it is used up.
	Output []Token
	// Reason is ReasonStop when the answer ends by itself, ReasonLength when max
	// tokens cut it.
	Reason string
	// Salt separates caches, as vLLM's cache_salt does; empty for none.
	Salt string

	hashes []blockHash // of the full blocks of the prompt and of what was generated
	same   int         // leading tokens that hashes may be trusted for when the sequence is queued
}

// Follow says that s begins with the same tokens as the prompt and output of
// before, which has ended on a rank with the same parameters and had the same
// salt: what was computed for their blocks is taken over. It changes nothing but
// the time that the model takes. before must not be used any more.
func (s *Sequence) Follow(before *Sequence, same int) {
	s.hashes, s.same = before.hashes, same
}

// Emit is what one step did to one sequence. Steps that only computed a part of
// a prompt emit nothing for it, except when they admitted it.
type Emit struct {
	ID uint64
	// Admitted marks the step that took the sequence out of the queue for the
	// first time: its queueing ended when that step began.
	Admitted bool
	// Tokens is how many tokens of Output came in this step (0 or 1).
	Tokens int
	// First marks the first token; Cached and Created are set with it: prompt
	// tokens found in the cache at admission, and tokens of the full prompt blocks
	// newly filled.
	First           bool
	Cached, Created int
	// Done ends the sequence; Reason is ReasonLength when the model's length cut
	// the answer, else the sequence's own. An aborted sequence emits nothing.
	Done   bool
	Reason string
}

// Load is what an engine tells the balancers of the API servers.
type Load struct {
	Running, Waiting int
	KVUsed           float64 // 0..1
}

// Stats are one rank's gauges and counters since its start, as vLLM's /metrics
// has them.
type Stats struct {
	Running, Waiting int
	KVUsed           float64 // 0..1
	// PromptTokens and CachedTokens move with a sequence's first token.
	PromptTokens, CachedTokens int64
	// PrefixQueries and PrefixHits move once per sequence, at its admission; what
	// a preempted sequence finds again is not counted.
	PrefixQueries, PrefixHits int64
	// HostHits are tokens that the host's tier had, beyond PrefixHits.
	HostHits         int64
	GenerationTokens int64
	Preemptions      int64
	// Finished counts by reason. An abort by the client is not counted.
	Finished map[string]int64
	// LastStepTokens is vLLM's iteration_tokens of the last step: the tokens it
	// generated, and the computed tokens of the prompts that it completed.
	LastStepTokens int
}

// PromptError says that a prompt can never be served, whatever leaves the cache.
type PromptError struct {
	Tokens int // of the prompt
	Limit  int // longest prompt that can be served
}

func (e *PromptError) Error() string {
	return fmt.Sprintf("the prompt has %d tokens and the engine takes at most %d: shorten the prompt, or raise the model length and the KV tokens",
		e.Tokens, e.Limit)
}
