package stats

import (
	"context"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the present of most tests.
var noon = time.Date(2026, 10, 4, 12, 0, 3, 0, time.UTC)

// running is a history with its writer.
type running struct {
	*Store
	stop context.CancelFunc
	done sync.WaitGroup
}

// shut ends the writer as a gateway does that stops.
func (r *running) shut() {
	r.stop()
	r.done.Wait()
}

// mustOpen opens a history that knows only noon. Shut ends it.
func mustOpen(t testingT, path string, adjust ...func(*Options)) *running {
	t.Helper()
	o := Options{Path: path, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return noon }}
	for _, a := range adjust {
		a(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Store: s, stop: stop}
	r.done.Go(func() { s.Run(ctx) })
	if err := s.Flush(ctx); err != nil {
		r.shut()
		t.Fatal(err)
	}
	return r
}

// testingT is what tests and property tests have in common.
type testingT interface {
	Helper()
	Fatal(...any)
}

// open is mustOpen for the length of a test, of a history that works.
func open(t testing.TB, path string, adjust ...func(*Options)) *running {
	t.Helper()
	r := mustOpen(t, path, adjust...)
	t.Cleanup(r.shut)
	if st := r.State(); !st.OK {
		t.Fatalf("the history does not open: %s", st.Sentence)
	}
	return r
}

// empty deletes all records and sums.
func (r *running) empty(t testingT) {
	t.Helper()
	tables := []string{"requests", "shifts", "causes"}
	for _, res := range resolutions {
		tables = append(tables, "sums_"+res.name, "samples_"+res.name)
	}
	for _, table := range tables {
		if _, err := r.writable().write.Exec("DELETE FROM " + table); err != nil {
			t.Fatal(err)
		}
	}
}

func inFile(t testing.TB) string { return filepath.Join(t.TempDir(), "sub folder", "history?100%.db") }

func add(t testing.TB, s *running, records ...Record) {
	t.Helper()
	for _, r := range records {
		s.Add(r)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// turn is a finished request with something in each field.
func turn(at time.Time) Record {
	return Record{
		Time: at, Model: "qwen", Replica: 2, From: NoReplica, Conversation: "c-71f2a09c4d5e", Parent: "c-000000000001", Client: "claude-cli",
		Reason: "stayed", Outcome: "ok", TTFB: 120 * time.Millisecond, Duration: 2 * time.Second,
		Prompt: 1000, Cached: 800, Completion: 50,
	}
}

func query(t *testing.T, text string) Query {
	t.Helper()
	v, err := url.ParseQuery(text)
	if err != nil {
		t.Fatal(err)
	}
	q, err := ParseQuery(v, noon)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestWhatIsAddedIsInTheCharts(t *testing.T) {
	for _, path := range []string{MemoryOnly, inFile(t)} {
		s := open(t, path)
		unmeasured := turn(noon.Add(-30 * time.Minute))
		unmeasured.Cached, unmeasured.Replica = Unmeasured, EngineChosen
		add(t, s, turn(noon), unmeasured)

		chart, err := s.Tokens(t.Context(), query(t, "range=1h&model=qwen&group=replica"))
		if err != nil {
			t.Fatal(err)
		}
		if want := (Tokens{Cached: 800, Computed: 1200, Unmeasured: 1000, Completion: 100}); chart.Total != want {
			t.Errorf("%s: total %+v, want %+v", path, chart.Total, want)
		}
		if len(chart.Series) != 2 || len(chart.Series[0].Points) != 360 {
			t.Fatalf("%s: %d series", path, len(chart.Series))
		}
		last := chart.Series[1].Points[359]
		want := TokenPoint{time.Date(2026, 10, 4, 12, 0, 0, 0, time.UTC), Tokens{Cached: 800, Computed: 200, Completion: 50}}
		if chart.Series[1].Name != "2" {
			last = chart.Series[0].Points[359]
		}
		if diff := cmp.Diff(want, last); diff != "" {
			t.Errorf("%s: the running step (-want +got):\n%s", path, diff)
		}
		turns, next, err := s.Turns(t.Context(), "c-71f2a09c4d5e", 0, 0)
		if err != nil || next != 0 {
			t.Fatal(next, err)
		}
		if diff := cmp.Diff([]Turn{{2, unmeasured}, {1, turn(noon)}}, turns); diff != "" {
			t.Errorf("%s: turns (-want +got):\n%s", path, diff)
		}
		requests, err := s.Requests(t.Context(), query(t, "range=24h"))
		if err != nil {
			t.Fatal(err)
		}
		total := requests.Series[0].Total
		if total.Requests != 2 || total.OK != 2 || total.Stayed != 2 || total.TTFB.Count != 2 {
			t.Errorf("%s: requests %+v", path, total)
		}
		if p50 := total.TTFB.P50; p50 < 118*time.Millisecond || p50 > 122*time.Millisecond {
			t.Errorf("%s: median TTFB %v", path, p50)
		}
	}
}
