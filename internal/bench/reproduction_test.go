package bench

import (
	"context"
	"math"
	"regexp"
	"testing"

	"lmwarden/internal/bench/results"
)

// allowed is how far the mean over the cells of a column may be from what is printed, in
// both arms together and in each, and how far a single cell, as the logarithm of their
// ratio. Tokens, busy, hits and stayed are to be within 10% on average. The published
// measurement was run once; where the model is known not to fit, the wider limits say
// so, and docs/reproduction.md why.
func allowed() [results.Published]struct{ both, each, one float64 } {
	tenth, seventh := math.Log(1.1), math.Log(1.15)
	return [results.Published]struct{ both, each, one float64 }{
		{0.25, 0.25, 0.75}, // sessions/h: at 24 the published clients were far less even
		{tenth, seventh, 0.25},
		{0.45, 0.50, 1.50}, // TTFB p50: one of the published runs at 16 is a lucky one
		{0.35, 0.40, 1.10}, // TTFB p95: at 8 blind placement overloads a card more often than it did
		{tenth, seventh, 0.25},
		{tenth, seventh, 0.25},
		{tenth, seventh, 0.30},
	}
}

func TestPublishedTableIsReproduced(t *testing.T) {
	r, err := Simulate(context.Background(), published(t, 3, PublishedArms()...), nil)
	if err != nil {
		t.Fatal(err)
	}
	rows, cells := Reproduction(r), 0
	for i, c := range results.Columns()[:results.Published] {
		limit := allowed()[i]
		for _, row := range rows {
			if off, ok := row.Cells[i].Off(); ok && math.Abs(off) > limit.one {
				t.Errorf("%s, %s at %d: %s", c.Title, PublishedArms()[row.Arm], row.Sessions, row.Cells[i])
			}
		}
		both, n := MeanOff(rows, i)
		if both > limit.both {
			t.Errorf("%s: mean |log(simulated/published)| is %.3f, allowed %.3f", c.Title, both, limit.both)
		}
		cells += n
		for arm, name := range PublishedArms() {
			each, n := MeanOff(OfArm(rows, arm), i)
			if n == 0 {
				continue // where a turn went is not known with affinity off
			}
			if each > limit.each {
				t.Errorf("%s, %s: mean |log(simulated/published)| is %.3f, allowed %.3f", c.Title, name, each, limit.each)
			}
			t.Logf("%-15s %-12s mean |log(simulated/published)| over %d cells: %.3f, of both arms %.3f", c.Title, name, n, each, both)
		}
	}
	if cells != 65 {
		t.Errorf("%d cells, the published table has 65", cells)
	}
	inDocument(t, "reproduction.md", "", ReproductionTable(rows), 2, nearMean, func() string {
		r, err := Simulate(context.Background(), published(t, 12, PublishedArms()...), nil)
		if err != nil {
			t.Fatal(err)
		}
		return ReproductionTable(Reproduction(r))
	})
}

var meanCell = regexp.MustCompile(`/ (\S+) ± (\S+)`)

// nearMean says whether a documented mean is one of many runs whose first few have
// another: within three of the half widths of its interval and a twentieth. Cells
// without an interval follow from the others.
func nearMean(documented, now string) bool {
	a, b := meanCell.FindStringSubmatch(documented), meanCell.FindStringSubmatch(now)
	if a == nil || b == nil {
		return (a == nil) == (b == nil)
	}
	was, _ := number(a[1])
	half, _ := number(a[2])
	is, _ := number(b[1])
	return math.Abs(was-is) <= 3*half+0.05*was
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
