package web

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestBarsStackFromZero(t *testing.T) {
	columns := []column{{Time: since}, {Time: since.Add(time.Minute)}}
	c := bars(frame{Height: 100}, columns, compact,
		series{"Cached", "cached", []float64{80, math.NaN()}}, series{"Computed", "computed", []float64{20, 0}})
	want := []mark{
		// The gap is 0.36 of a column; the upper bar ends a pixel above the lower one.
		{Class: "cached", D: "M0.18 100h0.64V20h-0.64z"},
		{Class: "computed", D: "M0.18 19h0.64V0h-0.64z"},
	}
	if diff := cmp.Diff(want, c.Marks); diff != "" {
		t.Error(diff)
	}
	rows := []tableRow{{Time: "2026-10-04T08:00:00Z", Cells: []string{"80", "20", "100"}}, {Time: "2026-10-04T08:01:00Z", Cells: []string{dash, "0", "0"}}}
	if diff := cmp.Diff(rows, c.Rows); diff != "" {
		t.Error(diff)
	}
	if got := c.Hits[0].Say; got != "cached 80 · computed 20" {
		t.Errorf("the cursor reads %q", got)
	}
}

func TestLinesKeepGaps(t *testing.T) {
	columns := make([]column, 4)
	c := lines(frame{Height: 100}, columns, seconds, 0.01, series{"p50", "p50", []float64{0.01, 1, math.NaN(), 0.1}})
	if got, want := c.Marks[0].D, "M0 100h1V0h1M3 50h1"; got != want {
		t.Errorf("drawn as %s, want %s", got, want)
	}
	var labels []string
	for _, y := range c.Y {
		labels = append(labels, y.Text)
	}
	if diff := cmp.Diff([]string{"10 ms", "0.1 s", "1 s"}, labels); diff != "" {
		t.Error(diff)
	}
}

// Whatever the numbers are, drawing ends, and nothing is drawn that is no number.
func TestDrawingsOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64(), 0, 30).Draw(t, "values")
		columns := make([]column, len(values))
		for i := range columns {
			columns[i] = column{Time: since.Add(time.Duration(i) * time.Minute)}
		}
		s := series{"x", "x", values}
		for _, c := range []chart{
			bars(frame{Height: 100}, columns, compact, s, s), lines(frame{Height: 100}, columns, compact, 0, s), lines(frame{Height: 100}, columns, seconds, 0.01, s),
		} {
			if len(c.Rows) != len(values) || len(c.Y) > 400 {
				t.Fatalf("%d rows of %d values, %d lines", len(c.Rows), len(values), len(c.Y))
			}
			for _, m := range c.Marks {
				if strings.Contains(m.D, "NaN") {
					t.Fatalf("drawn: %s", m.D)
				}
			}
		}
	})
}

func TestRoundAxis(t *testing.T) {
	for most, want := range map[float64][2]float64{0: {1, 1}, 1: {1, 0.5}, 3: {3, 1}, 48_000: {60_000, 20_000}, 50_000: {60_000, 20_000}, 100: {100, 50}} {
		if top, step := roundAxis(most); top != want[0] || step != want[1] {
			t.Errorf("%v: to %v by %v, want %v", most, top, step, want)
		}
	}
}

func TestAPageDrawsSoManyColumns(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()}, full(t))
	for path, status := range map[string]int{
		"/stats?range=2h&step=10s": 200, "/stats?range=6h&step=10s": 400, "/stats?range=6h&step=auto": 200, "/api/stats/tokens?range=6h&step=10s": 200,
	} {
		if w := call(h, "GET", path, ""); w.Code != status {
			t.Errorf("%s: %d, want %d", path, w.Code, status)
		}
	}
}
