// Package engine knows engines: what a URL serves, how many ranks stand behind
// it, how much they cache, and what their metrics pages say. vLLM is the first
// kind. It reads and never routes; traffic flows whether or not a scrape works.
package engine

import "time"

// Info is what a URL serves, as discovered.
type Info struct {
	Kind      string // "vllm", or "unknown" when only the API answers
	Version   string // empty when not told
	Models    []Model
	Ranks     int // at least 1
	BlockSize int // tokens, 0 when not told
	// CapacityTokens is the KV cache of one rank, 0 when not told.
	CapacityTokens int64
	// PrefixCaching is false when the engine says that it is off.
	PrefixCaching bool
	// HostTier is set when the host-memory KV tier is on.
	HostTier bool
	// HasMetrics says whether the metrics page was understood.
	HasMetrics bool
}

// Model is one served name.
type Model struct {
	ID          string
	Root        string // the weights; equal roots are one model under several names
	MaxModelLen int64  // 0 when not told
}

// Sample is one scrape of one rank. NaN marks a gauge that the page lacks.
type Sample struct {
	Running, Waiting float64
	KVUsed           float64 // 0..1
	// Counters since the engine's start, -1 when the page lacks them.
	PromptTokens, CachedTokens    float64
	PrefixQueries, PrefixHits     float64
	GenerationTokens, Preemptions float64
	CapacityTokens                int64
}

// Report is what a watcher tells after each scrape.
type Report struct {
	Time time.Time
	// Samples has one entry per rank; nil when the scrape failed.
	Samples []Sample
	// Epoch counts the lives of the engine process, from 1.
	Epoch int
	Err   error
}
