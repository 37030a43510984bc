// Package engine knows engines: what a URL serves, how many ranks stand behind
// it, how much they cache, and what their metrics pages say. It reads and never
// routes; traffic flows whether or not a scrape works.
//
// Where to look: discover.go asks a server, page.go reads metrics, watcher.go
// keeps both up to date, rank.go knows which paths honour a rank. kind.go says
// what may differ between engines, and vllm.go, sglang.go and llamacpp.go how it
// does.
package engine

import "time"

// Info is what a URL serves, as discovered. The zero Info (Ranks is 0) stands
// for a server that was not discovered yet.
type Info struct {
	// Kind is "vllm", "sglang" or "llama.cpp", or "unknown" when only the API is
	// known.
	Kind      string
	Version   string // empty when not told
	Models    []Model
	Ranks     int // at least 1
	BlockSize int // tokens, 0 when not told
	// CapacityTokens is the KV cache of one rank, 0 when not told.
	CapacityTokens int64
	// Slots is how many requests one rank works on at once while others wait
	// there, 0 when not told.
	Slots int
	// PrefixCaching is false when the engine says that it is off.
	PrefixCaching bool
	// HostTier is set when the host-memory KV tier is on.
	HostTier bool
	// NoToolParser is set when the engine says that calls of tools stay text.
	NoToolParser bool
	// HasMetrics says whether the metrics page was understood.
	HasMetrics bool
}

// Serves reports whether the engine answers to a model name.
func (i Info) Serves(model string) bool {
	for _, m := range i.Models {
		if m.ID == model {
			return true
		}
	}
	return false
}

// Model is one served name.
type Model struct {
	ID          string
	Root        string // the weights; equal roots are one model under several names
	Parent      string // the model that this adapter is laid over, empty when it is none
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
	CapacityTokens                int64 // KV cache of this rank, 0 when not told
}

// Health is what a probe says of the server itself, whatever its metrics page
// is like.
type Health uint8

const (
	Silent Health = iota // no answer in time: proves it neither up nor down
	Up                   // it answers HTTP and does not call itself dead
	Down                 // it cannot be reached, or calls itself dead
)

// Report is what a watcher tells after each scrape.
type Report struct {
	// Time is when the scrape began: what the report says is not older.
	Time time.Time
	// Info is the server as last discovered, zero before the first time.
	Info   Info
	Health Health
	// Samples has one entry per rank, in rank order; nil when the scrape failed
	// or the engine has no metrics page. Its length may differ from Info.Ranks
	// for one report, when the number of ranks changed.
	Samples []Sample
	// Epoch counts the lives of the engine process, from 1.
	Epoch int
	// Err says why the server could not be discovered or scraped.
	Err error
}
