// Package enginesim models a vLLM box: blocks, prefix cache, scheduler, step
// time and the internal balancer. It reads no clock and starts no goroutine:
// whoever drives it says how time passes, so that the same model runs behind an
// HTTP server (package server beside it) and in virtual time.
//
// It models when tokens come and what is cached, not what they say.
package enginesim

// Token is one token: a hash of its bytes. Equal bytes are equal tokens.
type Token uint64

// Sequence is one prompt and the answer that the model will give to it.
type Sequence struct {
	// ID is chosen by the driver and unique per rank while the sequence lives.
	ID     uint64
	Prompt []Token
	// Output is the whole answer, known beforehand; the model emits it token by
	// token and ends with Reason when it is used up.
	Output []Token
	// Reason is "stop" when the answer ends by itself, "length" when max tokens
	// cut it.
	Reason string
	// Salt separates caches, as vLLM's cache_salt does; empty for none.
	Salt string
}

// Emit is what one step did to one sequence.
type Emit struct {
	ID uint64
	// Tokens is how many tokens of Output came in this step (0 or 1).
	Tokens int
	// First marks the first token; Cached and Created are set with it: prompt
	// tokens found in the cache at admission, and tokens of the full prompt blocks
	// newly filled.
	First           bool
	Cached, Created int
	// Done ends the sequence; Reason is "stop", "length" or "abort".
	Done   bool
	Reason string
}

// Stats are one rank's gauges and counters since its start, as vLLM's /metrics
// has them.
type Stats struct {
	Running, Waiting           int
	KVUsed                     float64 // 0..1
	PromptTokens, CachedTokens int64
	PrefixQueries, PrefixHits  int64
	GenerationTokens           int64
	Preemptions                int64
	Finished                   map[string]int64 // by reason
	LastStepTokens             int
}

// The model of one rank has this shape (type Rank, not safe for concurrent use):
//
//	NewRank(p Params) *Rank
//	Add(s *Sequence) error      // refuses a prompt that can never fit
//	Abort(id uint64) bool       // frees the sequence at the next step border
//	Begin() (time.Duration, bool) // schedules a step and says how long it takes; false when idle
//	End() []Emit                // the step is over: what it brought
//	Stats() Stats
//	Reset() bool                // empties the prefix cache; false when in use
//
// Between Begin and End the driver lets the duration pass (divided by its speed).
