package web

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/stats"
)

// modelPage is the page of one model.
type modelPage struct {
	page
	Card       card
	Facts      []string
	Answers    []string // further names
	Default    string   // the alias that maps here by default
	Policies   []filterLink
	Notes      []note
	Say        []sentence
	Held       string // on requests that wait at the gateway, or empty
	HeldOnes   []string
	Learned    []learnedRow
	Since      time.Time
	WorkingSet workingSet
	Servers    []serverFacts
	Cached     []cachedRow // of the replicas whose KV events are heard
	Hour       modelHour
	Reasons    []filterLink
	Decisions  []decisionRow
}

// modelHour is a model's last hour; Known is false without a history.
type modelHour struct {
	Known              bool
	Span               string // as in "in the last hour"
	Prompt, Completion chart
	Latency            chart
	Quantiles          []quantileRow
	Scatter            scatter
	KV                 chart // no columns with more replicas than there are colours
	Moves              []moveRow
	Moved              string // how many in all, as a sentence
	Causes             rereads
}

type quantileRow struct{ Label, Count, P50, P95, P99 string }

// learnedRow is a value that the policy learned from traffic.
type learnedRow struct{ Label, Value, Samples string }

// moveRow is one way that requests took away from their home.
type moveRow struct {
	From, To             string
	FromColour, ToColour string
	Reason, Why, Count   string
}

func (h *Handler) modelPage(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	p, known := h.find(name)
	if p == nil {
		h.notFound(w, r, noSuchModel(name, known))
		return
	}
	reason := r.URL.Query().Get("reason")
	if reason != "" && !slices.Contains(reasons[:], routing.Reason(reason)) {
		h.badRequest(w, r, fmt.Errorf("reason %q: must be one of %s", reason, reasonNames()))
		return
	}
	v := p.View()
	var tokens Tokens
	if h.o.Tokens != nil {
		tokens = h.o.Tokens(v.Name)
	}
	m := modelPage{
		page: h.page(r, navModels, v.Name, "/api/models/"+url.PathEscape(v.Name)), Card: cardOf(v, true), Facts: factsOf(v), Since: v.Since,
		Notes: notesOf(v, tokens), WorkingSet: workingSetOf(v), Servers: serversOf(v.Servers),
		Cached: h.cachedRowsOf(v),
	}
	if len(known) == 1 && slices.Contains(v.Aliases, h.o.DefaultAlias) {
		m.Default = h.o.DefaultAlias
	}
	for _, a := range v.Aliases {
		if a != m.Default {
			m.Answers = append(m.Answers, a)
		}
	}
	for _, name := range routing.Policies() {
		m.Policies = append(m.Policies, filterLink{Label: name, On: name == v.Routing.Policy})
	}
	m.Held, m.HeldOnes, m.Learned = heldSentence(v), heldOnes(v), learnedOf(v.Routing)
	var measured memory
	m.Hour, measured = h.modelHour(r.Context(), v)
	if s, ok := measured.sentence(v); ok {
		m.Say = append(sayOf(v, Tokens{}), s)
	} else {
		m.Say = sayOf(v, tokens)
	}
	m.Reasons = append(m.Reasons, filterLink{"all", m.Card.Path + "#decisions", reason == ""})
	for _, name := range reasons {
		m.Reasons = append(m.Reasons, filterLink{string(name), m.Card.Path + "?reason=" + string(name) + "#decisions", string(name) == reason})
	}
	const shown = 15
	look := shown
	if reason != "" {
		look = maxDecisions
	}
	for _, e := range p.Receipts(look) {
		if reason == "" || string(e.Decision.Reason) == reason {
			m.Decisions = append(m.Decisions, decisionRowOf(e, len(v.Replicas)))
		}
		if len(m.Decisions) == shown {
			break
		}
	}
	h.render(w, r, http.StatusOK, "model.html", m)
}

// heldSentence is on the requests that wait at the gateway, empty when none do.
func heldSentence(v pool.View) string {
	if v.Waiting == 0 {
		return ""
	}
	q := v.Routing.Queue
	s := plural(v.Waiting, "1 request waits at the gateway until a replica takes it on", "%d requests wait at the gateway until a replica takes them on")
	if q.Longest > 0 {
		s += ", the longest for " + seconds(q.Longest.Seconds()) + " already"
	}
	if q.Wait > 0 {
		s += "; one that came now would wait about " + seconds(q.Wait.Seconds())
	}
	return s + "."
}

// heldOnes says of each of the first requests that wait for how long, and why.
func heldOnes(v pool.View) (lines []string) {
	for _, h := range v.Held {
		line := cmp.Or(h.Conversation, "request "+h.RequestID) + " waits for " + seconds(h.Waited.Seconds())
		if h.Wait > 0 {
			line += ", probably " + seconds(h.Wait.Seconds()) + " more"
		}
		lines = append(lines, line+": "+heldBecause(h.Why))
	}
	return lines
}

// learnedOf lists what is known of the traffic.
func learnedOf(v routing.View) []learnedRow {
	l := v.Learned
	count := func(f float64) string { return compact(f) + " tokens" }
	var rows []learnedRow
	for _, m := range []struct {
		label string
		of    routing.Measured
		say   func(float64) string
	}{
		{"prefix that all conversations share", l.Shared, count},
		{"what a request adds to a replica", l.Need, count},
		{"length of an answer", l.Output, count},
		{"reading rate of a replica", l.ReadingRate, func(f float64) string { return compact(f) + " tokens/s" }},
		{"from dispatch to the end of an answer", l.Place, seconds},
		{"how long a place is kept between turns", l.Hold, seconds},
		{"throughput", l.Throughput, func(f float64) string { return compact(60*f) + " turns/min" }},
		{"of the replicas' time, reading again what was pushed out", l.Rereading, func(f float64) string { return about(percent(100 * f)) }},
		{"estimate of a prompt before the engine counts it", l.Estimated, func(f float64) string { return fmt.Sprintf("%.2f of its tokens", f) }},
	} {
		if m.of.Samples > 0 {
			rows = append(rows, learnedRow{m.label, m.say(m.of.Value), thousands(int64(m.of.Samples))})
		}
	}
	if w := v.Queue.Patience; w > 0 {
		rows = append(rows, learnedRow{"patience: how long a request waits until a replica is kept for it", seconds(w.Seconds()), dash})
	}
	return rows
}

// reasons are those of a decision, in the order of the filter.
var reasons = [...]routing.Reason{routing.Placed, routing.Stayed, routing.Spilled, routing.Moved, routing.Pinned, routing.Unbound, routing.Off, routing.Engine}

func reasonNames() string {
	var names []string
	for _, r := range reasons {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

// memory is what the estimate of routing without memory is made from.
type memory struct {
	words            string // the range, as in "in the last hour"
	cached, measured int64  // prompt tokens
	requests         int64
}

func memoryOf(r recent) memory {
	t := r.tokens.Total
	return memory{words: r.words, cached: t.Cached, measured: t.Cached + t.Computed - t.Unmeasured, requests: r.requests.Series[0].Total.Requests}
}

// estimate is the cached share that a random choice of the replica would give;
// false where there is no such choice, or nothing was measured.
func (m memory) estimate(v pool.View) (string, bool) {
	if m.measured <= 0 || len(v.Replicas) < 2 || v.Routing.Policy == off {
		return "", false
	}
	return about(share(m.withoutMemory(v), m.measured)), true
}

// sentence compares the cached share with the estimate, and says how that is made.
func (m memory) sentence(v pool.View) (sentence, bool) {
	if m.measured <= 0 {
		return sentence{}, false
	}
	s := sentence{capital(m.words) + " " + about(share(m.cached, m.measured)), " of prompt tokens came from the cache"}
	if estimate, ok := m.estimate(v); ok {
		s.Rest += fmt.Sprintf("; routing without memory would give about %s (a turn finds its history at one of %d replicas", estimate, len(v.Replicas))
		if v.Routing.WorkingSet.Shared > 0 {
			s.Rest += fmt.Sprintf(", the %s tokens that all share at each", tokens(v.Routing.WorkingSet.Shared))
		}
		s.Rest += ")"
	}
	s.Rest += "."
	return s, true
}

// withoutMemory is the cached tokens of the estimate: a turn finds its own history
// at one replica of R, so 1/R of what was cached beyond the prefix that all
// conversations share, and that prefix everywhere. What earlier turns left at other
// replicas is not in it, nor is the room that such copies take from others; the two
// work against each other.
func (m memory) withoutMemory(v pool.View) int64 {
	everywhere := min(max(v.Routing.WorkingSet.Shared, 0)*m.requests, m.cached)
	return everywhere + (m.cached-everywhere)/int64(max(len(v.Replicas), 1))
}

// modelHour reads a model's last hour. What cannot be read is left out; the
// overview says why.
func (h *Handler) modelHour(ctx context.Context, v pool.View) (o modelHour, m memory) {
	lately, err := h.recent(ctx, v.Name)
	if err != nil {
		return o, m
	}
	q := lately.query
	total := lately.requests.Series[0].Total
	o.Known, o.Span = true, lately.words
	m = memoryOf(lately)
	o.Prompt, o.Completion = tokenCharts(frame{Height: 130}, q, lately.tokens.Series[0].Points, h.o.Now())
	o.Latency = latencyChart(frame{Height: 110}, q, lately.requests.Series[0].Points)
	if recent, err := h.history.Recent(ctx, v.Name, 500); err == nil {
		o.Quantiles, o.Scatter = quantilesOf(recent), scatterOf(recent)
	}
	add := func(label string, q stats.Quantiles) {
		if q.Count > 0 {
			o.Quantiles = append(o.Quantiles, quantileRow{label, thousands(q.Count), seconds(q.P50.Seconds()), seconds(q.P95.Seconds()), seconds(q.P99.Seconds())})
		}
	}
	add("Time to first byte, all", total.TTFB)
	add("Whole answer, all", total.Duration)
	add("Wait at the gateway, of those that waited", total.Waited)
	if replicas, err := h.history.Replicas(ctx, q); err == nil {
		o.KV = kvChart(q, replicas, len(v.Replicas))
	}
	if shifts, err := h.history.Shifts(ctx, q); err == nil {
		o.Moves, o.Moved = movesOf(shifts, len(v.Replicas), lately.words)
	}
	if ledger, err := h.history.Ledger(ctx, q); err == nil {
		o.Causes = rereadsOf(ledger)
	}
	return o, m
}

// wellCached is the cached share from which a turn counts as having found its
// history: a first turn finds at most the prefix that all share.
const wellCached = 0.6

// quantilesOf splits the latest requests by what they found in the cache, since a
// time to the first byte says little without it.
func quantilesOf(recent []stats.Turn) []quantileRow {
	var found, read []float64
	for _, t := range recent {
		if t.TTFB <= 0 || t.Cached < 0 || t.Prompt <= 0 {
			continue
		}
		if float64(t.Cached) >= wellCached*float64(t.Prompt) {
			found = append(found, t.TTFB.Seconds())
		} else {
			read = append(read, t.TTFB.Seconds())
		}
	}
	var rows []quantileRow
	for _, s := range []struct {
		label  string
		values []float64
	}{{"Time to first byte, cached turns", found}, {"Time to first byte, first and re-read turns", read}} {
		if len(s.values) == 0 {
			continue
		}
		sort.Float64s(s.values)
		at := func(p float64) string { return seconds(s.values[max(int(math.Ceil(p*float64(len(s.values))))-1, 0)]) }
		rows = append(rows, quantileRow{s.label, thousands(int64(len(s.values))), at(0.5), at(0.95), at(0.99)})
	}
	return rows
}

// scatter is one dot a request: the cached share from left to right, the time to
// the first byte upwards, logarithmic from 10 ms to 100 s.
type scatter struct {
	D     string
	Count int
}

func scatterOf(recent []stats.Turn) scatter {
	var s scatter
	var d strings.Builder
	for _, t := range recent {
		if t.TTFB <= 0 || t.Cached < 0 || t.Prompt <= 0 {
			continue
		}
		x := 100 * min(float64(t.Cached)/float64(t.Prompt), 1)
		y := 25 * (4 - math.Log10(min(max(t.TTFB.Seconds(), 0.01), 100)/0.01))
		fmt.Fprintf(&d, "M%s %sh0", short(math.Round(x*2)/2), short(math.Round(y*2)/2))
		s.Count++
	}
	s.D = d.String()
	return s
}

// kvChart draws how full each replica's cache was.
func kvChart(q stats.Query, replicas []stats.ReplicaSeries, count int) chart {
	if count > 4 || len(replicas) == 0 {
		return chart{}
	}
	columns := columnsOf(q)
	var all []series
	for _, r := range replicas {
		if r.Replica < 0 || r.Replica >= count {
			continue
		}
		s := series{Label: "replica " + strconv.Itoa(r.Replica), Class: "line-r" + strconv.Itoa(r.Replica), Values: unknown(len(columns))}
		for _, p := range r.Points {
			if i := int(p.Time.Sub(q.From) / q.Step); i >= 0 && i < len(columns) && p.KVPercent >= 0 {
				s.Values[i] = p.KVPercent
			}
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return chart{}
	}
	c := lines(frame{Height: 110, Reach: 100}, columns, func(f float64) string { return compact(f) + "%" }, 0, all...)
	c.Summary = "KV cache in use by running requests, per replica, " + spoken(q) + "."
	c.Caption = fmt.Sprintf("KV cache in use by running requests. From %d%% on, the engine soon evicts what idle conversations left.", evictionLine)
	return c
}

// movesOf puts shifts into rows, the most frequent first.
func movesOf(shifts []stats.Shift, replicas int, words string) ([]moveRow, string) {
	const shown = 12
	var rows []moveRow
	var moved, spilled int64
	for _, s := range shifts {
		if s.Reason == string(routing.Moved) {
			moved += s.Requests
		} else {
			spilled += s.Requests
		}
		if len(rows) == shown {
			continue
		}
		row := moveRow{From: dash, To: replicaLabel(s.To), Reason: s.Reason, Why: s.Why, Count: thousands(s.Requests), FromColour: "rep", ToColour: "rep"}
		if s.From >= 0 {
			row.From, row.FromColour = strconv.Itoa(s.From), replicaColour(s.From, replicas)
		}
		if s.To >= 0 {
			row.ToColour = replicaColour(s.To, replicas)
		}
		rows = append(rows, row)
	}
	if len(shifts) == 0 {
		return nil, "No turn left its home " + words + "."
	}
	return rows, fmt.Sprintf("%s moved, %s spilled %s.", thousands(moved), thousands(spilled), words)
}

func modelPath(name string) string { return "/models/" + url.PathEscape(name) }
