package tracing

import (
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/proxy"
	"lmwarden/internal/routing"
)

// Attributes by the semantic conventions of OpenTelemetry 1.41, the last release
// that has those of generative AI; and ours.
const (
	keyMethod = attribute.Key("http.request.method")
	keyStatus = attribute.Key("http.response.status_code")
	keyPath   = attribute.Key("url.path")
	keyError  = attribute.Key("error.type")

	keyOperation     = attribute.Key("gen_ai.operation.name")
	keyProvider      = attribute.Key("gen_ai.provider.name")
	keyConversation  = attribute.Key("gen_ai.conversation.id")
	keyRequestModel  = attribute.Key("gen_ai.request.model")
	keyMaxTokens     = attribute.Key("gen_ai.request.max_tokens")
	keyStream        = attribute.Key("gen_ai.request.stream")
	keyResponseModel = attribute.Key("gen_ai.response.model")
	keyFirstChunk    = attribute.Key("gen_ai.response.time_to_first_chunk")
	keyInput         = attribute.Key("gen_ai.usage.input_tokens")
	keyCached        = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	keyOutput        = attribute.Key("gen_ai.usage.output_tokens")

	keyRequestID = attribute.Key("warden.request_id")
	keyClient    = attribute.Key("warden.client")
	keyName      = attribute.Key("warden.key")
	keyReplica   = attribute.Key("warden.replica")
	keyReason    = attribute.Key("warden.decision")
	keyWhy       = attribute.Key("warden.why")
	keyAttempts  = attribute.Key("warden.attempts")
	keyWaited    = attribute.Key("warden.waited_s")
	keyMessage   = attribute.Key("warden.error")
)

// The events of a span.
const (
	eventAttempt   = "attempt"
	eventFailed    = "attempt failed"
	eventFirstByte = "first byte"
)

// request is the span of one request.
type request struct {
	span   trace.Span
	out    *sender
	method string
}

// ID implements proxy.Trace.
func (r *request) ID() string { return r.span.SpanContext().TraceID().String() }

// Attempt implements proxy.Trace.
func (r *request) Attempt(d routing.Decision) {
	if r.span.IsRecording() {
		r.span.AddEvent(eventAttempt, trace.WithAttributes(keyReplica.String(replicaName(d)), keyReason.String(string(d.Reason))))
	}
}

// Failed implements proxy.Trace.
func (r *request) Failed(cause error) {
	if r.span.IsRecording() {
		r.span.AddEvent(eventFailed, trace.WithAttributes(keyMessage.String(sound(cause.Error()))))
	}
}

// End implements proxy.Trace. A span that is not ended is not sent.
func (r *request) End(rec *proxy.Record) {
	if !r.span.IsRecording() || !r.out.admit() {
		return
	}
	r.span.SetName(r.name(rec))
	r.span.SetAttributes(r.attributes(rec)...)
	if rec.TTFB > 0 {
		r.span.AddEvent(eventFirstByte, trace.WithTimestamp(rec.Time.Add(rec.TTFB)))
	}
	// What a client did wrong, or its leaving, is no failure of this service.
	if rec.Outcome == proxy.EngineError || rec.Outcome == proxy.GatewayError {
		r.span.SetStatus(codes.Error, sound(rec.Error))
	}
	r.span.End(trace.WithTimestamp(rec.Time.Add(rec.Duration)))
}

// name is of few values: the model is ours, not what the client wrote.
func (r *request) name(rec *proxy.Record) string {
	first := operation(rec)
	if first == "" {
		path := rec.Path
		if strings.HasPrefix(path, "/v1/responses/") {
			path = "/v1/responses/{id}"
		}
		return r.method + " " + path
	}
	if rec.Model == "" {
		return first
	}
	return first + " " + rec.Model
}

func (r *request) attributes(rec *proxy.Record) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 24)
	text := func(key attribute.Key, v string) {
		if v != "" {
			all = append(all, key.String(sound(v)))
		}
	}
	number := func(key attribute.Key, v int64, known bool) {
		if known {
			all = append(all, key.Int64(v))
		}
	}
	text(keyMethod, r.method)
	text(keyPath, rec.Path)
	number(keyStatus, int64(rec.Status), rec.Outcome != proxy.Cancelled || rec.TTFB > 0)
	if rec.Outcome != proxy.OK {
		text(keyError, string(rec.Outcome))
	}
	text(keyMessage, rec.Error)

	if name := operation(rec); name != "" {
		text(keyOperation, name)
		text(keyProvider, provider(rec))
	}
	text(keyConversation, rec.Identity.Name)
	if f := rec.Facts; f != nil {
		text(keyRequestModel, f.Model)
		number(keyMaxTokens, f.MaxTokens, f.MaxTokens > 0)
	}
	text(keyResponseModel, rec.Model)
	if rec.Stream {
		all = append(all, keyStream.Bool(true))
		if rec.TTFB > 0 {
			all = append(all, keyFirstChunk.Float64(rec.TTFB.Seconds()))
		}
	}
	u := rec.Usage
	number(keyInput, u.Prompt, u.Known)
	number(keyCached, u.Cached, u.Known && u.CacheState == llmapi.CacheReported)
	number(keyOutput, u.Completion, u.Known)

	text(keyRequestID, rec.RequestID)
	text(keyClient, rec.Client)
	text(keyName, rec.Key)
	if d := rec.Decision; d.Reason != "" {
		text(keyReplica, replicaName(d))
		text(keyReason, string(d.Reason))
		text(keyWhy, string(d.Why))
		number(keyAttempts, int64(rec.Attempts), true)
	}
	if rec.Waited > 0 {
		all = append(all, keyWaited.Float64(rec.Waited.Seconds()))
	}
	return all
}

// sound is a text that can be sent: one that is not UTF-8 would cost the whole
// batch.
func sound(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "")
}

// operation is the convention's name for what a route does, or empty.
func operation(rec *proxy.Record) string {
	switch llmapi.RouteOf("POST", rec.Path) {
	case llmapi.RouteChat, llmapi.RouteMessages, llmapi.RouteResponses:
		return "chat"
	case llmapi.RouteCompletions:
		return "text_completion"
	}
	if rec.Path == "/v1/embeddings" {
		return "embeddings"
	}
	return ""
}

// provider is the API's family, which is what the convention means by it for
// models behind a gateway.
func provider(rec *proxy.Record) string {
	if llmapi.RouteOf("POST", rec.Path).Dialect() == llmapi.Anthropic {
		return "anthropic"
	}
	return "openai"
}

// replicaName is a replica as the headers to clients name it.
func replicaName(d routing.Decision) string {
	if d.Replica == routing.None {
		return "engine"
	}
	return strconv.Itoa(d.Replica)
}
