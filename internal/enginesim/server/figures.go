package server

import (
	"sort"
	"time"

	"lmwarden/internal/enginesim"
)

// figures are the histograms of one rank. They cover requests that finished, as the
// engine's do: what a client abandoned is not in them.
type figures struct {
	ttft, itl, tpot                                histogram // seconds
	e2e, queue, inference, prefill, decode         histogram // seconds
	promptTokens, generationTokens, computedTokens histogram
	maxGenerated, maxTokens, choices               histogram
	stepTokens                                     histogram
}

// The engine's buckets, in seconds.
func ttftBounds() []float64 {
	return []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
}

func tokenTimeBounds() []float64 {
	return []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
}

func latencyBounds() []float64 {
	return []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
}

// decadeBounds are 1, 2, 5, 10, 20, ... up to limit, as the engine's token counts have.
func decadeBounds(limit int) []float64 {
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

func newFigures(modelLen int) *figures {
	tokens := decadeBounds(modelLen)
	return &figures{
		ttft:             newHistogram(ttftBounds()),
		itl:              newHistogram(tokenTimeBounds()),
		tpot:             newHistogram(tokenTimeBounds()),
		e2e:              newHistogram(latencyBounds()),
		queue:            newHistogram(latencyBounds()),
		inference:        newHistogram(latencyBounds()),
		prefill:          newHistogram(latencyBounds()),
		decode:           newHistogram(latencyBounds()),
		promptTokens:     newHistogram(tokens),
		generationTokens: newHistogram(tokens),
		computedTokens:   newHistogram(tokens),
		maxGenerated:     newHistogram(tokens),
		maxTokens:        newHistogram(tokens),
		choices:          newHistogram([]float64{1, 2, 5, 10, 20}),
		stepTokens:       newHistogram([]float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}),
	}
}

// emitted books what a step that began and ended at these times did to a sequence.
func (f *figures) emitted(q *sequence, e enginesim.Emit, began, now time.Time) {
	if e.Admitted {
		q.admitted = later(began, q.arrived)
	}
	if e.Tokens > 0 {
		if e.First {
			q.first, q.cached = now, e.Cached
			f.ttft.observe(now.Sub(q.arrived).Seconds())
		} else {
			f.itl.observe(now.Sub(q.last).Seconds())
		}
		q.last = now
		q.generated += e.Tokens
	}
	if !e.Done {
		return
	}
	decode := now.Sub(q.first).Seconds()
	f.e2e.observe(now.Sub(q.arrived).Seconds())
	f.queue.observe(q.admitted.Sub(q.arrived).Seconds())
	f.inference.observe(now.Sub(q.admitted).Seconds())
	f.prefill.observe(q.first.Sub(q.admitted).Seconds())
	f.decode.observe(decode)
	perToken := 0.0
	if q.generated > 1 {
		perToken = decode / float64(q.generated-1)
	}
	f.tpot.observe(perToken)
	f.promptTokens.observe(float64(q.prompt))
	f.generationTokens.observe(float64(q.generated))
	f.computedTokens.observe(float64(q.prompt - q.cached))
	f.maxGenerated.observe(float64(q.generated))
	f.maxTokens.observe(float64(q.params.maxTokens))
	f.choices.observe(float64(q.params.n))
}

func (f *figures) stepped(tokens int) { f.stepTokens.observe(float64(tokens)) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// histogram counts observations in buckets as Prometheus does.
type histogram struct {
	bounds []float64 // upper, ascending, without +Inf
	counts []int64   // one more than bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]int64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	h.counts[sort.SearchFloat64s(h.bounds, v)]++
	h.sum += v
}
