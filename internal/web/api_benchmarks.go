package web

import (
	"net/http"

	"lmwarden/internal/bench/results"
)

// listBenchmarks answers with all measurements; with run=A&run=B it compares two.
func (h *Handler) listBenchmarks(w http.ResponseWriter, r *http.Request) {
	switch chosen := r.URL.Query()["run"]; len(chosen) {
	case 0:
	case 2:
		h.compareBenchmarks(w, chosen[0], chosen[1])
		return
	default:
		writeError(w, http.StatusBadRequest, "%d values of run: two make a comparison", len(chosen))
		return
	}
	list, err := h.benchmarks.list()
	if err != nil {
		writeError(w, http.StatusInternalServerError, "%s", err)
		return
	}
	type run struct {
		Name    string   `json:"name"`
		Written stamp    `json:"written"`
		Arms    []string `json:"arms"`
		Figures []string `json:"figures"`
		Problem text     `json:"problem"`
	}
	body := struct {
		Benchmarks []run `json:"benchmarks"`
	}{[]run{}}
	for _, b := range list {
		one := run{b.Name, stamp(b.Time), []string{}, append([]string{}, b.Figures...), text(b.Problem)}
		if b.Results != nil {
			for _, a := range b.Results.Arms {
				one.Arms = append(one.Arms, a.Name)
			}
		}
		body.Benchmarks = append(body.Benchmarks, one)
	}
	writeJSON(w, body)
}

// readBenchmark is a measurement that can be read, or answers.
func (h *Handler) readBenchmark(w http.ResponseWriter, name string) (*results.Results, bool) {
	b, ok := h.benchmarks.get(name)
	switch {
	case !ok:
		writeError(w, http.StatusNotFound, "no benchmark %q; GET /api/benchmarks lists those that are there", name)
	case b.Results == nil:
		writeError(w, http.StatusUnprocessableEntity, "benchmark %q cannot be read: %s", name, b.Problem)
	default:
		return b.Results, true
	}
	return nil, false
}

// getBenchmark answers with a measurement's results.json.
func (h *Handler) getBenchmark(w http.ResponseWriter, r *http.Request) {
	if res, ok := h.readBenchmark(w, r.PathValue("run")); ok {
		writeJSON(w, res)
	}
}

func (h *Handler) compareBenchmarks(w http.ResponseWriter, first, second string) {
	a, ok := h.readBenchmark(w, first)
	if !ok {
		return
	}
	b, ok := h.readBenchmark(w, second)
	if !ok {
		return
	}
	all, err := results.Compare(a, b)
	if err != nil {
		writeError(w, http.StatusUnprocessableEntity, "%s", err)
		return
	}
	type line struct {
		Measure string   `json:"measure"`
		A       *float64 `json:"a"`
		B       *float64 `json:"b"`
		Low     *float64 `json:"low"`
		High    *float64 `json:"high"`
		Verdict string   `json:"verdict"`
	}
	type step struct {
		Arms     string `json:"arms"`
		Sessions int    `json:"sessions"`
		Lines    []line `json:"lines"`
	}
	body := struct {
		Comparison []step `json:"comparison"`
	}{[]step{}}
	for _, c := range all {
		s := step{c.Arms, c.Sessions, []line{}}
		for _, l := range c.Lines {
			s.Lines = append(s.Lines, line{l.Column.Name, l.A, l.B, l.Low, l.High, string(l.Verdict)})
		}
		body.Comparison = append(body.Comparison, s)
	}
	writeJSON(w, body)
}
