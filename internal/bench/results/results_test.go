package results

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func figure(v float64) *float64 { return &v }

// sample is two arms of two steps, one of three runs, the other of one.
func sample() *Results {
	run := func(seed uint64, turns, hits float64) Run {
		return Run{Seed: seed, Measures: Measures{Turns: figure(turns), PrefixHitPercent: figure(hits), OutputTokensPerMin: figure(1000 * turns)}}
	}
	part := [][]Part{{{Index: 0, Turns: figure(3), PrefixHitPercent: figure(50)}}, {}, {{Index: 0, Turns: figure(6), PrefixHitPercent: figure(80)}, {Index: 1, Turns: figure(9)}}}
	return &Results{
		Schema:   Schema,
		Workload: Settings{"name": "claude-code"},
		Protocol: Settings{"step_s": 180.0},
		Box:      Settings{"replicas": 4.0},
		Arms: []Arm{
			{Name: "off", Steps: []Step{
				NewStep(4, []Run{run(1, 1, 50), run(2, 2, 50), run(3, 3, 50)}, part, nil),
				NewStep(8, []Run{run(1, 7, 40)}, nil, nil),
			}},
			{Name: "affinity", Steps: []Step{
				NewStep(4, []Run{run(1, 11, 80), run(2, 12, 80), run(3, 13.5, 80)}, nil, nil),
			}},
		},
	}
}

func TestFileNames(t *testing.T) {
	data, err := sample().JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"schema": 1`, `"workload": {`, `"arms": [`, `"name": "off"`, `"steps": [`, `"sessions": 4`,
		`"sessions_per_hour": null`, `"output_tokens_per_min": 2000`, `"ttfb_p50_s": null`, `"ttfb_p95_s": null`,
		`"ttfb_p99_s": null`, `"ttfb_max_s": null`, `"replicas_busy": null`, `"prefix_hit_percent": 50`,
		`"stayed_percent": null`, `"turns": 2`, `"failed": null`, `"ci": {`, `"turns": 2.4843`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("results.json has no %s:\n%s", want, data)
		}
	}
}

func TestColumnsAreAllMeasures(t *testing.T) {
	data, err := (&Results{Arms: []Arm{{Steps: []Step{{}}}}}).JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Columns() {
		// Once in the step and once in its ci.
		if n := strings.Count(string(data), `"`+c.Name+`":`); n != 2 {
			t.Errorf("%s stands %d times in the file, want 2", c.Name, n)
		}
	}
	if want := 2 * len(Columns()); strings.Count(string(data), "null,")+strings.Count(string(data), "null\n") < want {
		t.Errorf("fewer than %d figures that are not measured:\n%s", want, data)
	}
}

func TestMeansOfRuns(t *testing.T) {
	s := sample().Arms[0].Steps[0]
	if *s.Turns != 2 || *s.PrefixHitPercent != 50 || s.TTFBP50 != nil {
		t.Errorf("means: turns %v, hits %v, TTFB %v", *s.Turns, *s.PrefixHitPercent, s.TTFBP50)
	}
	// 4.303 x 1 / sqrt(3)
	if *s.CI.Turns != 2.4843 || *s.CI.PrefixHitPercent != 0 || s.CI.TTFBP50 != nil {
		t.Errorf("half widths: turns %v, hits %v, TTFB %v", *s.CI.Turns, *s.CI.PrefixHitPercent, s.CI.TTFBP50)
	}
	if one := sample().Arms[0].Steps[1]; one.CI.Turns != nil {
		t.Errorf("one run has an interval of %v", *one.CI.Turns)
	}
	// A run without the part counts as one without turns, and says nothing of hits.
	want := []Part{
		{Index: 0, Turns: figure(3), PrefixHitPercent: figure(65)},
		{Index: 1, Turns: figure(3)},
	}
	if diff := cmp.Diff(want, s.Replicas); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
}

func TestStudent(t *testing.T) {
	for freedom, want := range map[int]float64{1: 12.706, 2: 4.303, 10: 2.228, 11: 2.201, 20: 2.086, 30: 2.042, 120: 1.980} {
		if got := student95(freedom); math.Abs(got-want) > 0.001 {
			t.Errorf("t of %d degrees is %.4f, want %.3f", freedom, got, want)
		}
	}
}

func TestFigure(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if Figure(v) != nil {
			t.Errorf("%v counts as measured", v)
		}
	}
	if got := *Figure(1.0 / 3); got != 0.3333 {
		t.Errorf("a third is %v", got)
	}
}

func TestWriteAndRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	r := sample()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, JSONFile)} {
		got, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("read from %s (-written +read):\n%s", path, diff)
		}
	}
	table, err := os.ReadFile(filepath.Join(dir, TableFile))
	if err != nil || string(table) != r.Table() {
		t.Errorf("table.md: %v\n%s", err, table)
	}
	if csv, err := os.ReadFile(filepath.Join(dir, CSVFile)); err != nil || !strings.HasPrefix(string(csv), "arm,sessions,runs,sessions_per_hour,") {
		t.Errorf("table.csv: %v\n%s", err, csv)
	}
	if _, err := Read(filepath.Join(dir, "absent")); err == nil {
		t.Error("a folder that is not there was read")
	}
}

// A file of before a column was there is one in which it was not measured.
func TestAFileWithoutAColumnOfToday(t *testing.T) {
	data, err := sample().JSON()
	if err != nil {
		t.Fatal(err)
	}
	old, err := Parse(regexp.MustCompile(`(?m)^\s*"ttft_.*\n`).ReplaceAll(data, nil))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), old); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	now := sample()
	now.Arms[0].Steps[0].TTFTP50 = figure(1)
	compared, err := Compare(old, now)
	if err != nil || strings.Contains(ComparisonTable(compared), "TTFT") || !strings.Contains(ComparisonTable(compared), "prefix hits") {
		t.Errorf("compared with a file of today: %v\n%s", err, ComparisonTable(compared))
	}
}

func TestRequestsAreLines(t *testing.T) {
	turn, session, hits := 2, "00ff", 0
	requests := []Request{
		{Arm: "off", Sessions: 4, Seed: 1, Session: &session, Turn: &turn, SentS: 1.5, TTFB: figure(0.25), CachedTokens: &hits, End: Cut},
		{Arm: "<off>", Sessions: 4, Seed: 1 << 63, Client: 3, End: Finished},
	}
	var b strings.Builder
	if err := WriteRequests(&b, requests); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	var got []Request
	for _, line := range lines {
		var r Request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		got = append(got, r)
	}
	if diff := cmp.Diff(requests, got); diff != "" {
		t.Errorf("requests read back (-written +read):\n%s", diff)
	}
	// What is not known is there, and null.
	for _, want := range []string{`"parent":null`, `"ttft_s":null`, `"cached_tokens":0`, `"output_tokens":null`, `"replica":null`, `"decision":null`, `"error":null`} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("no %s in %s", want, lines[0])
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"no JSON":        {"{\n\n nope", "line 3"},
		"wrong type":     {"{\"schema\": 1,\n\"arms\": 7}", "line 2"},
		"another schema": {`{"schema": 2}`, "schema is 2"},
		"no arms":        {`{"schema": 1}`, "arms is empty"},
		"no name":        {`{"schema": 1, "arms": [{}]}`, `arms[0].name is ""`},
		"name twice":     {`{"schema": 1, "arms": [{"name": "a"}, {"name": "a"}]}`, `arms[1].name is "a"`},
		"no sessions":    {`{"schema": 1, "arms": [{"name": "a", "steps": [{}]}]}`, "arms[0].steps[0].sessions is 0"},
		"sessions twice": {`{"schema": 1, "arms": [{"name": "a", "steps": [{"sessions": 4}, {"sessions": 4}]}]}`, "steps[1].sessions is 4"},
		"negative":       {`{"schema": 1, "arms": [{"name": "a", "steps": [{"sessions": 4, "ttfb_p50_s": -1}]}]}`, "ttfb_p50_s is -1"},
		"over 100":       {`{"schema": 1, "arms": [{"name": "a", "steps": [{"sessions": 4, "runs": [{"stayed_percent": 101}]}]}]}`, "runs[0].stayed_percent is 101"},
	} {
		if _, err := Parse([]byte(tc.file)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tc.want)
		}
	}
	if _, err := Parse([]byte(`{"schema": 1, "arms": [{"name": "a", "steps": [{"sessions": 4, "ci": {"stayed_percent": 101}}]}]}`)); err != nil {
		t.Errorf("a half width above 100, as of two runs: %v", err)
	}
	if _, err := Parse([]byte(`{"schema": 1, "later": true, "arms": [{"name": "a", "steps": [{"sessions": 4, "turns": null}]}]}`)); err != nil {
		t.Errorf("an unknown key and a figure that was not measured: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	data, err := sample().JSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema": 1, "arms": [{"name": "a", "steps": [{"sessions": 4, "runs": [{}, {}]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if err != nil {
			return
		}
		// What was read can be shown and compared, and reads the same again.
		r.Table()
		if _, err := Compare(r, r); err != nil && !strings.Contains(err.Error(), "in common") {
			t.Fatal(err)
		}
		again, err := r.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(again); err != nil {
			t.Fatalf("own output: %v\n%s", err, again)
		}
	})
}

func TestTable(t *testing.T) {
	r := sample()
	r.Arms[0].Steps[0].TTFBP50 = figure(0.375)
	lines := strings.Split(r.Table(), "\n")
	for i, want := range []string{
		"| sessions (off → affinity) | sessions/h | output tok/min | TTFB p50 s | TTFB p95 s | replicas busy | prefix hits % | stayed % |",
		"| --- |",
		"| 4 | – | 2,000 → 12,167 | 0.38 → – | – | – | 50.0 → 80.0 | – |",
		"| 8 | – | 7,000 → – | – | – | – | 40.0 → – | – |",
		"",
		"Means of 3 runs. Half widths of their 95% confidence intervals:",
	} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is\n%s\nwant it to begin with\n%s", i+1, lines[i], want)
		}
	}
	r.Arms = r.Arms[1:]
	r.Arms[0].Steps[0].Runs = r.Arms[0].Steps[0].Runs[:1]
	if got := r.Table(); !strings.HasPrefix(got, "| sessions (affinity) |") || strings.Contains(got, "→") || strings.Contains(got, "95%") {
		t.Errorf("one arm and one run:\n%s", got)
	}
}

func TestFormat(t *testing.T) {
	for _, tc := range []struct {
		v      float64
		digits int
		want   string
	}{
		{0, 0, "0"}, {999, 0, "999"}, {1000, 0, "1,000"}, {1234567.5, 1, "1,234,567.5"},
		{-1234, 0, "-1,234"}, {-123, 0, "-123"}, {0.005, 2, "0.01"}, {12.3, 2, "12.30"},
	} {
		if got := (Column{Digits: tc.digits}).Format(&tc.v); got != tc.want {
			t.Errorf("%v with %d digits is %s, want %s", tc.v, tc.digits, got, tc.want)
		}
	}
}
