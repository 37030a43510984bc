// Package top shows a gateway in a terminal: its models with their replicas, and
// its conversations, over the admin API, so also one on another machine. What is
// shown and what a key does are pure functions of what was read; Run puts them on
// a terminal, Print writes them once. It computes nothing that the gateway does
// not say, and it is no part of a gateway.
package top

import (
	"context"
	"time"
)

// Gateway is what is shown. *Client is one.
type Gateway interface {
	// Read asks for what a screen needs. An error that wraps ErrRefused will come
	// again.
	Read(context.Context, Query) (Snapshot, error)
	Drain(ctx context.Context, model string, replica int) error
	Resume(ctx context.Context, model string, replica int) error
}

// Query is what a screen needs.
type Query struct {
	// Model is the one whose moves are read; empty for none.
	Model string
	// Conversations says whether to read the table of conversations: the first Limit
	// by Sort.
	Conversations bool
	Sort          string
	Limit         int
}

// Snapshot is what a gateway said. What it does not know is nil.
type Snapshot struct {
	Overview Overview
	Models   []Model
	// Moves are those of one model in the last hour; MovesUnknown says why there are
	// none, empty when they are known.
	Moves        []Move
	MovesUnknown string
	// Conversations is nil when they were not asked for; More says that the gateway
	// has others.
	Conversations []Conversation
	More          bool
}

// Overview is the gateway as a whole.
type Overview struct {
	State    string   `json:"state"` // a sentence
	Version  string   `json:"version"`
	Warnings []string `json:"warnings"`
	History  *string  `json:"history_problem"`
	// Tiles are the rates of the last minutes: requests a minute, output tokens a
	// second, cached percent, ttfb p95 in seconds.
	Tiles map[string]struct {
		Value *float64 `json:"value"`
	} `json:"tiles"`
	Events []Event `json:"events"` // newest first
}

// Event is something that happened.
type Event struct {
	Time  time.Time `json:"time"`
	Model *string   `json:"model"`
	Level string    `json:"level"` // bad, warn or info
	Text  string    `json:"text"`
}

// Model is a pool with its replicas.
type Model struct {
	Name           string `json:"name"`
	Affinity       string `json:"affinity"`
	Policy         string `json:"policy"`
	SpillThreshold struct {
		Value int  `json:"value"`
		Auto  bool `json:"auto"`
	} `json:"spill_threshold"`
	StickyPercent *float64 `json:"sticky_percent"`
	InFlight      int      `json:"in_flight"`
	Queue         struct {
		Waiting int      `json:"waiting"`
		Longest *float64 `json:"longest_s"`
	} `json:"queue"`
	Conversations struct {
		Live  int `json:"live"`
		Known int `json:"known"`
	} `json:"conversations"`
	WorkingSet struct {
		Tokens   *int64 `json:"tokens"`
		Capacity *int64 `json:"capacity_tokens"`
		Fits     *int64 `json:"conversations_that_fit"`
	} `json:"working_set"`
	Replicas []Replica `json:"replicas"`
}

// Replica is one row of a model.
type Replica struct {
	Index             int      `json:"index"`
	URL               string   `json:"url"`
	State             string   `json:"state"`
	InFlight          int      `json:"in_flight"`
	Sticky            int64    `json:"sticky"`
	SpilledIn         int64    `json:"spilled_in"`
	MovedIn           int64    `json:"moved_in"`
	ClientPinned      int64    `json:"client_pinned"`
	Running           *int64   `json:"running"`
	Waiting           *int64   `json:"waiting"`
	KVUsed            *float64 `json:"kv_used_percent"`
	PrefixHit         *float64 `json:"prefix_hit_percent"`
	LiveConversations int      `json:"live_conversations"`
	ScrapeAge         *int64   `json:"scrape_age_ms"`
	// CachedEstimate is what is likely in the prefix cache, KVEvents what the engine
	// says is; nil when nobody listens to that.
	CachedEstimate *int64    `json:"cached_tokens_estimate"`
	KVEvents       *KVEvents `json:"kv_events"`
}

// KVEvents is what an engine tells of a replica's prefix cache.
type KVEvents struct {
	CachedTokens *int64 `json:"cached_tokens"`
}

// Move is how many requests left their home alike.
type Move struct {
	From     *int    `json:"from"`
	To       *int    `json:"to"`
	Reason   string  `json:"reason"`
	Why      *string `json:"why"`
	Requests int64   `json:"requests"`
}

// Conversation is one row of the table.
type Conversation struct {
	ID           string    `json:"id"`
	Model        string    `json:"model"`
	Home         *int      `json:"home"`
	Turns        int64     `json:"turns"`
	PromptTokens *int64    `json:"prompt_tokens"`
	CachedTokens *int64    `json:"cached_tokens"`
	Source       string    `json:"source"`
	Client       *string   `json:"client"`
	Parent       *string   `json:"parent"`
	LastSeen     time.Time `json:"last_seen"`
	InFlight     int       `json:"in_flight"`
	Spills       int64     `json:"spills"`
	Moves        int64     `json:"moves"`
}
