package proxy

import (
	"context"
	"log/slog"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
)

// Outcome is how a request ended. The list is closed; metrics use it.
type Outcome string

const (
	OK           Outcome = "ok"            // a complete answer reached the client
	ClientError  Outcome = "client_error"  // refused, by us or by the engine, for what the client sent
	EngineError  Outcome = "engine_error"  // the engine failed, was not reached, or cut its answer short
	GatewayError Outcome = "gateway_error" // no replica could take it, or the gateway is stopping
	Cancelled    Outcome = "cancelled"     // the client left
)

// statusCancelled stands in records and logs for a client that left before its
// answer began; no client sees it.
const statusCancelled = 499

// Record is one finished request. It holds no prompt text and no credential.
type Record struct {
	Time      time.Time // of its arrival
	RequestID string
	Trace     string // the id of its trace, empty without a Tracer
	// Model is the pool's name, empty when the request named none that exists.
	Model  string
	Path   string
	Stream bool
	// Facts are those of the body, nil when it was not read; Read is what a Reader
	// made of it, nil without one.
	Facts    *llmapi.Facts
	Read     any
	Identity session.Identity // zero on routes that make no conversation
	Client   string           // the program by its User-Agent, or empty
	Key      string           // the name of the client's API key, or empty
	// Decision is the last one; its Reason is empty when no replica was chosen.
	Decision routing.Decision
	Attempts int // requests sent to replicas
	// Waited is how long the gateway held it in all; 0 when it did not.
	Waited  time.Duration
	Status  int // as the client saw it; 499 when it left before that
	Outcome Outcome
	// TTFB runs from the request's arrival to the first byte of an answer sent to the
	// client, its announcement and keep-alives not counted; 0 when there was none.
	// Duration runs to the end.
	TTFB, Duration    time.Duration
	Usage             llmapi.Usage
	BytesIn, BytesOut int64  // bodies
	Error             string // why it failed, for operators; empty when it did not
}

// Recorder takes one Record per finished request on an engine's route, whatever
// its outcome. Record is called from many goroutines and must not block.
type Recorder interface {
	Record(Record)
}

// Reader reads the prompts of answered turns, for who explains turns later. Read
// takes over a body that is no longer needed, and calls done with it when it has
// read it; it must not block. What it returns comes back in the turn's Record.
type Reader interface {
	Read(k session.Key, f *llmapi.Facts, body []byte, done func(body []byte)) any
}

// The keys of the log line of a request.
const (
	keyRequestID    = "request_id"
	keyTrace        = "trace_id"
	keyModel        = "model"
	keyPath         = "path"
	keyStatus       = "status"
	keyOutcome      = "outcome"
	keyConversation = "conversation"
	keySource       = "source"
	keyClient       = "client"
	keyKey          = "key"
	keyReplica      = "replica"
	keyReason       = "reason"
	keyWhy          = "why"
	keyAttempts     = "attempts"
	keyWaited       = "waited_ms"
	keyTTFB         = "ttfb_ms"
	keyDuration     = "duration_ms"
	keyPrompt       = "prompt_tokens"
	keyCached       = "cached_tokens"
	keyCompletion   = "completion_tokens"
	keyBytesIn      = "bytes_in"
	keyBytesOut     = "bytes_out"
	keyError        = "error"
	keyAttempt      = "attempt"
	keyStack        = "stack"
)

// log writes the request's line. A value that is not known is left out, so that
// nobody reads it as zero.
func (r *Record) log(l *slog.Logger) {
	ctx := context.Background()
	if !l.Enabled(ctx, slog.LevelInfo) {
		return
	}
	attrs := make([]slog.Attr, 0, 22)
	attrs = append(attrs,
		slog.String(keyRequestID, r.RequestID),
		slog.String(keyPath, r.Path),
		slog.Int(keyStatus, r.Status),
		slog.String(keyOutcome, string(r.Outcome)),
	)
	text := func(key, v string) {
		if v != "" {
			attrs = append(attrs, slog.String(key, v))
		}
	}
	text(keyTrace, r.Trace)
	text(keyModel, r.Model)
	text(keyConversation, r.Identity.Name)
	text(keySource, r.Identity.Source)
	text(keyClient, r.Client)
	text(keyKey, r.Key)
	if r.Decision.Reason != "" {
		attrs = append(attrs, slog.String(keyReplica, replicaName(r.Decision)))
		text(keyReason, string(r.Decision.Reason))
		text(keyWhy, string(r.Decision.Why))
		attrs = append(attrs, slog.Int(keyAttempts, r.Attempts))
	}
	if r.Waited > 0 {
		attrs = append(attrs, slog.Int64(keyWaited, r.Waited.Milliseconds()))
	}
	if r.TTFB > 0 {
		attrs = append(attrs, slog.Int64(keyTTFB, r.TTFB.Milliseconds()))
	}
	attrs = append(attrs, slog.Int64(keyDuration, r.Duration.Milliseconds()))
	if r.Usage.Known {
		attrs = append(attrs, slog.Int64(keyPrompt, r.Usage.Prompt), slog.Int64(keyCompletion, r.Usage.Completion))
		if r.Usage.CacheState == llmapi.CacheReported {
			attrs = append(attrs, slog.Int64(keyCached, r.Usage.Cached))
		}
	}
	attrs = append(attrs, slog.Int64(keyBytesIn, r.BytesIn), slog.Int64(keyBytesOut, r.BytesOut))
	text(keyError, r.Error)
	l.LogAttrs(ctx, slog.LevelInfo, "request", attrs...)
}
