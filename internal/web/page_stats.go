package web

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"lmwarden/internal/stats"
)

// statsPage is one measure over a range; its whole state is in the URL.
type statsPage struct {
	page
	Heading            string
	Say                string // which model
	From, To           time.Time
	Measures, Ranges   []filterLink
	Groups, Models     []filterLink
	CSV                string
	Headline, Explains string
	Charts             []namedChart
	Nothing            string // why there is none of them
	Totals             measureTable
	TotalsBy           string
	Causes             rereads
	Problem            string
}

// namedChart is a drawing of one member of a group.
type namedChart struct {
	Name string
	chart
}

// measures are what the page can show.
var measures = [...]struct{ name, label, heading string }{
	{"tokens", "Tokens", "Tokens per second"},
	{"requests", "Requests", "Requests per minute"},
	{"ttfb", "First byte", "Time to first byte"},
	{"wait", "Waits", "Wait at the gateway"},
	{"errors", "Errors", "Requests that failed"},
}

// ranges are the lengths that have a link.
var ranges = [...]struct{ value, label string }{{"15m", "15 min"}, {"1h", "Hour"}, {"6h", "6 h"}, {"24h", "Day"}, {"7d", "Week"}, {"30d", "Month"}}

// chartSteps are the steps of charts: with 60 to 150 of them a bar can be seen.
var chartSteps = [...]time.Duration{
	10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour,
}

// chartQuery is a request's query with a step that suits a drawing, unless it
// names one itself.
func (h *Handler) chartQuery(v url.Values) (stats.Query, error) {
	now := h.o.Now().UTC()
	q, err := stats.ParseQuery(v, now)
	if err != nil {
		return q, err
	}
	if columns := int(q.To.Sub(q.From) / q.Step); v.Get("step") != "" {
		if columns > mostColumns {
			err = fmt.Errorf("step %q: the range has %d of them and a page draws at most %d; /api/stats has them all", v.Get("step"), columns, mostColumns)
		}
		return q, err
	}
	const most = 120
	for _, step := range chartSteps {
		if q.To.Sub(q.From) > most*step || step < q.Step {
			continue
		}
		with := url.Values{}
		for key := range v {
			with.Set(key, v.Get(key))
		}
		with.Set("step", strconv.Itoa(int(step.Seconds()))+"s")
		return stats.ParseQuery(with, now)
	}
	return q, nil
}

// mostColumns is what a drawing takes when its step was asked for: more than one
// can tell apart. Each column is there for the cursor and in the table, in each of
// the drawings of a group.
const mostColumns = 720

func (h *Handler) statsPage(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	measure := cmp.Or(v.Get("measure"), "tokens")
	chosen := slices.IndexFunc(measures[:], func(m struct{ name, label, heading string }) bool { return m.name == measure })
	if chosen < 0 {
		h.badRequest(w, r, fmt.Errorf("measure %q: must be tokens, requests, ttfb, wait or errors", measure))
		return
	}
	q, err := h.chartQuery(v)
	if err != nil {
		h.badRequest(w, r, err)
		return
	}
	_, known := h.poolsByName()
	if q.Model != "" && !slices.Contains(known, q.Model) {
		h.notFound(w, r, noSuchModel(q.Model, known))
		return
	}
	p := statsPage{page: h.page(r, navStats, "Stats", ""), Heading: measures[chosen].heading, Nothing: "Nothing in this range."}
	p.links(v, measure, q, known)
	if span := q.To.Sub(q.From); span > 6*time.Hour {
		p.Refresh = 10 * often
	}
	if measure == "tokens" {
		err = h.tokenStats(r, q, &p)
	} else {
		err = h.requestStats(r, q, measure, &p)
	}
	var wrong *stats.QueryError
	switch {
	case errors.As(err, &wrong):
		h.badRequest(w, r, err)
		return
	case err != nil:
		p.Problem = sentenceOf(err.Error())
	default:
		p.Problem = h.history.State().Sentence
	}
	h.render(w, r, http.StatusOK, "stats.html", p)
}

// links fills in the choices, each with all the others kept.
func (p *statsPage) links(v url.Values, measure string, q stats.Query, known []string) {
	with := func(base string, set ...string) string {
		u := url.Values{}
		for _, key := range []string{"measure", "range", "from", "to", "step", "group", "model"} {
			if v.Get(key) != "" {
				u.Set(key, v.Get(key))
			}
		}
		for i := 0; i+1 < len(set); i += 2 {
			u.Set(set[i], set[i+1])
			if set[i+1] == "" {
				u.Del(set[i])
			}
		}
		return base + encoded(u)
	}
	for _, m := range measures {
		p.Measures = append(p.Measures, filterLink{m.label, with("/stats", "measure", m.name), m.name == measure})
	}
	custom := v.Get("from") != "" || v.Get("to") != ""
	for _, l := range ranges {
		p.Ranges = append(p.Ranges, filterLink{l.label, with("/stats", "range", l.value, "from", "", "to", "", "step", ""), !custom && l.value == cmp.Or(v.Get("range"), "1h")})
	}
	for _, g := range []struct{ value, label string }{{"none", "All"}, {"replica", "By replica"}, {"client", "By client"}} {
		p.Groups = append(p.Groups, filterLink{g.label, with("/stats", "group", g.value), g.value == string(q.Group)})
	}
	if len(known) > 1 {
		p.Models = append(p.Models, filterLink{"All models", with("/stats", "model", ""), q.Model == ""})
		for _, name := range known {
			p.Models = append(p.Models, filterLink{name, with("/stats", "model", name), name == q.Model})
		}
	}
	twin := "/api/stats/tokens"
	if measure != "tokens" {
		twin = "/api/stats/requests"
	}
	step := strconv.Itoa(int(q.Step.Seconds())) + "s"
	p.JSON = with(twin, "measure", "", "step", step)
	p.CSV = with(twin, "measure", "", "step", step, "format", "csv")
	p.Say, p.From, p.To = cmp.Or(q.Model, "All models"), q.From, q.To
}

func (h *Handler) tokenStats(r *http.Request, q stats.Query, p *statsPage) error {
	data, err := h.history.Tokens(r.Context(), q)
	if err != nil {
		return err
	}
	q = data.Query
	data.Series = inOrder(q, data.Series, func(s stats.TokenSeries) string { return s.Name })
	p.Headline = dash
	if percent100, ok := data.Total.CachedPercent(); ok {
		p.Headline = about(percent(percent100))
	}
	p.Explains = "of prompt tokens came from the prefix cache " + rangeWords(q, h.o.Now())
	p.Totals = measureTable{Heads: []string{"", "Prompt tokens", "Cached", "Computed", "Not measured", "Completion", "Cached share"}}
	all := stats.Tokens{}
	for _, s := range data.Series {
		all = stats.Tokens{Cached: all.Cached + s.Total.Cached, Computed: all.Computed + s.Total.Computed, Unmeasured: all.Unmeasured + s.Total.Unmeasured, Completion: all.Completion + s.Total.Completion}
		p.Totals.Rows = append(p.Totals.Rows, tokenTotals(memberName(q, s.Name), s.Total))
	}
	if q.Group == stats.GroupNone && len(data.Series) > 0 {
		prompt, completion := tokenCharts(frame{Height: plotHeight}, q, data.Series[0].Points, h.o.Now())
		p.Charts = []namedChart{{chart: prompt}, {chart: completion}}
	} else {
		shown := data.Series[:min(len(data.Series), maxMembers)]
		p.Charts = sideBySide(len(shown), func(i int, f frame) namedChart {
			prompt, _ := tokenCharts(f, q, shown[i].Points, h.o.Now())
			return namedChart{memberName(q, shown[i].Name), prompt}
		})
	}
	p.TotalsBy = totalsBy(q)
	if len(data.Series) > 1 {
		p.Totals.Rows = append(p.Totals.Rows, tokenTotals("All", all))
	}
	ledger, err := h.history.Ledger(r.Context(), q)
	if err == nil {
		p.Causes = rereadsOf(ledger)
	}
	return nil
}

// maxMembers is how many members of a group are drawn; the table has all.
const maxMembers = 8

func tokenTotals(name string, t stats.Tokens) []string {
	cached := dash
	if p, ok := t.CachedPercent(); ok {
		cached = percent(p).String()
	}
	return []string{name, thousands(t.Cached + t.Computed), thousands(t.Cached), thousands(t.Computed), thousands(t.Unmeasured), thousands(t.Completion), cached}
}

func totalsBy(q stats.Query) string {
	switch q.Group {
	case stats.GroupReplica:
		return "By replica"
	case stats.GroupClient:
		return "By client"
	}
	return "Totals"
}

// memberName is a member of a group for people.
func memberName(q stats.Query, name string) string {
	switch {
	case q.Group == stats.GroupReplica && name == "engine":
		return "chosen by the engine"
	case q.Group == stats.GroupReplica && name == "none":
		return "no replica"
	case q.Group == stats.GroupReplica:
		return "replica " + name
	case q.Group == stats.GroupClient:
		return cmp.Or(name, "no name")
	}
	return "All"
}

// inOrder puts replicas in the order of their index; clients stay in that of their
// weight. The series belong to others, too, and are copied.
func inOrder[S any](q stats.Query, all []S, name func(S) string) []S {
	if q.Group != stats.GroupReplica {
		return all
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b S) int {
		return cmp.Or(cmp.Compare(len(name(a)), len(name(b))), cmp.Compare(name(a), name(b)))
	})
	return sorted
}

// sideBySide draws small multiples: one axis for all of them.
func sideBySide(n int, draw func(i int, f frame) namedChart) []namedChart {
	f := frame{Height: 80}
	all := make([]namedChart, n)
	for range 2 { // the second time with the axis that holds all
		for i := range all {
			all[i] = draw(i, f)
			all[i].Caption = ""
		}
		for _, c := range all {
			f.Reach = max(f.Reach, c.Peak)
		}
	}
	return all
}

func (h *Handler) requestStats(r *http.Request, q stats.Query, measure string, p *statsPage) error {
	data, err := h.history.Requests(r.Context(), q)
	if err != nil {
		return err
	}
	q = data.Query
	data.Series = inOrder(q, data.Series, func(s stats.RequestSeries) string { return s.Name })
	now := h.o.Now()
	p.Totals = measureTable{Heads: []string{"", "Requests", "OK", "Client’s fault", "Engine’s", "Gateway’s", "Cancelled", "First byte p50", "p95", "p99", "Waited", "Wait p50", "p95"}}
	var total, failed, waited int64
	for _, s := range data.Series {
		t := s.Total
		total += t.Requests
		failed += t.EngineError + t.GatewayError
		waited += t.Waited.Count
		p.Totals.Rows = append(p.Totals.Rows, []string{memberName(q, s.Name), thousands(t.Requests), thousands(t.OK), thousands(t.ClientError), thousands(t.EngineError), thousands(t.GatewayError), thousands(t.Cancelled),
			quantile(t.TTFB, t.TTFB.P50), quantile(t.TTFB, t.TTFB.P95), quantile(t.TTFB, t.TTFB.P99),
			thousands(t.Waited.Count), quantile(t.Waited, t.Waited.P50), quantile(t.Waited, t.Waited.P95)})
	}
	if q.Group == stats.GroupNone && len(data.Series) > 0 {
		p.Charts = []namedChart{{chart: requestChart(frame{Height: plotHeight}, measure, q, data.Series[0].Points, now)}}
		if of := timeOf(measure); of != nil {
			p.Charts = append(p.Charts, namedChart{chart: behindQuantiles(q, data.Series[0].Points, of)})
		}
	} else {
		shown := data.Series[:min(len(data.Series), maxMembers)]
		p.Charts = sideBySide(len(shown), func(i int, f frame) namedChart {
			return namedChart{memberName(q, shown[i].Name), requestChart(f, measure, q, shown[i].Points, now)}
		})
	}
	p.TotalsBy = totalsBy(q)
	switch measure {
	case "errors":
		p.Headline = about(share(failed, total))
		p.Explains = "of requests failed for the engine’s or the gateway’s fault " + rangeWords(q, now)
	case "wait":
		p.Headline = about(share(waited, total))
		p.Explains = "of requests waited at the gateway " + rangeWords(q, now)
		if waited == 0 {
			p.Charts, p.Nothing = nil, "Requests wait here under the policy patience only, while no replica has room for their context."
		}
	case "requests":
		p.Headline = thousands(total)
		p.Explains = "requests ended " + rangeWords(q, now)
	default:
		p.Headline = dash
		if len(data.Series) > 0 && q.Group == stats.GroupNone {
			t := data.Series[0].Total.TTFB
			p.Headline = quantile(t, t.P95)
		}
		p.Explains = "or less to the first byte for 95 of 100 requests " + rangeWords(q, now)
		if q.Group != stats.GroupNone {
			p.Headline, p.Explains = "", ""
		}
	}
	return nil
}

// requestChart draws one measure of requests.
func requestChart(f frame, measure string, q stats.Query, points []stats.RequestPoint, now time.Time) chart {
	columns := columnsOf(q)
	points = points[:min(len(points), len(columns))]
	count := func(label, class string, of func(stats.RequestPoint) int64) series {
		s := series{label, class, unknown(len(columns))}
		for i, p := range points {
			s.Values[i] = float64(of(p))
		}
		return s
	}
	switch measure {
	case "requests":
		perMinute := func(label, class string, of func(stats.RequestPoint) int64) series {
			s := series{label, class, unknown(len(columns))}
			for i, p := range points {
				s.Values[i] = 60 * rate(of(p), p.Time, q.Step, now)
			}
			return s
		}
		c := bars(f, columns, compact,
			perMinute("Stayed", "stayed", func(p stats.RequestPoint) int64 { return p.Stayed }),
			perMinute("Placed", "placed", func(p stats.RequestPoint) int64 { return p.Placed }),
			perMinute("Spilled or moved", "shifted", func(p stats.RequestPoint) int64 { return p.Spilled + p.Moved }),
			perMinute("Others", "others", func(p stats.RequestPoint) int64 {
				return p.Requests - p.Stayed - p.Placed - p.Spilled - p.Moved
			}))
		c.Summary = "Requests a minute by decision, " + spoken(q) + "."
		c.Caption = "Requests a minute that ended, by the gateway’s decision. Others: pinned, without a conversation, or placed by the engine."
		return c
	case "errors":
		c := bars(f, columns, compact,
			count("Engine", "bad", func(p stats.RequestPoint) int64 { return p.EngineError }),
			count("Gateway", "shifted", func(p stats.RequestPoint) int64 { return p.GatewayError }),
			count("Client", "others", func(p stats.RequestPoint) int64 { return p.ClientError }),
			count("Cancelled", "placed", func(p stats.RequestPoint) int64 { return p.Cancelled }))
		c.Summary = "Requests that did not end well, by whose fault it was, " + spoken(q) + "."
		c.Caption = "Requests per step that did not end well, by whose fault it was. Cancelled: the client left."
		return c
	}
	if measure == "wait" {
		return waitChart(f, q, points)
	}
	return latencyChart(f, q, points)
}

// timeOf is the time that a measure is about, nil for one that counts.
func timeOf(measure string) func(*stats.RequestPoint) stats.Quantiles {
	switch measure {
	case "ttfb":
		return ttfbOf
	case "wait":
		return waitedOf
	}
	return nil
}

// behindQuantiles draws how many requests each percentile is of.
func behindQuantiles(q stats.Query, points []stats.RequestPoint, of func(*stats.RequestPoint) stats.Quantiles) chart {
	columns := columnsOf(q)
	s := series{"Requests", "others", unknown(len(columns))}
	for i := range points[:min(len(points), len(columns))] {
		s.Values[i] = float64(of(&points[i]).Count)
	}
	c := bars(frame{Height: 36}, columns, compact, s)
	c.Summary = "Requests behind each percentile."
	c.Caption = "Requests behind each percentile: the p95 of three requests is one of them."
	return c
}

func quantile(q stats.Quantiles, d time.Duration) string {
	if q.Count == 0 {
		return dash
	}
	return seconds(d.Seconds())
}

// rangeWords says a range in a sentence.
func rangeWords(q stats.Query, now time.Time) string {
	length := q.To.Sub(q.From)
	if now.Before(q.To) {
		switch length.Round(q.Step) {
		case time.Hour:
			return "over the last hour"
		case 24 * time.Hour:
			return "over the last day"
		}
		if length >= 48*time.Hour {
			return fmt.Sprintf("over the last %d days", int(math.Round(length.Hours()/24)))
		}
		return "over the last " + span(length)
	}
	return "from " + spoken(q)
}
