package web

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"lmwarden/internal/bench/results"
)

// benchmarksPage lists measurements.
type benchmarksPage struct {
	page
	Folder string
	Runs   []benchmarkRow
}

type benchmarkRow struct {
	benchmark
	Path, Arms, Sessions, Says string
}

// benchmarkPage is one measurement.
type benchmarkPage struct {
	page
	benchmark
	Arms     string
	Table    measureTable
	Halves   measureTable // half widths; no rows when runs were not repeated
	Turns    chart        // TTFB by turn, of the step with most sessions
	TurnsAt  int
	Figures  []figureLink
	Settings []settingGroup
}

type figureLink struct{ Path, Label string }

type measureTable struct {
	Heads []string
	Rows  [][]string
}

type settingGroup struct {
	Name string
	Text string // indented JSON
}

// comparisonPage is two measurements.
type comparisonPage struct {
	page
	A, B        benchmarkRow
	Differences []string
	Problem     string
	Steps       []comparisonStep
}

type comparisonStep struct {
	Arms     string
	Sessions int
	Verdict  string
	Lines    []comparisonLine
}

type comparisonLine struct{ Title, A, B, Interval, Verdict, Class string }

func benchmarkRowOf(b benchmark) benchmarkRow {
	row := benchmarkRow{benchmark: b, Path: "/benchmarks/" + url.PathEscape(b.Name)}
	if b.Results == nil {
		return row
	}
	row.Arms = armNames(b.Results)
	var sessions []int
	for _, a := range b.Results.Arms {
		for _, s := range a.Steps {
			if !slices.Contains(sessions, s.Sessions) {
				sessions = append(sessions, s.Sessions)
			}
		}
	}
	slices.Sort(sessions)
	for i, n := range sessions {
		if i > 0 {
			row.Sessions += ", "
		}
		row.Sessions += strconv.Itoa(n)
	}
	if len(sessions) > 0 {
		row.Says = oneLine(b.Results, sessions[len(sessions)/2])
	}
	return row
}

func armNames(r *results.Results) string {
	var names []string
	for _, a := range r.Arms {
		names = append(names, a.Name)
	}
	return strings.Join(names, " → ")
}

// oneLine is a measurement's result at one number of sessions.
func oneLine(r *results.Results, sessions int) string {
	var parts []string
	for _, c := range results.Columns()[:results.Published] {
		switch c.Name {
		case "output_tokens_per_min", "ttfb_p50_s", "prefix_hit_percent":
			parts = append(parts, c.Title+" "+cell(r, c, sessions, measuresOf))
		}
	}
	return fmt.Sprintf("%d sessions: %s", sessions, strings.Join(parts, ", "))
}

func measuresOf(s *results.Step) *results.Measures { return &s.Measures }
func intervalOf(s *results.Step) *results.Measures { return &s.CI }

// cell is a column's figure of each arm.
func cell(r *results.Results, c results.Column, sessions int, of func(*results.Step) *results.Measures) string {
	var cells []string
	measured := false
	for i := range r.Arms {
		text := dash
		if s := r.Arms[i].Step(sessions); s != nil {
			if v := c.Of(of(s)); v != nil {
				text, measured = figure(c, v), true
			}
		}
		cells = append(cells, text)
	}
	if !measured {
		return dash
	}
	return strings.Join(cells, " → ")
}

func figure(c results.Column, v *float64) string {
	if v == nil {
		return dash
	}
	if c.Digits == 0 {
		return thousands(int64(*v + 0.5))
	}
	return strconv.FormatFloat(*v, 'f', c.Digits, 64)
}

func tableOf(r *results.Results, of func(*results.Step) *results.Measures) measureTable {
	t := measureTable{Heads: []string{"sessions"}}
	columns := results.Columns()
	var sessions []int
	for _, a := range r.Arms {
		for _, s := range a.Steps {
			if !slices.Contains(sessions, s.Sessions) {
				sessions = append(sessions, s.Sessions)
			}
		}
	}
	kept := columns[:0:0]
	for i, c := range columns {
		measured := i < results.Published
		for _, n := range sessions {
			measured = measured || cell(r, c, n, of) != dash
		}
		if measured {
			kept, t.Heads = append(kept, c), append(t.Heads, c.Title)
		}
	}
	for _, n := range sessions {
		row := []string{strconv.Itoa(n)}
		for _, c := range kept {
			row = append(row, cell(r, c, n, of))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (h *Handler) benchmarksPage(w http.ResponseWriter, r *http.Request) {
	chosen := r.URL.Query()["run"]
	switch len(chosen) {
	case 0:
	case 1:
		http.Redirect(w, r, "/benchmarks/"+url.PathEscape(chosen[0]), http.StatusSeeOther)
		return
	case 2:
		h.comparisonPage(w, r, chosen[0], chosen[1])
		return
	default:
		h.badRequest(w, r, fmt.Errorf("%d runs are chosen: two make a comparison", len(chosen)))
		return
	}
	p := benchmarksPage{page: h.page(r, navBenchmarks, "Benchmarks", "/api/benchmarks"), Folder: h.o.Benchmarks}
	p.Refresh = 5 * often
	list, err := h.benchmarks.list()
	if err != nil {
		p.Warnings = append(p.Warnings, sentenceOf(err.Error()))
	}
	for _, b := range list {
		p.Runs = append(p.Runs, benchmarkRowOf(b))
	}
	h.render(w, r, http.StatusOK, "benchmarks.html", p)
}

func (h *Handler) benchmarkPage(w http.ResponseWriter, r *http.Request) {
	b, ok := h.benchmarks.get(r.PathValue("run"))
	if !ok {
		h.notFound(w, r, fmt.Sprintf("There is no benchmark %q.", r.PathValue("run")))
		return
	}
	p := benchmarkPage{page: h.page(r, navBenchmarks, b.Name, "/api/benchmarks/"+url.PathEscape(b.Name)), benchmark: b}
	p.Refresh = 0
	for _, f := range b.Figures {
		p.Figures = append(p.Figures, figureLink{"/benchmarks/" + url.PathEscape(b.Name) + "/" + url.PathEscape(f), strings.TrimSuffix(f, ".svg")})
	}
	if res := b.Results; res != nil {
		p.Arms, p.Table = armNames(res), tableOf(res, measuresOf)
		if t := tableOf(res, intervalOf); slices.ContainsFunc(t.Rows, measuredRow) {
			p.Halves = t
		}
		p.Turns, p.TurnsAt = ttfbByTurn(res)
		for _, s := range []struct {
			name string
			v    results.Settings
		}{{"Workload", res.Workload}, {"Protocol", res.Protocol}, {"Box", res.Box}} {
			if len(s.v) > 0 {
				p.Settings = append(p.Settings, settingGroup{s.name, indented(s.v)})
			}
		}
	}
	h.render(w, r, http.StatusOK, "benchmark.html", p)
}

func measuredRow(row []string) bool {
	return slices.ContainsFunc(row[1:], func(c string) bool { return c != dash })
}

func indented(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if e.Encode(v) != nil {
		return dash
	}
	return b.String()
}

// ttfbByTurn draws the median time to the first byte by turn number, at the step
// with most sessions that all arms have.
func ttfbByTurn(r *results.Results) (chart, int) {
	at := 0
	for i := range r.Arms[0].Steps {
		n := r.Arms[0].Steps[i].Sessions
		if n > at && !slices.ContainsFunc(r.Arms, func(a results.Arm) bool { s := a.Step(n); return s == nil || len(s.ByTurn) == 0 }) {
			at = n
		}
	}
	if at == 0 {
		return chart{}, 0
	}
	last := 0
	for i := range r.Arms {
		for _, t := range r.Arms[i].Step(at).ByTurn {
			last = max(last, t.Index)
		}
	}
	const most = 200 // of a file that may say anything
	last = min(last, most)
	if last == 0 {
		return chart{}, 0
	}
	var columns []column
	for n := range last {
		columns = append(columns, column{Name: fmt.Sprintf("turn %d", n+1)})
	}
	var all []series
	for i := range r.Arms {
		s := series{Label: r.Arms[i].Name, Class: "arm" + strconv.Itoa(i%4), Values: unknown(last)}
		for _, t := range r.Arms[i].Step(at).ByTurn {
			if t.Index >= 1 && t.Index <= last && t.TTFBP50 != nil {
				s.Values[t.Index-1] = *t.TTFBP50
			}
		}
		all = append(all, s)
	}
	c := lines(frame{Height: plotHeight}, columns, seconds, 0.01, all...)
	c.Summary = fmt.Sprintf("Median time to the first byte by turn number with %d sessions.", at)
	c.Caption = fmt.Sprintf("Median time to the first byte by turn number, %d sessions, logarithmic. High after the first turn: histories are read again.", at)
	return c, at
}

func (h *Handler) comparisonPage(w http.ResponseWriter, r *http.Request, first, second string) {
	a, okA := h.benchmarks.get(first)
	b, okB := h.benchmarks.get(second)
	if !okA || !okB {
		missing := first
		if okA {
			missing = second
		}
		h.notFound(w, r, fmt.Sprintf("There is no benchmark %q.", missing))
		return
	}
	p := comparisonPage{page: h.page(r, navBenchmarks, a.Name+" and "+b.Name, "/api/benchmarks?"+r.URL.RawQuery), A: benchmarkRowOf(a), B: benchmarkRowOf(b)}
	p.Refresh = 0
	p.Problem = cmp.Or(a.Problem, b.Problem)
	if p.Problem == "" {
		all, err := results.Compare(a.Results, b.Results)
		if err != nil {
			p.Problem = sentenceOf(err.Error())
		}
		for _, c := range all {
			p.Steps = append(p.Steps, comparisonStepOf(c))
		}
	}
	h.render(w, r, http.StatusOK, "comparison.html", p)
}

func comparisonStepOf(c results.Comparison) comparisonStep {
	s := comparisonStep{Arms: c.Arms, Sessions: c.Sessions}
	counts := map[results.Verdict]int{}
	for _, l := range c.Lines {
		if l.A == nil && l.B == nil {
			continue
		}
		counts[l.Verdict]++
		line := comparisonLine{Title: l.Column.Title, A: figure(l.Column, l.A), B: figure(l.Column, l.B), Interval: dash, Verdict: string(l.Verdict)}
		if l.Low != nil && l.High != nil {
			line.Interval = fmt.Sprintf("%+.*f to %+.*f", l.Column.Digits, *l.Low, l.Column.Digits, *l.High)
		}
		switch l.Verdict {
		case results.Better:
			line.Class = "stayed"
		case results.Worse:
			line.Class = "moved"
		}
		s.Lines = append(s.Lines, line)
	}
	s.Verdict = fmt.Sprintf("%d better, %d worse, %d with no difference seen, %d not known", counts[results.Better], counts[results.Worse], counts[results.NoDifference]+counts[results.Differs], counts[results.Unknown])
	return s
}

// benchmarkFigure serves a drawing that the harness made.
func (h *Handler) benchmarkFigure(w http.ResponseWriter, r *http.Request) {
	data, ok := h.benchmarks.figure(r.PathValue("run"), r.PathValue("figure"))
	if !ok {
		h.notFound(w, r, "There is no such figure.")
		return
	}
	// The drawing comes from a file: no script of it may run, its styles may.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	w.Header().Set("Content-Type", "image/svg+xml")
	_, _ = w.Write(data)
}
