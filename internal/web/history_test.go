package web

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/access"
	"lmwarden/internal/bench/results"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
)

// fakeHistory has one request a second since the start: 1000 tokens of prompt, 800
// of them cached, and 50 of answer.
type fakeHistory struct {
	err   error
	turns []stats.Turn
	asked atomic.Int64
}

func (f *fakeHistory) Tokens(_ context.Context, q stats.Query) (stats.TokenChart, error) {
	f.asked.Add(1)
	c := stats.TokenChart{Query: q}
	for _, name := range members(q) {
		s := stats.TokenSeries{Name: name}
		for t := q.From; t.Before(q.To); t = t.Add(q.Step) {
			n := secondsOf(t, q.Step)
			p := stats.TokenPoint{Time: t, Tokens: stats.Tokens{Cached: 800 * n, Computed: 200 * n, Completion: 50 * n}}
			s.Points = append(s.Points, p)
			s.Total.Cached += p.Cached
			s.Total.Computed += p.Computed
			s.Total.Completion += p.Completion
		}
		c.Series = append(c.Series, s)
		c.Total.Cached += s.Total.Cached
		c.Total.Computed += s.Total.Computed
		c.Total.Completion += s.Total.Completion
	}
	return c, f.err
}

func (f *fakeHistory) Requests(_ context.Context, q stats.Query) (stats.RequestChart, error) {
	c := stats.RequestChart{Query: q}
	for _, name := range members(q) {
		s := stats.RequestSeries{Name: name}
		for t := q.From; t.Before(q.To); t = t.Add(q.Step) {
			n := secondsOf(t, q.Step)
			p := stats.RequestPoint{Time: t, Counts: stats.Counts{Requests: n, OK: n, Stayed: n}}
			if n > 0 {
				p.TTFB = stats.Quantiles{Count: n, P50: 380 * time.Millisecond, P95: 2800 * time.Millisecond, P99: 3 * time.Second}
				p.Duration = p.TTFB
				p.Waited = stats.Quantiles{Count: n / 10, P50: 4 * time.Second, P95: 9 * time.Second, P99: 10 * time.Second}
			}
			s.Points = append(s.Points, p)
			s.Total.Requests += n
			s.Total.Waited = stats.Quantiles{Count: s.Total.Requests / 10, P50: 4 * time.Second, P95: 9 * time.Second, P99: 10 * time.Second}
			s.Total.OK += n
			s.Total.TTFB, s.Total.Duration = stats.Quantiles{Count: s.Total.Requests, P50: 380 * time.Millisecond, P95: 2800 * time.Millisecond, P99: 3 * time.Second}, p.Duration
		}
		c.Series = append(c.Series, s)
	}
	return c, f.err
}

// members are the names of a group's series; a client chooses its own.
func members(q stats.Query) []string {
	switch q.Group {
	case stats.GroupReplica:
		return []string{"0", "1", "engine"}
	case stats.GroupClient:
		return []string{`<b>"évil"</b>`, "=cmd()", ""}
	}
	return []string{""}
}

// secondsOf is how many seconds of a step lie between the start and now.
func secondsOf(t time.Time, step time.Duration) int64 {
	from, to := t, t.Add(step)
	if from.Before(since) {
		from = since
	}
	if to.After(now) {
		to = now
	}
	return max(int64(to.Sub(from)/time.Second), 0)
}

func (f *fakeHistory) Turns(_ context.Context, name string, limit int, before int64) (page []stats.Turn, next int64, err error) {
	for _, t := range f.turns {
		if t.Conversation == name && (before == 0 || t.ID < before) {
			page = append(page, t)
		}
	}
	if len(page) > limit {
		page = page[:limit]
		next = page[limit-1].ID
	}
	return page, next, f.err
}

func (f *fakeHistory) Recent(context.Context, string, int) ([]stats.Turn, error) {
	return f.turns, f.err
}

func (f *fakeHistory) Shifts(context.Context, stats.Query) ([]stats.Shift, error) {
	return []stats.Shift{
		{From: 3, To: 2, Reason: "moved", Why: "home down", Requests: 7},
		{From: 2, To: stats.EngineChosen, Reason: "spilled", Why: "home full", Requests: 2},
	}, f.err
}

func (f *fakeHistory) Ledger(context.Context, stats.Query) ([]stats.Ledger, error) {
	return []stats.Ledger{
		{Hour: since, Replica: 2, Cause: "evicted", Turns: 3, Reread: 9000},
		{Hour: since, Replica: 1, Cause: "moved", Turns: 7, Reread: 70_000},
		{Hour: since, Replica: 0, Cause: "moved", Turns: 1, Reread: 2000},
		{Hour: since, Replica: 0, Cause: "none", Turns: 90, Reread: 0},
	}, f.err
}

func (f *fakeHistory) Replicas(_ context.Context, q stats.Query) ([]stats.ReplicaSeries, error) {
	return []stats.ReplicaSeries{{Model: "qwen3-4b-dp4", Replica: 1, Points: []stats.ReplicaPoint{
		{Time: q.From, InFlight: 2, Conversations: 3, Running: -1, Waiting: -1, KVPercent: 40},
	}}}, f.err
}

func (f *fakeHistory) State() stats.State { return stats.State{OK: true} }

// turnsOfOne are the turns of the first conversation of talk, newest first: the
// third was moved and read again, the fourth has a changed prompt, the fifth
// failed.
func turnsOfOne(name string) []stats.Turn {
	add := func(id int64, at time.Duration, r stats.Record) stats.Turn {
		r.Time, r.Model, r.Conversation, r.Duration = now.Add(at), "qwen3-4b-dp4", name, 2*time.Second
		return stats.Turn{ID: id, Record: r}
	}
	ok := func(replica, from int, reason, why string, prompt, cached int64) stats.Record {
		return stats.Record{Replica: replica, From: from, Reason: reason, Why: why, Outcome: "ok", TTFB: 300 * time.Millisecond, Prompt: prompt, Cached: cached, Completion: 100}
	}
	moved := ok(1, 2, "moved", "home down", 13_200, 0)
	moved.Cause, moved.Reread, moved.Waited = "moved", 12_900, 1500*time.Millisecond
	changed := ok(1, stats.NoReplica, "stayed", "", 14_600, 9700)
	changed.Cause, changed.Reread, changed.Changed = "changed-prompt", 4900, stats.Change{Part: "message", Message: 5, Byte: 38_204, Offset: 1216, Within: 64}
	return []stats.Turn{
		add(5, -time.Second, stats.Record{Replica: 1, From: stats.NoReplica, Reason: "stayed", Outcome: "engine_error", Prompt: -1, Cached: -1, Completion: -1}),
		add(4, -10*time.Second, changed),
		add(3, -20*time.Second, moved),
		add(2, -20*time.Minute, ok(2, stats.NoReplica, "stayed", "", 12_400, 12_000)),
		add(1, -21*time.Minute, ok(2, stats.NoReplica, "placed", "", 11_000, 3500)),
	}
}

// full gives a handler everything that a gateway gives it.
func full(t *testing.T) func(*Options) {
	t.Helper()
	folder := t.TempDir()
	for i, name := range []string{"before", "after"} {
		measurement(t, folder, name, float64(i))
	}
	return func(o *Options) {
		o.History = &fakeHistory{turns: turnsOfOne(session.Key{0x71, 0xf2, 0xa0, 0x9c}.Name())}
		o.Events = func(n int) []Event {
			return []Event{{now.Add(-time.Minute), "qwen3-4b-dp4", "Replica 3 is down: connection refused.", "bad"}, {since, "", "The warden started.", "info"}}[:min(n, 2)]
		}
		o.Settings = func() Settings {
			return Settings{YAML: "listen: 127.0.0.1:8100\n", Path: "warden.yaml", Loaded: since, Commit: "abc", Go: "go1", Keeps: []string{"Requests for 30 days."}, Keys: []access.View{
				{Name: "ci", Models: []string{"qwen3-*", "small"}, Limits: access.Limits{InFlight: 8, PerMinute: 120}, Batch: true, Open: 3}, {Name: "farm"},
			}, Limits: []ModelLimits{{Model: "qwen3-4b-dp4", Limits: access.Limits{InFlight: 24}, Open: 7}}}
		}
		o.Reload = func(context.Context) error { return nil }
		o.ClientURL = func() string { return "http://127.0.0.1:9000" }
		o.Benchmarks = folder
		o.Cancel = func(session.Key) int { return 1 }
		o.KVEvents = heardOfTwo
	}
}

// measurement writes one of two arms and two runs; faster makes its figures
// better.
func measurement(t *testing.T, folder, name string, faster float64) {
	t.Helper()
	figure := func(v float64) *float64 { return &v }
	r := results.Results{Schema: results.Schema, Workload: results.Settings{"turns": 6.0}, Protocol: results.Settings{}}
	for i, arm := range []string{"off", "affinity"} {
		var runs []results.Run
		for seed := range uint64(4) {
			m := results.Measures{TTFBP50: figure(3.25 - float64(i) - faster + float64(seed)/100), PrefixHitPercent: figure(33.2 + 10*float64(i)), OutputTokensPerMin: figure(9558)}
			runs = append(runs, results.Run{Seed: seed, Measures: m})
		}
		step := results.NewStep(16, runs, nil, [][]results.Part{{{Index: 1, TTFBP50: figure(2)}, {Index: 2, TTFBP50: figure(0.4)}}})
		r.Arms = append(r.Arms, results.Arm{Name: arm, Steps: []results.Step{step}})
	}
	if err := r.Write(filepath.Join(folder, name)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name, "ttfb.svg"), []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestConsolesShareAnswers(t *testing.T) {
	f := &fakeHistory{}
	h := &sharedHistory{History: f}
	q := stats.Query{From: since, To: now, Step: time.Minute}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if c, err := h.Tokens(t.Context(), q); err != nil || len(c.Series) != 1 {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := f.asked.Load(); n != 1 {
		t.Errorf("50 consoles asked %d times", n)
	}
	f.err = errors.New("disk full")
	other := q
	other.Model = "other"
	for range 2 {
		if _, err := h.Tokens(t.Context(), other); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("error %v", err)
		}
	}
	if n := f.asked.Load(); n != 3 {
		t.Errorf("an error is not kept: asked %d times", n)
	}
}

// A place in a prompt as the API and a page tell it.
func TestWhereAClientChangedItsPrompt(t *testing.T) {
	for _, tt := range []struct {
		change stats.Change
		api    *place
		says   string
	}{
		{stats.Change{}, nil, ""},
		{stats.Change{Part: "message", Message: 2, Byte: -1, Offset: -1}, &place{"message", 2, -1, -1, -1},
			"Message 3 is not what it sent a turn before."},
		{stats.Change{Part: "message", Byte: 40, Offset: 0, Within: 1}, &place{"message", 0, 40, 0, 1},
			"Message 1 is not what it sent a turn before: changed at byte 0 of the message, within 1 byte; the message begins at byte 40 of the request."},
		{stats.Change{Part: "system", Byte: 12, Offset: 2048, Within: 0}, &place{"system", -1, 12, 2048, 0},
			"The system text is not what it sent a turn before: it ends at byte 2,048; the system text begins at byte 12 of the request."},
		{stats.Change{Part: "tools", Byte: -1, Offset: -1}, &place{"tools", -1, -1, -1, -1},
			"The list of tools is not what it sent a turn before."},
	} {
		if diff := cmp.Diff(tt.api, placeOf(tt.change)); diff != "" {
			t.Error(diff)
		}
		if got := changeSentence(tt.change); tt.says != "" && got != tt.says {
			t.Errorf("%q, want %q", got, tt.says)
		}
	}
}
