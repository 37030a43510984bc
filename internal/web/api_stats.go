package web

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"lmwarden/internal/stats"
)

// tokenPoint is one step of the token chart in the API. Group is null without
// one.
type tokenPoint struct {
	Time       stamp `json:"time"`
	Group      group `json:"group"`
	Cached     int64 `json:"cached"`
	Computed   int64 `json:"computed"`
	Unmeasured int64 `json:"unmeasured"`
	Completion int64 `json:"completion"`
}

// group names a member; a client without a name is the empty string.
type group struct {
	on   bool
	name string
}

func (g group) MarshalJSON() ([]byte, error) {
	if !g.on {
		return []byte("null"), nil
	}
	return json.Marshal(g.name)
}

// queryRange is what was asked for, as it was carried out.
type queryRange struct {
	Model text   `json:"model"`
	From  stamp  `json:"from"`
	To    stamp  `json:"to"`
	Step  int64  `json:"step_s"`
	Group string `json:"group"`
}

func rangeOf(q stats.Query) queryRange {
	return queryRange{text(q.Model), stamp(q.From), stamp(q.To), int64(q.Step / time.Second), string(q.Group)}
}

// statsQuery reads a request's query, or answers.
func (h *Handler) statsQuery(w http.ResponseWriter, r *http.Request, v url.Values) (stats.Query, bool) {
	q, err := stats.ParseQuery(v, h.o.Now().UTC())
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return q, false
	}
	if q.Model != "" {
		if p, known := h.find(q.Model); p == nil {
			writeUnknownModel(w, q.Model, known)
			return q, false
		}
	}
	return q, true
}

// answered says whether a query of the history was answered; else it answers
// itself.
func answered(w http.ResponseWriter, err error) bool {
	var wrong *stats.QueryError
	switch {
	case err == nil:
		return true
	case errors.As(err, &wrong):
		writeError(w, http.StatusBadRequest, "%s", err)
	case errors.Is(err, errNoHistory):
		writeError(w, http.StatusNotImplemented, "%s", err)
	default:
		writeError(w, http.StatusServiceUnavailable, "%s", err)
	}
	return false
}

// wantsCSV reads the parameter format.
func wantsCSV(v url.Values) (bool, error) {
	switch f := v.Get("format"); f {
	case "", "json":
		return false, nil
	case "csv":
		return true, nil
	default:
		return false, fmt.Errorf("format %q: must be json or csv", f)
	}
}

func (h *Handler) getTokens(w http.ResponseWriter, r *http.Request) {
	asCSV, err := wantsCSV(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	q, ok := h.statsQuery(w, r, r.URL.Query())
	if !ok {
		return
	}
	chart, err := h.history.Tokens(r.Context(), q)
	if !answered(w, err) {
		return
	}
	q = chart.Query
	points := []tokenPoint{}
	for _, s := range chart.Series {
		for _, p := range s.Points {
			points = append(points, tokenPoint{stamp(p.Time), group{q.Group != stats.GroupNone, s.Name}, p.Cached, p.Computed, p.Unmeasured, p.Completion})
		}
	}
	if asCSV {
		rows := [][]string{{"time", "group", "cached", "computed", "unmeasured", "completion"}}
		for _, p := range points {
			rows = append(rows, []string{rfc3339(p.Time.time()), p.Group.name, digits(p.Cached), digits(p.Computed), digits(p.Unmeasured), digits(p.Completion)})
		}
		writeCSV(w, "tokens.csv", rows)
		return
	}
	cached := percent(math.NaN())
	if p, ok := chart.Total.CachedPercent(); ok {
		cached = percent(p)
	}
	writeJSON(w, struct {
		Range  queryRange   `json:"range"`
		Series []tokenPoint `json:"series"`
		Cached percent      `json:"cached_percent"`
	}{rangeOf(q), points, cached})
}

// requestPoint is one step of the requests in the API.
type requestPoint struct {
	Time         stamp  `json:"time"`
	Group        group  `json:"group"`
	Requests     int64  `json:"requests"`
	OK           int64  `json:"ok"`
	ClientError  int64  `json:"client_error"`
	EngineError  int64  `json:"engine_error"`
	GatewayError int64  `json:"gateway_error"`
	Cancelled    int64  `json:"cancelled"`
	Placed       int64  `json:"placed"`
	Stayed       int64  `json:"stayed"`
	Spilled      int64  `json:"spilled"`
	Moved        int64  `json:"moved"`
	TTFBP50      number `json:"ttfb_p50_s"`
	TTFBP95      number `json:"ttfb_p95_s"`
	TTFBP99      number `json:"ttfb_p99_s"`
	DurationP50  number `json:"duration_p50_s"`
	DurationP95  number `json:"duration_p95_s"`
	DurationP99  number `json:"duration_p99_s"`
	Waited       int64  `json:"waited"` // requests that the gateway held
	WaitedP50    number `json:"waited_p50_s"`
	WaitedP95    number `json:"waited_p95_s"`
	WaitedP99    number `json:"waited_p99_s"`
}

func requestPointOf(p stats.RequestPoint, g group) requestPoint {
	at := func(q stats.Quantiles, d time.Duration) number {
		if q.Count == 0 {
			return number(math.NaN())
		}
		return number(d.Seconds())
	}
	return requestPoint{
		stamp(p.Time), g, p.Requests, p.OK, p.ClientError, p.EngineError, p.GatewayError, p.Cancelled, p.Placed, p.Stayed, p.Spilled, p.Moved,
		at(p.TTFB, p.TTFB.P50), at(p.TTFB, p.TTFB.P95), at(p.TTFB, p.TTFB.P99),
		at(p.Duration, p.Duration.P50), at(p.Duration, p.Duration.P95), at(p.Duration, p.Duration.P99),
		p.Waited.Count, at(p.Waited, p.Waited.P50), at(p.Waited, p.Waited.P95), at(p.Waited, p.Waited.P99),
	}
}

func (h *Handler) getRequests(w http.ResponseWriter, r *http.Request) {
	asCSV, err := wantsCSV(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	q, ok := h.statsQuery(w, r, r.URL.Query())
	if !ok {
		return
	}
	chart, err := h.history.Requests(r.Context(), q)
	if !answered(w, err) {
		return
	}
	q = chart.Query
	points, totals := []requestPoint{}, []requestPoint{}
	for _, s := range chart.Series {
		g := group{q.Group != stats.GroupNone, s.Name}
		totals = append(totals, requestPointOf(s.Total, g))
		for _, p := range s.Points {
			points = append(points, requestPointOf(p, g))
		}
	}
	if asCSV {
		rows := [][]string{{"time", "group", "requests", "ok", "client_error", "engine_error", "gateway_error", "cancelled", "placed", "stayed", "spilled", "moved", "ttfb_p50_s", "ttfb_p95_s", "ttfb_p99_s", "duration_p50_s", "duration_p95_s", "duration_p99_s", "waited", "waited_p50_s", "waited_p95_s", "waited_p99_s"}}
		for _, p := range points {
			row := []string{rfc3339(p.Time.time()), p.Group.name}
			for _, n := range []int64{p.Requests, p.OK, p.ClientError, p.EngineError, p.GatewayError, p.Cancelled, p.Placed, p.Stayed, p.Spilled, p.Moved} {
				row = append(row, digits(n))
			}
			for _, n := range []number{p.TTFBP50, p.TTFBP95, p.TTFBP99, p.DurationP50, p.DurationP95, p.DurationP99} {
				row = append(row, n.csv())
			}
			row = append(row, digits(p.Waited), p.WaitedP50.csv(), p.WaitedP95.csv(), p.WaitedP99.csv())
			rows = append(rows, row)
		}
		writeCSV(w, "requests.csv", rows)
		return
	}
	writeJSON(w, struct {
		Range  queryRange     `json:"range"`
		Series []requestPoint `json:"series"`
		Totals []requestPoint `json:"totals"`
	}{rangeOf(q), points, totals})
}

// getMoves answers with the requests that left their home.
func (h *Handler) getMoves(w http.ResponseWriter, r *http.Request) {
	q, ok := h.statsQuery(w, r, r.URL.Query())
	if !ok {
		return
	}
	shifts, err := h.history.Shifts(r.Context(), q)
	if !answered(w, err) {
		return
	}
	type move struct {
		From     count  `json:"from"`
		To       count  `json:"to"`
		Reason   string `json:"reason"`
		Why      text   `json:"why"`
		Requests int64  `json:"requests"`
	}
	body := struct {
		Range queryRange `json:"range"`
		Moves []move     `json:"moves"`
	}{rangeOf(q), []move{}}
	for _, s := range shifts {
		body.Moves = append(body.Moves, move{count(s.From), count(s.To), s.Reason, text(s.Why), s.Requests})
	}
	writeJSON(w, body)
}

// getCauses answers with what was read again, by hour, replica and cause.
func (h *Handler) getCauses(w http.ResponseWriter, r *http.Request) {
	q, ok := h.statsQuery(w, r, r.URL.Query())
	if !ok {
		return
	}
	ledger, err := h.history.Ledger(r.Context(), q)
	if !answered(w, err) {
		return
	}
	type cause struct {
		Hour    stamp  `json:"hour"`
		Replica count  `json:"replica"`
		Cause   string `json:"cause"`
		Turns   int64  `json:"turns"`
		Reread  int64  `json:"reread_tokens"`
	}
	body := struct {
		Range  queryRange `json:"range"`
		Causes []cause    `json:"causes"`
	}{rangeOf(q), []cause{}}
	for _, l := range ledger {
		body.Causes = append(body.Causes, cause{stamp(l.Hour), count(l.Replica), l.Cause, l.Turns, l.Reread})
	}
	writeJSON(w, body)
}

// getReplicaHistory answers with the state of replicas over time.
func (h *Handler) getReplicaHistory(w http.ResponseWriter, r *http.Request) {
	q, ok := h.statsQuery(w, r, r.URL.Query())
	if !ok {
		return
	}
	replicas, err := h.history.Replicas(r.Context(), q)
	if !answered(w, err) {
		return
	}
	type point struct {
		Time          stamp   `json:"time"`
		Model         string  `json:"model"`
		Replica       int     `json:"replica"`
		InFlight      number  `json:"in_flight"`
		Conversations number  `json:"live_conversations"`
		Running       number  `json:"running"`
		Waiting       number  `json:"waiting"`
		KV            percent `json:"kv_used_percent"`
	}
	body := struct {
		Range  queryRange `json:"range"`
		Series []point    `json:"series"`
	}{rangeOf(q), []point{}}
	known := func(f float64) number {
		if f < 0 {
			return number(math.NaN())
		}
		return number(f)
	}
	for _, s := range replicas {
		for _, p := range s.Points {
			body.Series = append(body.Series, point{stamp(p.Time), s.Model, s.Replica, number(p.InFlight), number(p.Conversations), known(p.Running), known(p.Waiting), percent(p.KVPercent)})
		}
	}
	writeJSON(w, body)
}

func digits(n int64) string { return strconv.FormatInt(n, 10) }

// csv is the figure in a cell, empty when it is not known.
func (n number) csv() string {
	b, _ := n.MarshalJSON()
	if string(b) == "null" {
		return ""
	}
	return string(b)
}

func writeCSV(w http.ResponseWriter, name string, rows [][]string) {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	c := csv.NewWriter(w)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = plainCell(cell)
		}
		_ = c.Write(row)
	}
	c.Flush()
}

// plainCell keeps a spreadsheet from reading a name that a client chose as a
// formula.
func plainCell(s string) string {
	if s != "" && (s[0] == '=' || s[0] == '+' || s[0] == '@' || s[0] == '\t' || s[0] == '-' && len(s) > 1 && (s[1] < '0' || s[1] > '9')) {
		return "'" + s
	}
	return s
}
