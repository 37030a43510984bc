package stats

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// naive answers a query by walking over all records.
func naive(records []Record, q Query) (total Tokens, series map[string][]Tokens, counts map[string]Counts) {
	series, counts = map[string][]Tokens{}, map[string]Counts{}
	if q.Group == GroupNone {
		series[""] = make([]Tokens, q.points())
	}
	for _, r := range records {
		if at := r.Time.Truncate(time.Millisecond); at.Before(q.From) || !at.Before(q.To) || q.Model != "" && q.Model != r.Model {
			continue
		}
		var t Tokens
		t.Completion = max(r.Completion, 0)
		t.Computed = max(r.Prompt, 0)
		if r.Cached == Unmeasured {
			t.Unmeasured = t.Computed
		} else {
			t.Cached = min(r.Cached, t.Computed)
			t.Computed -= t.Cached
		}
		name := ""
		switch q.Group {
		case GroupReplica:
			name = map[int]string{EngineChosen: "engine", NoReplica: "none"}[r.Replica]
			if name == "" {
				name = fmt.Sprint(r.Replica)
			}
		case GroupClient:
			name = r.Client
		}
		if series[name] == nil {
			series[name] = make([]Tokens, q.points())
		}
		at := &series[name][r.Time.Sub(q.From)/q.Step]
		*at = at.plus(t)
		total = total.plus(t)
		c := counts[name]
		c.add(&r)
		counts[name] = c
	}
	return total, series, counts
}

// Whatever is added in whatever order, with a clock that jumps, in batches cut
// anywhere: every chart is the sum of its records.
func TestSumsAddUp(t *testing.T) {
	s := open(t, MemoryOnly)
	rapid.Check(t, func(t *rapid.T) {
		s.empty(t)
		var records []Record
		// Times gather around the borders of steps, where errors would be.
		moment := rapid.Custom(func(t *rapid.T) time.Time {
			border := noon.Truncate(time.Hour).Add(time.Duration(rapid.IntRange(-90, 3).Draw(t, "minutes")) * time.Minute)
			return border.Add(time.Duration(rapid.SampledFrom([]int{-10_000, -1, 0, 1, 9_999, 10_000, 59_999}).Draw(t, "ms")) * time.Millisecond)
		})
		tokens := rapid.OneOf(rapid.Just(int64(Unmeasured)), rapid.Int64Range(0, 100_000))
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			for range rapid.IntRange(0, 12).Draw(t, "requests") {
				r := Record{
					Time:  moment.Draw(t, "time"),
					Model: rapid.SampledFrom([]string{"", "a", "b'%"}).Draw(t, "model"), Replica: rapid.IntRange(-2, 4).Draw(t, "replica"), From: NoReplica,
					Client: rapid.SampledFrom([]string{"", "claude-cli", "codex"}).Draw(t, "client"),
					Reason: rapid.SampledFrom([]string{"", "placed", "stayed", "spilled", "moved", "off"}).Draw(t, "reason"), Outcome: rapid.SampledFrom([]string{"ok", "cancelled", "engine_error"}).Draw(t, "outcome"),
					Prompt: tokens.Draw(t, "prompt"), Cached: tokens.Draw(t, "cached"), Completion: tokens.Draw(t, "completion"),
				}
				records = append(records, r)
				s.Add(r)
			}
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		v := url.Values{
			"range": {rapid.SampledFrom([]string{"10s", "7m", "1h", "90m", "24h", "7d", "30d"}).Draw(t, "range")},
			"step":  {rapid.SampledFrom([]string{"auto", "10s", "30s", "1m", "7m", "1h", "24h"}).Draw(t, "step")},
			"group": {rapid.SampledFrom([]string{"none", "replica", "client"}).Draw(t, "group")},
			"model": {rapid.SampledFrom([]string{"", "a", "b'%", "unknown"}).Draw(t, "asked")},
		}
		q, err := ParseQuery(v, noon)
		if err != nil {
			return // too many steps, or steps that are not kept so long
		}
		total, series, counts := naive(records, q)
		chart, err := s.Tokens(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]Tokens{}
		for _, line := range chart.Series {
			for i, p := range line.Points {
				if want := q.From.Add(time.Duration(i) * q.Step); !p.Time.Equal(want) {
					t.Fatalf("step %d begins at %v, want %v", i, p.Time, want)
				}
				got[line.Name] = append(got[line.Name], p.Tokens)
			}
		}
		if diff := cmp.Diff(series, got); diff != "" {
			t.Errorf("tokens of %v (-records +chart):\n%s", v, diff)
		}
		if chart.Total != total {
			t.Errorf("total %+v, records have %+v", chart.Total, total)
		}
		requests, err := s.Requests(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range requests.Series {
			if diff := cmp.Diff(counts[line.Name], line.Total.Counts); diff != "" {
				t.Errorf("requests of %q (-records +chart):\n%s", line.Name, diff)
			}
			if line.Total.Duration.Count != line.Total.Requests {
				t.Errorf("%d durations of %d requests", line.Total.Duration.Count, line.Total.Requests)
			}
		}
	})
}

// The quantiles of a day are those of its requests, though they were merged from
// many sketches.
func TestQuantilesMergeTruly(t *testing.T) {
	s := open(t, MemoryOnly)
	var all []time.Duration
	for i := range 500 {
		r := turn(noon.Add(-time.Duration(i) * 2 * time.Minute))
		r.TTFB = time.Duration(1+i*i%7919) * time.Millisecond
		all = append(all, r.TTFB)
		s.Add(r)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	for _, step := range []string{"1m", "1h"} {
		chart, err := s.Requests(t.Context(), query(t, "range=24h&step="+step))
		if err != nil {
			t.Fatal(err)
		}
		got := chart.Series[0].Total.TTFB
		for _, q := range []struct {
			part float64
			got  time.Duration
		}{{0.5, got.P50}, {0.95, got.P95}, {0.99, got.P99}} {
			want := all[int(q.part*float64(len(all)-1))]
			if off := float64(q.got-want) / float64(want); off < -0.011 || off > 0.011 {
				t.Errorf("step %s, quantile %v: %v, truly %v", step, q.part, q.got, want)
			}
		}
	}
}

func TestMovesAndCausesAreCounted(t *testing.T) {
	s := open(t, MemoryOnly)
	moved, spilled, other := turn(noon), turn(noon), turn(noon.Add(-2*time.Hour))
	moved.Reason, moved.Why, moved.From, moved.Replica, moved.Cause, moved.Reread = "moved", "home down", 1, 3, "moved", 700
	spilled.Reason, spilled.Why, spilled.From = "spilled", "home full", 0
	other.Cause, other.Reread, other.Changed = "changed-prompt", 90, Change{Part: "message", Message: 4, Byte: Unmeasured, Offset: Unmeasured}
	add(t, s, moved, moved, spilled, other)

	shifts, err := s.Shifts(t.Context(), query(t, "range=1h"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Shift{{1, 3, "moved", "home down", 2}, {0, 2, "spilled", "home full", 1}}, shifts); diff != "" {
		t.Error(diff)
	}
	ledger, err := s.Ledger(t.Context(), query(t, "range=24h&model=qwen"))
	if err != nil {
		t.Fatal(err)
	}
	hour := noon.Truncate(time.Hour)
	want := []Ledger{{hour.Add(-2 * time.Hour), 2, "changed-prompt", 1, 90}, {hour, 3, "moved", 2, 1400}}
	if diff := cmp.Diff(want, ledger); diff != "" {
		t.Error(diff)
	}
	turns, err := s.Recent(t.Context(), "qwen", 2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Turn{{3, spilled}, {2, moved}}, turns); diff != "" {
		t.Error(diff)
	}
	page, next, err := s.Turns(t.Context(), other.Conversation, 3, 0)
	if err != nil || len(page) != 3 || page[2].ID != next {
		t.Fatalf("%v, next %d: %v", page, next, err)
	}
	page, next, err = s.Turns(t.Context(), other.Conversation, 3, next)
	if err != nil || next != 0 || len(page) != 1 || page[0].Changed != moved.Changed && page[0].ID != 1 {
		t.Fatalf("%v, next %d: %v", page, next, err)
	}
}

func TestSamplesAreMeansWithGaps(t *testing.T) {
	s := open(t, MemoryOnly)
	at := noon.Truncate(time.Minute)
	s.AddSamples([]Sample{{Time: at, Model: "m", Replica: 0, Running: 4, Waiting: 2, KVUsed: 0.5, InFlight: 6, Conversations: 3}})
	s.AddSamples([]Sample{{Time: at.Add(10 * time.Second), Model: "m", Replica: 0, Running: -1, Waiting: -1, KVUsed: -1, InFlight: 2, Conversations: 3}})
	s.AddSamples([]Sample{{Time: at.Add(-2 * time.Minute), Model: "m", Replica: 1, Running: -1, Waiting: -1, KVUsed: -1}})
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := s.Replicas(t.Context(), query(t, "range=1h&step=1m&model=m"))
	if err != nil {
		t.Fatal(err)
	}
	want := []ReplicaSeries{
		{"m", 0, []ReplicaPoint{{Time: at, InFlight: 4, Conversations: 3, Running: 4, Waiting: 2, KVPercent: 50}}},
		{"m", 1, []ReplicaPoint{{Time: at.Add(-2 * time.Minute), Running: -1, Waiting: -1, KVPercent: -1}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBadQueries(t *testing.T) {
	for text, field := range map[string]string{
		"range=-1h":          "range",
		"range=0s":           "range",
		"range=day":          "range",
		"range=99999d":       "range",
		"step=3s":            "step",
		"step=15s":           "step",
		"step=-10s":          "step",
		"group=user":         "group",
		"range=30d&step=10s": "step",
		"range=7h&step=10s":  "step",
		"range=24h&step=10s": "step",
		"from=2026-10-04T11:00:00Z&to=2026-10-04T10:00:00Z":          "from",
		"from=2026-10-04T11:00:00Z&to=2026-10-04T11:00:00Z":          "from",
		"from=2026-10-04T13:00:00Z":                                  "from",
		"from=yesterday":                                             "from",
		"to=2026-10-04T11:00:00Z":                                    "from",
		"from=2026-10-04T10:00:00Z&to=noon":                          "to",
		"from=2026-10-04T10:00:00Z&range=1h":                         "range",
		"from=2026-09-04T10:00:00Z&to=2026-09-04T11:00:00Z&step=10s": "step",
		"from=2026-10-04T10:00:00Z&to=2026-10-04T11:00:00Z":          "",
		"range=6h&step=auto&group=client&model=a%20b":                "",
	} {
		v, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ParseQuery(v, noon)
		if q, ok := err.(*QueryError); field == "" && err != nil || field != "" && (!ok || q.Field != field) {
			t.Errorf("%s: %v, want an error of %q", text, err, field)
		}
	}
}

func TestAutomaticSteps(t *testing.T) {
	for text, want := range map[string]string{
		"": "10s 360", "range=6h": "1m0s 360", "range=24h": "10m0s 144", "range=7d": "1h0m0s 168", "range=30d": "2h0m0s 360",
		"from=2026-09-29T10:00:00Z&to=2026-09-29T10:10:00Z": "1m0s 10", // too long ago for 10 s
		"from=2026-01-01T10:00:00Z&to=2026-01-01T15:10:00Z": "1h0m0s 6",
	} {
		q := query(t, text)
		if got := fmt.Sprint(q.Step, " ", q.points()); got != want {
			t.Errorf("%q has steps %s, want %s", text, got, want)
		}
	}
	if q := query(t, ""); !q.To.After(noon) || q.To.Sub(noon) > q.Step {
		t.Errorf("the range ends at %v, which leaves out the running step", q.To)
	}
}
