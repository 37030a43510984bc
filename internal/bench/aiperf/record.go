package aiperf

import (
	"fmt"
	"math"

	"lmwarden/internal/bench/results"
)

// record is a line of profile_export.jsonl. Its times are nanoseconds since 1970
// there, since the run began here: a measurement holds no clock times.
type record struct {
	Metadata metadata         `json:"metadata"`
	Metrics  map[metric]value `json:"metrics"`
	Error    *problem         `json:"error"`
}

type metadata struct {
	SessionNum    int     `json:"session_num"`
	RequestID     string  `json:"x_request_id"`
	Correlation   *string `json:"x_correlation_id"`
	Conversation  *string `json:"conversation_id"`
	TurnIndex     *int    `json:"turn_index"`
	StartNS       int64   `json:"request_start_ns"`
	AckNS         *int64  `json:"request_ack_ns"`
	EndNS         int64   `json:"request_end_ns"`
	Worker        string  `json:"worker_id"`
	Processor     string  `json:"record_processor_id"`
	Phase         string  `json:"benchmark_phase"`
	WasCancelled  bool    `json:"was_cancelled"`
	CancelledNS   *int64  `json:"cancellation_time_ns"`
	Depth         int     `json:"agent_depth"`
	ParentSession *string `json:"parent_correlation_id"`
}

type value struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

type problem struct {
	Code    int    `json:"code,omitempty"` // 0 is none
	Type    string `json:"type"`
	Message string `json:"message"`
}

// metric is AIPerf's tag of one.
type metric string

// Metrics of a request.
const (
	ttft          metric = "time_to_first_token"
	latency       metric = "request_latency"
	itl           metric = "inter_token_latency"
	perUser       metric = "output_token_throughput_per_user"
	inputLength   metric = "input_sequence_length"
	outputLength  metric = "output_sequence_length"
	outputTokens  metric = "output_token_count"
	usagePrompt   metric = "usage_prompt_tokens"
	usageCached   metric = "usage_prompt_cache_read_tokens"
	usageComplete metric = "usage_completion_tokens"
	errorInput    metric = "error_isl"
)

// cancelled is the status that AIPerf gives a request which its client left.
const cancelled = 499

// recordsOf turns the requests of one run into records.
func recordsOf(requests []results.Request) []record {
	sessions := map[string]int{}
	depths := map[string]int{}
	list := make([]record, len(requests))
	alone := 0 // requests without a conversation, each a session of its own
	for i := range requests {
		q := &requests[i]
		start := nanoseconds(q.SentS)
		m := metadata{
			RequestID:   fmt.Sprintf("%s-%d", runOf(q).name(), i),
			Correlation: q.Session, Conversation: q.Session, ParentSession: q.Parent,
			StartNS: start, EndNS: start,
			Worker: fmt.Sprintf("client_%d", q.Client), Processor: "warden", Phase: "profiling",
		}
		if q.Session == nil {
			m.SessionNum = len(sessions) + alone
			alone++
		} else {
			n, seen := sessions[*q.Session]
			if !seen {
				n = len(sessions) + alone
				sessions[*q.Session] = n
				if q.Parent != nil {
					depths[*q.Session] = depths[*q.Parent] + 1
				}
			}
			m.SessionNum, m.Depth = n, depths[*q.Session]
		}
		if q.Turn != nil {
			index := *q.Turn - 1
			m.TurnIndex = &index
		}
		if q.TTFB != nil {
			at := start + nanoseconds(*q.TTFB)
			m.AckNS, m.EndNS = &at, at
		}
		if q.E2E != nil {
			m.EndNS = start + nanoseconds(*q.E2E)
		}
		r := record{Metadata: m, Metrics: map[metric]value{}}
		switch q.End {
		case results.Finished:
			r.measure(q)
		case results.Cut:
			r.Error = &problem{cancelled, "RequestCancellationError", "cut at the end of the step"}
			r.Metadata.WasCancelled, r.Metadata.CancelledNS = true, &r.Metadata.EndNS
		default:
			message := "failed"
			if q.Error != nil {
				message = *q.Error
			}
			r.Error = &problem{0, "RequestError", message}
		}
		if r.Error != nil {
			r.count(q.PromptTokens, errorInput)
		}
		list[i] = r
	}
	return list
}

// measure fills in what is known of a finished request.
func (r *record) measure(q *results.Request) {
	time := func(seconds *float64, m metric) {
		if seconds != nil {
			r.Metrics[m] = value{round(1000 * *seconds), "ms"}
		}
	}
	time(q.TTFT, ttft)
	time(q.E2E, latency)
	if q.ITL != nil {
		r.Metrics[itl] = value{round(*q.ITL), "ms"}
		if *q.ITL > 0 {
			r.Metrics[perUser] = value{round(1000 / *q.ITL), "tokens/sec/user"}
		}
	}
	r.count(q.PromptTokens, inputLength, usagePrompt)
	r.count(q.CachedTokens, usageCached)
	r.count(q.OutputTokens, outputLength, outputTokens, usageComplete)
}

// count is a number of tokens under one or more names.
func (r *record) count(n *int, metrics ...metric) {
	if n == nil {
		return
	}
	for _, m := range metrics {
		r.Metrics[m] = value{float64(*n), "tokens"}
	}
}

func nanoseconds(seconds float64) int64 { return int64(math.Round(seconds * 1e9)) }

// round keeps the last bits of a sum, which differ between processors, out of
// files.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }
