package server

import (
	"slices"
	"sort"
	"time"

	"lmwarden/internal/enginesim"
)

// figure is one of the histograms that the engine keeps per rank.
type figure int

// The figures, in the order of the metrics page.
const (
	promptTokens figure = iota
	generationTokens
	stepTokens
	maxGenerated
	choices
	maxTokens
	ttft // this and the next ones in seconds
	itl
	tpot
	e2e
	queueTime
	inferenceTime
	prefillTime
	decodeTime
	computedTokens

	figureCount
)

// declaration is what the metrics page says about a figure.
type declaration struct {
	name, help string
	bounds     []float64
}

func declarations(modelLen int) [figureCount]declaration {
	var (
		tokens    = decades(modelLen)
		latency   = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
		tokenTime = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
		firstTime = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
		perStep   = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	)
	return [figureCount]declaration{
		promptTokens:     {"vllm:request_prompt_tokens", "Number of prefill tokens processed.", tokens},
		generationTokens: {"vllm:request_generation_tokens", "Number of generation tokens processed.", tokens},
		stepTokens:       {"vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", perStep},
		maxGenerated:     {"vllm:request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", tokens},
		choices:          {"vllm:request_params_n", "Histogram of the n request parameter.", []float64{1, 2, 5, 10, 20}},
		maxTokens:        {"vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", tokens},
		ttft:             {"vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", firstTime},
		itl:              {"vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", tokenTime},
		tpot:             {"vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", tokenTime},
		e2e:              {"vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", latency},
		queueTime:        {"vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", latency},
		inferenceTime:    {"vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", latency},
		prefillTime:      {"vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", latency},
		decodeTime:       {"vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", latency},
		computedTokens:   {"vllm:request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).", tokens},
	}
}

// decades are 1, 2, 5, 10, 20, ... up to limit, as the engine's buckets of tokens are.
func decades(limit int) []float64 {
	var bounds []float64
	for decade := 1; ; decade *= 10 {
		for _, step := range []int{1, 2, 5} {
			if step*decade > limit {
				return bounds
			}
			bounds = append(bounds, float64(step*decade))
		}
	}
}

// figures are the histograms of one rank. A sequence that its client abandoned is in those of its tokens
// only, as in the original.
type figures [figureCount]histogram

func newFigures(modelLen int) *figures {
	f := &figures{}
	for i, d := range declarations(modelLen) {
		f[i] = histogram{bounds: d.bounds, counts: make([]int64, len(d.bounds)+1)}
	}
	return f
}

func (f *figures) clone() figures {
	copied := *f
	for i := range copied {
		copied[i].counts = slices.Clone(copied[i].counts)
	}
	return copied
}

// emitted books what a step that began and ended at these times did to a sequence.
func (f *figures) emitted(q *sequence, e enginesim.Emit, began, now time.Time) {
	if e.Admitted {
		q.admitted = began
	}
	if e.Tokens > 0 {
		if e.First {
			q.first, q.cached = now, e.Cached
			f[ttft].observe(now.Sub(q.arrived).Seconds())
		} else {
			f[itl].observe(now.Sub(q.last).Seconds())
		}
		q.last = now
		q.generated += e.Tokens
	}
	if !e.Done {
		return
	}
	decode := now.Sub(q.first).Seconds()
	perToken := 0.0
	if q.generated > 1 {
		perToken = decode / float64(q.generated-1)
	}
	f[tpot].observe(perToken)
	f[e2e].observe(now.Sub(q.arrived).Seconds())
	f[queueTime].observe(q.admitted.Sub(q.arrived).Seconds())
	f[inferenceTime].observe(now.Sub(q.admitted).Seconds())
	f[prefillTime].observe(q.first.Sub(q.admitted).Seconds())
	f[decodeTime].observe(decode)
	f[promptTokens].observe(float64(q.prompt))
	f[computedTokens].observe(float64(q.prompt - q.cached))
	f[generationTokens].observe(float64(q.generated))
	f[maxGenerated].observe(float64(q.generated))
	f[maxTokens].observe(float64(q.params.maxTokens))
	f[choices].observe(float64(q.params.n))
}

func (f *figures) stepped(tokens int) { f[stepTokens].observe(float64(tokens)) }

// histogram counts observations in buckets as Prometheus does.
type histogram struct {
	bounds []float64 // upper, ascending, without +Inf
	counts []int64   // one more than bounds
	sum    float64
}

func (h *histogram) observe(v float64) {
	h.counts[sort.SearchFloat64s(h.bounds, v)]++
	h.sum += v
}
