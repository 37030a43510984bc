package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"lmwarden/internal/stats"
)

// History is what the console needs of the history. *stats.Store is one.
type History interface {
	Tokens(context.Context, stats.Query) (stats.TokenChart, error)
	Requests(context.Context, stats.Query) (stats.RequestChart, error)
	Turns(ctx context.Context, conversation string, limit int, before int64) (page []stats.Turn, next int64, err error)
	Recent(ctx context.Context, model string, n int) ([]stats.Turn, error)
	Shifts(context.Context, stats.Query) ([]stats.Shift, error)
	Ledger(context.Context, stats.Query) ([]stats.Ledger, error)
	Replicas(context.Context, stats.Query) ([]stats.ReplicaSeries, error)
	State() stats.State
}

// noHistory stands in where none is kept.
type noHistory struct{}

var errNoHistory = errors.New("this gateway keeps no history")

func (noHistory) Tokens(context.Context, stats.Query) (stats.TokenChart, error) {
	return stats.TokenChart{}, errNoHistory
}
func (noHistory) Requests(context.Context, stats.Query) (stats.RequestChart, error) {
	return stats.RequestChart{}, errNoHistory
}
func (noHistory) Turns(context.Context, string, int, int64) ([]stats.Turn, int64, error) {
	return nil, 0, errNoHistory
}
func (noHistory) Recent(context.Context, string, int) ([]stats.Turn, error) { return nil, errNoHistory }
func (noHistory) Shifts(context.Context, stats.Query) ([]stats.Shift, error) {
	return nil, errNoHistory
}
func (noHistory) Ledger(context.Context, stats.Query) ([]stats.Ledger, error) {
	return nil, errNoHistory
}
func (noHistory) Replicas(context.Context, stats.Query) ([]stats.ReplicaSeries, error) {
	return nil, errNoHistory
}
func (noHistory) State() stats.State { return stats.State{OK: true} }

// sharedHistory asks once for what several open consoles show at the same time,
// so that many of them cost what one does. Only whole answers are kept.
type sharedHistory struct {
	History
	tokens   shared[stats.Query, stats.TokenChart]
	requests shared[stats.Query, stats.RequestChart]
	shifts   shared[stats.Query, []stats.Shift]
	ledger   shared[stats.Query, []stats.Ledger]
	replicas shared[stats.Query, []stats.ReplicaSeries]
	recent   shared[recentQuery, []stats.Turn]
}

type recentQuery struct {
	model string
	n     int
}

func (h *sharedHistory) Tokens(ctx context.Context, q stats.Query) (stats.TokenChart, error) {
	return h.tokens.get(q, func() (stats.TokenChart, error) { return h.History.Tokens(ctx, q) })
}

func (h *sharedHistory) Requests(ctx context.Context, q stats.Query) (stats.RequestChart, error) {
	return h.requests.get(q, func() (stats.RequestChart, error) { return h.History.Requests(ctx, q) })
}

func (h *sharedHistory) Shifts(ctx context.Context, q stats.Query) ([]stats.Shift, error) {
	return h.shifts.get(q, func() ([]stats.Shift, error) { return h.History.Shifts(ctx, q) })
}

func (h *sharedHistory) Ledger(ctx context.Context, q stats.Query) ([]stats.Ledger, error) {
	return h.ledger.get(q, func() ([]stats.Ledger, error) { return h.History.Ledger(ctx, q) })
}

func (h *sharedHistory) Replicas(ctx context.Context, q stats.Query) ([]stats.ReplicaSeries, error) {
	return h.replicas.get(q, func() ([]stats.ReplicaSeries, error) { return h.History.Replicas(ctx, q) })
}

func (h *sharedHistory) Recent(ctx context.Context, model string, n int) ([]stats.Turn, error) {
	return h.recent.get(recentQuery{model, n}, func() ([]stats.Turn, error) { return h.History.Recent(ctx, model, n) })
}

// shared keeps answers for a moment. Those who ask for the same meanwhile wait for
// the first; nobody may change an answer. The zero value is empty.
type shared[K comparable, V any] struct {
	lasts time.Duration // how long an answer is kept; 0 means sharedFor

	mu   sync.Mutex
	kept map[K]*answer[V] // guarded by mu
}

// answer is guarded by its own lock, which its maker holds while it asks.
type answer[V any] struct {
	mu   sync.Mutex
	at   time.Time
	have bool
	v    V
}

const (
	sharedFor = 900 * time.Millisecond // less than pages ask again after
	maxShared = 64
)

func (s *shared[K, V]) get(k K, ask func() (V, error)) (V, error) {
	s.mu.Lock()
	a := s.kept[k]
	if a == nil {
		if s.kept == nil || len(s.kept) >= maxShared {
			s.kept = map[K]*answer[V]{}
		}
		a = &answer[V]{}
		s.kept[k] = a
	}
	s.mu.Unlock()

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.have && time.Since(a.at) < cmp.Or(s.lasts, sharedFor) {
		return a.v, nil
	}
	v, err := ask()
	a.v, a.have, a.at = v, err == nil, time.Now()
	return v, err
}

// rate is an amount per second of a step that may still run.
func rate(amount int64, begin time.Time, step time.Duration, now time.Time) float64 {
	ran := step
	if end := begin.Add(step); now.Before(end) {
		ran = max(now.Sub(begin), time.Second)
	}
	return float64(amount) / ran.Seconds()
}

// columnsOf are the steps of a query.
func columnsOf(q stats.Query) []column {
	var all []column
	for t := q.From; t.Before(q.To); t = t.Add(q.Step) {
		all = append(all, column{Time: t})
	}
	return all
}

// unknown is a series of gaps.
func unknown(n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = math.NaN()
	}
	return v
}

// recent is a range until now with what was counted in it: an hour by the minute,
// or a quarter of it in finer steps while the hour before was empty, so that a
// gateway that has just started shows more than one bar.
type recent struct {
	query    stats.Query
	words    string // as in "in the last hour"
	tokens   stats.TokenChart
	requests stats.RequestChart
}

func (h *Handler) recent(ctx context.Context, model string) (recent, error) {
	now := h.o.Now().UTC()
	hour, err := h.over(ctx, model, now, time.Hour, time.Minute)
	if err != nil {
		return hour, err
	}
	hour.words = "in the last hour"
	for _, p := range hour.requests.Series[0].Points {
		if p.Requests > 0 && now.Sub(p.Time) > 15*time.Minute {
			return hour, nil
		}
	}
	quarter, err := h.over(ctx, model, now, 15*time.Minute, 10*time.Second)
	quarter.words = "in the last 15 minutes"
	return quarter, err
}

func (h *Handler) over(ctx context.Context, model string, now time.Time, length, step time.Duration) (r recent, err error) {
	to := now.Truncate(step).Add(step)
	r.query = stats.Query{Model: model, From: to.Add(-length), To: to, Step: step, Group: stats.GroupNone}
	if r.tokens, err = h.history.Tokens(ctx, r.query); err != nil {
		return r, err
	}
	if r.requests, err = h.history.Requests(ctx, r.query); err != nil {
		return r, err
	}
	if len(r.tokens.Series) != 1 || len(r.requests.Series) != 1 {
		return r, fmt.Errorf("the history answered with %d and %d series", len(r.tokens.Series), len(r.requests.Series))
	}
	return r, nil
}

// tokenCharts draws prompt and completion tokens a second, each on an axis of its
// own.
func tokenCharts(f frame, q stats.Query, points []stats.TokenPoint, now time.Time) (prompt, completion chart) {
	columns := columnsOf(q)
	values := [3][]float64{}
	for _, p := range points[:min(len(points), len(columns))] {
		for i, n := range [...]int64{p.Cached, p.Computed, p.Completion} {
			values[i] = append(values[i], rate(n, p.Time, q.Step, now))
		}
	}
	cached := series{"Prompt, cached (measured)", "cached", values[0]}
	computed := series{"Prompt, computed", "computed", values[1]}
	columns = columns[:len(values[0])]
	prompt = bars(f, columns, compact, cached, computed)
	prompt.Summary = "Prompt tokens a second, " + spoken(q) + "."
	if sum := cached.total() + computed.total(); sum > 0 {
		prompt.Summary += " " + about(percent(100*cached.total()/sum)) + " of them were cached."
	}
	prompt.Caption = "Prompt tokens a second. Cached is the engine’s own count per finished request; what it did not measure counts as computed."
	completion = bars(frame{Height: f.Height * 4 / 9}, columns, compact, series{"Completion", "completion", values[2]})
	completion.Summary = "Completion tokens a second, " + spoken(q) + "."
	completion.Caption = "Completion tokens a second, counted when their request ends."
	return prompt, completion
}

// quantileChart draws the median and the tail of a time.
func quantileChart(f frame, q stats.Query, points []stats.RequestPoint, of func(*stats.RequestPoint) stats.Quantiles) chart {
	columns := columnsOf(q)
	p50, p95 := unknown(len(columns)), unknown(len(columns))
	for i := range points[:min(len(points), len(columns))] {
		if d := of(&points[i]); d.Count > 0 {
			p50[i], p95[i] = d.P50.Seconds(), d.P95.Seconds()
		}
	}
	return lines(f, columns, seconds, 0.01, series{"p50", "p50", p50}, series{"p95", "p95", p95})
}

func ttfbOf(p *stats.RequestPoint) stats.Quantiles   { return p.TTFB }
func waitedOf(p *stats.RequestPoint) stats.Quantiles { return p.Waited }

// latencyChart draws the time to the first byte, waitChart the wait before it.
func latencyChart(f frame, q stats.Query, points []stats.RequestPoint) chart {
	c := quantileChart(f, q, points, ttfbOf)
	c.Summary = "Time to the first byte, median and 95th percentile, " + spoken(q) + "."
	c.Caption = "Time to the first byte at the client, logarithmic. High: prompts are read again, or requests wait."
	return c
}

func waitChart(f frame, q stats.Query, points []stats.RequestPoint) chart {
	c := quantileChart(f, q, points, waitedOf)
	c.Summary = "Time that requests waited at the gateway, median and 95th percentile of those that did, " + spoken(q) + "."
	c.Caption = "How long requests waited at the gateway until their replica had room, logarithmic; those that went on at once are not in it. High: more work than the caches hold."
	return c
}

// spoken says a query's range.
func spoken(q stats.Query) string {
	return q.From.UTC().Format("2 January 15:04") + " to " + q.To.UTC().Format("2 January 15:04 UTC")
}
