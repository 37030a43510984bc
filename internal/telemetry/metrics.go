package telemetry

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Request is one finished request.
type Request struct {
	Model string // the pool's name; empty when the request named none
	// Replica is the index, "engine" when the engine's balancer chose, or empty
	// when no replica was chosen.
	Replica string
	Reason  string // of the decision; empty when there was none
	Why     string // of a spill or a move
	Outcome string
	// TTFB is the time to the first byte of the answer, 0 when there was none.
	TTFB, Duration time.Duration
	Waited         time.Duration // at the gateway, 0 when it did not
	// Prompt, Cached and Completion are the engine's own counts in tokens. Known
	// and CachedKnown say whether it gave them.
	Prompt, Cached, Completion int64
	Known, CachedKnown         bool
}

// Pool is a model's pool at one moment.
type Pool struct {
	Model string
	// EngineInFlight is the open requests that the engine's own balancer placed,
	// which are in no replica's count.
	EngineInFlight int
	// Waiting is the requests in the engines' queues and those that the gateway
	// holds; negative when it is not known.
	Waiting  int
	Replicas []Replica // by index
}

// Replica is one replica at one moment.
type Replica struct {
	InFlight      int
	Conversations int           // live
	ScrapeAge     time.Duration // since the last good scrape; negative before the first
	State         string        // a word of the design: ready, draining, stuck, down, unknown
	// Running, Waiting and KVUsed (0 to 1) are the engine's own; negative when it
	// does not tell them.
	Running, Waiting int
	KVUsed           float64
	// KVCached is the tokens in the engine's prefix cache by its KV events; negative
	// when these are not known.
	KVCached int64
}

// Build is what the binary was made from.
type Build struct{ Version, Commit, Go string }

// Options are what NewMetrics needs.
type Options struct {
	// Registerer takes the metrics, once.
	Registerer prometheus.Registerer
	Build      Build
	// Pools is asked at each scrape, from any goroutine.
	Pools func() []Pool
	// HistoryDropped counts finished requests that are missing in the history. Nil
	// means that there is none.
	HistoryDropped func() int64
}

// Metrics counts finished requests. Safe for concurrent use.
type Metrics struct {
	requests, prompt, completion, spills, moves *prometheus.CounterVec
	ttfb, duration, wait                        *prometheus.HistogramVec

	mu sync.Mutex
	// The rest is guarded by mu.
	models, replicas, reasons, outcomes, whys bounded
	found                                     map[labels]*series
	tokens                                    map[string]Tokens // by model
}

// Tokens are a model's tokens since the start.
type Tokens struct {
	// Cached and Computed are parts of the prompts whose cached part the engine
	// told; Unmeasured are prompts for which it did not.
	Cached, Computed, Unmeasured int64
	Completion                   int64
}

// NewRegistry is a registry with the metrics of the Go runtime and the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves a registry's metrics. A collector that fails costs its own
// metrics only, and a line in the log.
func Handler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelError),
		ErrorHandling: promhttp.ContinueOnError,
	})
}

// NewMetrics registers the gateway's metrics. It fails when they are registered
// already.
func NewMetrics(o Options) (*Metrics, error) {
	if o.Registerer == nil || o.Pools == nil {
		return nil, errors.New("telemetry: Registerer and Pools are required")
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"model"})
	}
	m := &Metrics{
		requests:   counter("warden_requests_total", "Finished requests.", "model", "replica", "reason", "outcome"),
		prompt:     counter("warden_prompt_tokens_total", "Prompt tokens as the engine counted them, by whether they came from its cache.", "model", "replica", "source"),
		completion: counter("warden_completion_tokens_total", "Completion tokens as the engine counted them.", "model", "replica"),
		spills:     counter("warden_spills_total", "Finished requests that another replica took because their home was full.", "model", "replica", "why"),
		moves:      counter("warden_moves_total", "Finished requests whose conversation was given another home.", "model", "replica", "why"),
		// A cached turn answers in tenths of a second, an overloaded box in minutes.
		ttfb: histogram("warden_ttfb_seconds", "Time from a request's arrival to the first byte of its answer.",
			[]float64{.01, .025, .05, .1, .2, .35, .5, .75, 1, 1.5, 2.5, 5, 10, 20, 40, 80, 160, 320}),
		duration: histogram("warden_request_seconds", "Time from a request's arrival to its end.",
			[]float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280}),
		wait: histogram("warden_wait_seconds", "Time that a request was held at the gateway, of those that were.",
			[]float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 20, 30, 40, 60, 90, 120, 300, 600}),
		models:   bounded{most: 256},
		replicas: bounded{most: 1024},
		reasons:  bounded{most: 32},
		outcomes: bounded{most: 16},
		whys:     bounded{most: 32},
		found:    map[labels]*series{},
		tokens:   map[string]Tokens{},
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "warden_build_info", Help: "The build, as labels; always 1."},
		[]string{"version", "commit", "goversion"})
	build.WithLabelValues(valid(o.Build.Version), valid(o.Build.Commit), valid(o.Build.Go)).Set(1)
	all := []prometheus.Collector{
		m.requests, m.prompt, m.completion, m.spills, m.moves, m.ttfb, m.duration, m.wait, build, newGauges(o.Pools),
	}
	if o.HistoryDropped != nil {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "warden_history_dropped_total", Help: "Finished requests that are missing in the history.",
		}, func() float64 { return float64(o.HistoryDropped()) }))
	}
	for _, c := range all {
		if err := o.Registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Observe counts a finished request.
func (m *Metrics) Observe(r Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(labels{r.Model, r.Replica, r.Reason, r.Why, r.Outcome})
	s.requests.Inc()
	if s.elsewhere != nil {
		s.elsewhere.Inc()
	}
	if r.TTFB > 0 {
		if s.ttfb == nil {
			s.ttfb = m.ttfb.WithLabelValues(s.model)
		}
		s.ttfb.Observe(r.TTFB.Seconds())
	}
	s.duration.Observe(r.Duration.Seconds())
	if r.Waited > 0 {
		m.wait.WithLabelValues(s.model).Observe(r.Waited.Seconds())
	}
	if r.Known {
		m.count(s, split(r))
	}
}

// labels are what tells the series of two requests apart.
type labels struct{ model, replica, reason, why, outcome string }

// series are the metrics of requests with the same labels, found once: to find
// them costs ten times what counting costs.
type series struct {
	model, replica      string
	requests, elsewhere prometheus.Counter // elsewhere: of spills or moves, nil for other reasons
	duration            prometheus.Observer
	// Those are made when they have something to show.
	ttfb       prometheus.Observer
	prompt     [3]prometheus.Counter // cached, computed, unmeasured
	completion prometheus.Counter
}

// mostSeries bounds what is kept found; a gateway has some hundred.
const mostSeries = 4096

// of finds the series of a request. Callers hold mu.
func (m *Metrics) of(l labels) *series {
	if s := m.found[l]; s != nil {
		return s
	}
	model, replica := m.models.label(l.model), m.replicas.label(l.replica)
	s := &series{
		model: model, replica: replica,
		requests: m.requests.WithLabelValues(model, replica, m.reasons.label(l.reason), m.outcomes.label(l.outcome)),
		duration: m.duration.WithLabelValues(model),
	}
	switch l.reason {
	case "spilled":
		s.elsewhere = m.spills.WithLabelValues(model, replica, m.whys.label(l.why))
	case "moved":
		s.elsewhere = m.moves.WithLabelValues(model, replica, m.whys.label(l.why))
	}
	if len(m.found) < mostSeries {
		m.found[l] = s
	}
	return s
}

// split parts a request's tokens by their source. An engine's nonsense (below
// zero, more cached than asked for) is bent, since a counter cannot fall.
func split(r Request) Tokens {
	prompt := max(r.Prompt, 0)
	t := Tokens{Completion: max(r.Completion, 0)}
	if !r.CachedKnown {
		t.Unmeasured = prompt
		return t
	}
	t.Cached = min(max(r.Cached, 0), prompt)
	t.Computed = prompt - t.Cached
	return t
}

// count adds a request's tokens. Callers hold mu.
func (m *Metrics) count(s *series, t Tokens) {
	for i, n := range [3]int64{t.Cached, t.Computed, t.Unmeasured} {
		if n == 0 {
			continue
		}
		if s.prompt[i] == nil {
			source := [3]string{"cached", "computed", "unmeasured"}[i]
			s.prompt[i] = m.prompt.WithLabelValues(s.model, s.replica, source)
		}
		s.prompt[i].Add(float64(n))
	}
	if s.completion == nil {
		s.completion = m.completion.WithLabelValues(s.model, s.replica)
	}
	s.completion.Add(float64(t.Completion))
	sum := m.tokens[s.model]
	sum.Cached += t.Cached
	sum.Computed += t.Computed
	sum.Unmeasured += t.Unmeasured
	sum.Completion += t.Completion
	m.tokens[s.model] = sum
}

// Tokens tells a model's tokens since the start.
func (m *Metrics) Tokens(model string) Tokens {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tokens[valid(model)]
}

// bounded keeps the number of values of a label small, whatever comes in: the
// first ones keep their names, all others share "other". Not safe for concurrent
// use.
type bounded struct {
	most int
	seen map[string]struct{}
}

// label is the value to use; what is empty has the value "none", since a label
// without a value reads like one that is missing.
func (b *bounded) label(v string) string {
	if v == "" {
		return "none"
	}
	v = valid(v)
	if _, ok := b.seen[v]; ok {
		return v
	}
	if len(b.seen) >= b.most {
		return "other"
	}
	if b.seen == nil {
		b.seen = map[string]struct{}{}
	}
	b.seen[v] = struct{}{}
	return v
}

// valid is UTF-8, which the client library insists on.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
