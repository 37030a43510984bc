package results

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// step has one run for each value, with consecutive seeds from the given one.
func step(seed uint64, turns ...float64) Step {
	var runs []Run
	for i, v := range turns {
		runs = append(runs, Run{Seed: seed + uint64(i), Measures: Measures{Turns: figure(v), TTFBP50: figure(v), Cut: figure(v)}})
	}
	return NewStep(4, runs, nil, nil)
}

func verdicts(t *testing.T, a, b Step) map[string]Verdict {
	t.Helper()
	all := CompareArms(&Arm{Name: "a", Steps: []Step{a}}, &Arm{Name: "b", Steps: []Step{b}})
	if len(all) != 1 || all[0].Arms != "a → b" || all[0].Sessions != 4 {
		t.Fatalf("comparisons: %+v", all)
	}
	got := map[string]Verdict{}
	for _, l := range all[0].Lines {
		got[l.Column.Name] = l.Verdict
		if (l.Low == nil) != (l.Verdict == Unknown) {
			t.Errorf("%s: interval %v with verdict %q", l.Column.Name, l.Low, l.Verdict)
		}
	}
	return got
}

func TestVerdicts(t *testing.T) {
	base := step(1, 10, 20, 30, 40)
	for name, tc := range map[string]struct {
		b                Step
		turns, ttfb, cut Verdict
	}{
		// Each pair differs by about one, far less than the runs among themselves.
		"a little more in every pair":  {step(1, 11, 21, 31, 41.5), Better, Worse, Differs},
		"as much, but not in pairs":    {step(5, 11, 21, 31, 41.5), NoDifference, NoDifference, NoDifference},
		"far less, not in pairs":       {step(5, 1, 2, 3, 4), Worse, Better, Differs},
		"the same":                     {step(1, 10, 20, 30, 40), NoDifference, NoDifference, NoDifference},
		"up in some, down in others":   {step(1, 5, 25, 25, 45), NoDifference, NoDifference, NoDifference},
		"one run on a side":            {step(1, 100), Unknown, Unknown, Unknown},
		"one run on a side, not pairs": {step(9, 100), Unknown, Unknown, Unknown},
	} {
		got := verdicts(t, base, tc.b)
		if got["turns"] != tc.turns || got["ttfb_p50_s"] != tc.ttfb || got["cut"] != tc.cut || got["jain"] != Unknown {
			t.Errorf("%s: turns %q, TTFB %q, cut %q, Jain %q", name, got["turns"], got["ttfb_p50_s"], got["cut"], got["jain"])
		}
	}
}

func TestIntervalHoldsTheDifference(t *testing.T) {
	low, high, ok := interval([]float64{10, 12, 11, 13, 9}, []float64{15, 16, 14, 17, 18}, false)
	// Means 11 and 16, each with a standard error of 0.707: 5 ± t(8) x 1.
	if !ok || math.Abs(low-2.694) > 0.001 || math.Abs(high-7.306) > 0.001 {
		t.Errorf("interval %v to %v, want 2.694 to 7.306", low, high)
	}
	// With many runs the bootstrap is as wide, and follows what is skewed.
	var skewed []float64
	for i := range 60 {
		skewed = append(skewed, math.Exp(float64(i)/10))
	}
	low, high, _ = interval(make([]float64, 60), skewed, true)
	if center := mean(skewed); center-low >= high-center {
		t.Errorf("interval %v to %v around %v does not lean to the long tail", low, high, center)
	}
}

// Two samples of the same kind are told apart no more often than an interval of
// 95% allows, however few the runs.
func TestNoDifferenceIsRarelyMissed(t *testing.T) {
	const pairs = 120
	rng := rand.New(rand.NewPCG(7, 7))
	for _, runs := range []int{2, 3, 6} {
		for _, paired := range []bool{false, true} {
			wrong := 0
			for range pairs {
				a, b := make([]float64, runs), make([]float64, runs)
				for i := range runs {
					a[i], b[i] = rng.NormFloat64(), rng.NormFloat64()
				}
				low, high, ok := interval(a, b, paired)
				if !ok {
					t.Fatal("no interval")
				}
				if verdict(Higher, low, high) != NoDifference {
					wrong++
				}
			}
			// 5%, and three standard errors of a share of 120.
			if share := float64(wrong) / pairs; share > 0.05+0.06 {
				t.Errorf("%d runs, paired %v: %.1f%% told apart", runs, paired, 100*share)
			}
		}
	}
}

func TestCompareMeasurements(t *testing.T) {
	a, b := sample(), sample()
	all, err := Compare(a, b)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d comparisons, %v; want 3", len(all), err)
	}
	if table := ComparisonTable(all); !strings.Contains(table, "| off | 4 | turns | 2 | 2 | 0.0 … 0.0 | no difference seen |") ||
		!strings.Contains(table, "| off | 8 | turns | 7 | 7 | – | not known |") {
		t.Errorf("table:\n%s", table)
	}
}

func TestUnlikeMeasurements(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Results)
		want   []string // differences; with a ! where figures do not compare
	}{
		"nothing":          {func(r *Results) {}, nil},
		"another box":      {func(r *Results) { r.Box["replicas"] = 8.0 }, []string{"box.replicas is 4 and 8"}},
		"a part of a part": {func(r *Results) { r.Box["engine"] = map[string]any{"blocks": 1.0, "name": "x"} }, []string{"box.engine.name is y and x"}},
		"other arms":       {func(r *Results) { r.Protocol["arms"] = "off" }, []string{"protocol.arms is off,affinity and off"}},
		"another protocol": {func(r *Results) { r.Protocol["step_s"] = 60.0 }, []string{"!protocol.step_s is 180 and 60"}},
		"another workload": {func(r *Results) { r.Workload["turns"] = 9.0 }, []string{"!workload.turns is – and 9"}},
		"no workload":      {func(r *Results) { r.Workload = nil }, []string{"!workload.name is claude-code and –"}},
	} {
		a, b := sample(), sample()
		for _, r := range []*Results{a, b} {
			r.Protocol["arms"], r.Box["engine"] = "off,affinity", map[string]any{"blocks": 1.0, "name": "y"}
		}
		tc.change(b)
		var got []string
		unlike := false
		for _, d := range Differences(a, b) {
			text := d.String()
			if d.Unlike {
				text, unlike = "!"+text, true
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		_, err := Compare(a, b)
		if is := errors.As(err, new(UnlikeError)); is != unlike || (err != nil && !unlike) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := CompareUnlike(a, b); err != nil {
			t.Errorf("%s, compared all the same: %v", name, err)
		}
	}
}

func TestCompareArmsOfMeasurements(t *testing.T) {
	a, b := sample(), sample()
	b.Arms = b.Arms[:1]
	b.Arms[0].Name = "other"
	if _, err := Compare(a, b); err == nil || !strings.Contains(err.Error(), "off at 4, 8 sessions and affinity at 4 sessions") {
		t.Errorf("nothing in common: %v", err)
	}
	a.Arms = a.Arms[:1]
	if all, err := Compare(a, b); err != nil || len(all) != 2 || all[0].Arms != "off → other" {
		t.Errorf("single arms: %v, %+v", err, all)
	}
}
