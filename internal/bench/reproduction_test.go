package bench

import (
	"context"
	"math"
	"testing"

	"lmwarden/internal/bench/results"
)

// printed is the published table: per number of sessions, and per column in the
// order of results.Columns, the arms off and on. 0 was not measured.
func printed() map[int][results.Published][2]float64 {
	return map[int][results.Published][2]float64{
		4:  {{180, 240}, {5886, 6744}, {2.05, 0.38}, {3.5, 2.84}, {2.71, 2.83}, {56.2, 86.4}, {0, 100}},
		8:  {{300, 380}, {8364, 10752}, {2.33, 0.48}, {6.32, 5.03}, {3.74, 3.74}, {44.3, 86.1}, {0, 100}},
		16: {{300, 360}, {9558, 12204}, {3.25, 0.85}, {26.24, 24.88}, {3.91, 3.69}, {33.2, 48.6}, {0, 100}},
		24: {{300, 420}, {9048, 11178}, {5.06, 13.14}, {58.82, 38.34}, {3.91, 4}, {32.8, 37.9}, {0, 89.1}},
		32: {{520, 620}, {14760, 16638}, {12.32, 27.66}, {82.84, 38.92}, {4, 4}, {31.6, 31.6}, {0, 67.3}},
	}
}

// allowed is how far the mean over the cells of a column, and a single one of
// them, may be from what is printed, as the logarithm of their ratio. The
// published measurement was run once; where the model is known not to fit, the
// wider limits say so (docs/measure.md).
func allowed() [results.Published]struct{ mean, one float64 } {
	return [results.Published]struct{ mean, one float64 }{
		{0.25, 0.75}, // sessions/h: at 24 the published clients were far less even
		{0.10, 0.25},
		{0.45, 1.50}, // TTFB p50: one of the published runs at 16 is a lucky one
		{0.35, 1.10}, // TTFB p95: at 8 blind placement overloads a card more often than it did
		{0.10, 0.25},
		{0.10, 0.25},
		{0.10, 0.30},
	}
}

func TestPublishedTableIsReproduced(t *testing.T) {
	r, err := Simulate(context.Background(), published(t, 4, "off", PublishedOn), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range results.Columns()[:results.Published] {
		sum, cells := 0.0, 0
		for arm := range r.Arms {
			for _, step := range r.Arms[arm].Steps {
				want, got := printed()[step.Sessions][i][arm], c.Of(&step.Measures)
				if want == 0 || got == nil {
					continue
				}
				off := math.Abs(math.Log(*got / want))
				sum += off
				cells++
				if off > allowed()[i].one {
					t.Errorf("%s, %s at %d: %s, published %v", c.Title, r.Arms[arm].Name, step.Sessions, c.Format(got), want)
				}
			}
		}
		t.Logf("%-15s mean |log(simulated/published)| over %d cells: %.3f", c.Title, cells, sum/float64(cells))
		if mean := sum / float64(cells); mean > allowed()[i].mean {
			t.Errorf("%s: mean |log(simulated/published)| is %.3f, allowed %.2f", c.Title, mean, allowed()[i].mean)
		}
	}
}

// Up to 16 sessions the caches hold, and what is left to win is placement.
func TestPlacementWins(t *testing.T) {
	s := published(t, 6, PublishedOn, "affinity")
	s.Protocol.Sessions = []int{4, 8, 16}
	r, err := Simulate(context.Background(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range results.CompareArms(&r.Arms[0], &r.Arms[1]) {
		for _, l := range c.Lines[:results.Published] {
			if l.Verdict == results.Worse {
				t.Errorf("%d sessions: %s is %s with affinity, %s with %s", c.Sessions, l.Column.Title, l.Column.Format(l.B), l.Column.Format(l.A), PublishedOn)
			}
			if name := l.Column.Name; (name == "output_tokens_per_min" || name == "replicas_busy" || name == "ttfb_mean_s") && l.Verdict != results.Better {
				t.Errorf("%d sessions: %s is %s with affinity, %s with %s: %s", c.Sessions, l.Column.Title, l.Column.Format(l.B), l.Column.Format(l.A), PublishedOn, l.Verdict)
			}
		}
	}
}
