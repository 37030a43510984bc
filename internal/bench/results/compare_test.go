package results

import (
	"strings"
	"testing"
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

func TestBootstrapIntervalHoldsTheDifference(t *testing.T) {
	a, b := step(1, 10, 12, 11, 13, 9), step(11, 15, 16, 14, 17, 18)
	lines := CompareArms(&Arm{Name: "x", Steps: []Step{a}}, &Arm{Name: "x", Steps: []Step{b}})[0].Lines
	for _, l := range lines {
		if l.Column.Name != "turns" {
			continue
		}
		// Means 11 and 16, each with a standard error of 0.63: 5 ± 1.96 x 0.89.
		if *l.Low < 2.8 || *l.Low > 4 || *l.High < 6 || *l.High > 7.2 {
			t.Errorf("interval %v to %v, want about 3.2 to 6.8", *l.Low, *l.High)
		}
		return
	}
	t.Fatal("no line of turns")
}

func TestCompareMeasurements(t *testing.T) {
	a, b := sample(), sample()
	all, err := Compare(a, b)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d comparisons, %v; want 3", len(all), err)
	}
	if table := ComparisonTable(all); !strings.Contains(table, "| off | 4 | turns | 2 | 2 | 0 … 0 | no difference seen |") ||
		!strings.Contains(table, "| off | 8 | turns | 7 | 7 | – | not known |") {
		t.Errorf("table:\n%s", table)
	}
	b.Box["replicas"] = 8.0 // another box may be compared
	if _, err := Compare(a, b); err != nil {
		t.Error(err)
	}
	b.Protocol["step_s"] = 60.0
	if _, err := Compare(a, b); err == nil || !strings.Contains(err.Error(), "protocol settings (step_s)") {
		t.Errorf("another protocol: %v", err)
	}
	b = sample()
	b.Workload["turns"] = 9.0
	if _, err := Compare(a, b); err == nil || !strings.Contains(err.Error(), "workload settings (turns)") {
		t.Errorf("another workload: %v", err)
	}
	b = sample()
	b.Arms = b.Arms[:1]
	b.Arms[0].Name = "other"
	if _, err := Compare(a, b); err == nil || !strings.Contains(err.Error(), "no arm") {
		t.Errorf("nothing in common: %v", err)
	}
}
