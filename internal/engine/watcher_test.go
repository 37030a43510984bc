package engine

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// watch runs a watcher in the bubble of t and returns its reports. It ends with
// the test.
func watch(t *testing.T, f *fakeEngine) (*Watcher, <-chan Report) {
	t.Helper()
	reports := make(chan Report, 1000)
	w, err := NewWatcher(WatcherOptions{
		Base: mustBase(t, "http://engine:1"), Client: f.client(), Report: func(r Report) { reports <- r },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w, reports
}

func TestWatcherScrapesOnTheTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := newFakeEngine()
		_, reports := watch(t, f)
		for i := range 4 {
			r := <-reports
			if want := start.Add(time.Duration(i) * time.Second); !r.Time.Equal(want) || r.Err != nil || r.Health != Up || r.Epoch != 1 || len(r.Samples) != 2 {
				t.Fatalf("report %d: %+v, want one of %v", i, r, want)
			}
		}
		if n := f.count("/v1/models"); n != 1 {
			t.Errorf("discovered %d times, want once", n)
		}
	})
}

func TestWatcherNeverOverlapsAndGivesUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := newFakeEngine()
		_, reports := watch(t, f)
		<-reports
		f.set(func() { f.hang["/metrics"] = true })
		for _, began := range []time.Duration{time.Second, 6 * time.Second} {
			r := <-reports
			if r.Time.Sub(start) != began || time.Since(r.Time) != 5*time.Second || r.Health != Up || r.Err == nil || r.Samples != nil {
				t.Errorf("at %v, want the scrape of %v to have given up: %+v", time.Since(start), began, r)
			}
		}
		f.set(func() { delete(f.hang, "/metrics") })
		<-reports // was under way
		if r := <-reports; r.Err != nil || r.Samples == nil || r.Epoch != 1 {
			t.Errorf("after recovery: %+v", r)
		}
	})
}

func TestWatcherTellsBrokenPageFromDeadServer(t *testing.T) {
	tests := []struct {
		name   string
		change func(*fakeEngine)
		health Health
		err    string
	}{
		{"500", func(f *fakeEngine) { f.status["/metrics"] = 500 }, Up, "500"},
		{"page gone", func(f *fakeEngine) { delete(f.body, "/metrics") }, Up, "404"},
		{"empty", func(f *fakeEngine) { f.body["/metrics"] = "" }, Up, "no engine metrics"},
		{"html", func(f *fakeEngine) { f.body["/metrics"] = "<html>" }, Up, "no engine metrics"},
		{"compressed", func(f *fakeEngine) { f.body["/metrics"] = "\x1f\x8b\x08" }, Up, "no engine metrics"},
		{"renamed", func(f *fakeEngine) { f.body["/metrics"] = "vllm2:running 1\n" }, Up, "no engine metrics"},
		{"too large", func(f *fakeEngine) { f.body["/metrics"] = strings.Repeat("x", maxBody+1) }, Up, "larger than"},
		{"both hang", func(f *fakeEngine) { f.hang["/metrics"], f.hang["/health"] = true, true }, Silent, "deadline"},
		{"no health route", func(f *fakeEngine) { delete(f.body, "/health") }, Up, ""},
		{"dead shell that keeps its page", func(f *fakeEngine) { f.status["/health"] = 503 }, Down, "says that it is dead"},
		{"refused", func(f *fakeEngine) { f.refuse = true }, Down, "connection refused"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				_, reports := watch(t, f)
				<-reports
				f.set(func() { test.change(f) })
				r := <-reports
				if r.Health != test.health || (r.Err == nil) != (test.err == "") || r.Err != nil && !strings.Contains(r.Err.Error(), test.err) {
					t.Errorf("health %v, error %v", r.Health, r.Err)
				}
				if r.Info.Ranks != 2 {
					t.Errorf("forgot what it knew: %+v", r.Info)
				}
			})
		})
	}
}

func TestWatcherReadsALargePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.body["/metrics"] += strings.Repeat("other_bucket{le=\"1\"} 5\n", 250_000)
		_, reports := watch(t, f)
		if r := <-reports; r.Err != nil || len(r.Samples) != 2 {
			t.Errorf("%+v", r)
		}
	})
}

func TestWatcherPassesOnWhatIsNotANumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.body["/metrics"] = "vllm:num_requests_running NaN\n"
		_, reports := watch(t, f)
		if r := <-reports; r.Err != nil || len(r.Samples) != 1 || !math.IsNaN(r.Samples[0].Running) {
			t.Errorf("%+v", r)
		}
	})
}

func TestWatcherNoticesARestart(t *testing.T) {
	down := func(f *fakeEngine) { f.refuse = true }
	up := func(f *fakeEngine) { f.refuse = false }
	page := func(s string) func(*fakeEngine) { return func(f *fakeEngine) { f.body["/metrics"] = s } }
	noMetrics := func(f *fakeEngine) { delete(f.body, "/metrics") }
	tests := []struct {
		name  string
		steps []func(*fakeEngine)
		epoch int
	}{
		{"counters rise", []func(*fakeEngine){page(metricsPage(0, 100, 200))}, 1},
		{"a counter fell", []func(*fakeEngine){page(metricsPage(0, 100, 99))}, 2},
		{"it fell twice", []func(*fakeEngine){page(metricsPage(0, 50, 50)), page(metricsPage(0, 0, 0))}, 3},
		{"the start time changed", []func(*fakeEngine){page(metricsPage(7, 100, 100)), page(metricsPage(8, 100, 100))}, 2},
		{"it came back with higher counters", []func(*fakeEngine){down, up, page(metricsPage(0, 500, 500))}, 2},
		{"it came back as the same process", []func(*fakeEngine){page(metricsPage(7, 100, 100)), down, up}, 1},
		{"it came back, its page later", []func(*fakeEngine){page(metricsPage(7, 100, 100)), down,
			func(f *fakeEngine) { up(f); f.status["/metrics"] = 500 },
			func(f *fakeEngine) { delete(f.status, "/metrics"); f.body["/metrics"] = metricsPage(8, 1, 1) }}, 2},
		{"a broken page in between", []func(*fakeEngine){page("<html>"), page(metricsPage(0, 100, 100))}, 1},
		{"a counter is missing", []func(*fakeEngine){page("vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_running{engine=\"1\"} 0\n")}, 1},
		{"it never had metrics and comes back", []func(*fakeEngine){noMetrics, down, down, up}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				if test.name == "it never had metrics and comes back" {
					noMetrics(f)
				}
				_, reports := watch(t, f)
				r := <-reports
				for _, step := range test.steps {
					f.set(func() { step(f) })
					r = <-reports
				}
				if r.Epoch != test.epoch {
					t.Errorf("epoch %d, want %d (%+v)", r.Epoch, test.epoch, r)
				}
			})
		})
	}
}

func TestWatcherDiscoversAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.refuse = true
		_, reports := watch(t, f)
		if r := <-reports; r.Info.Ranks != 0 || r.Health != Down || r.Err == nil {
			t.Fatalf("before the engine is there: %+v", r)
		}
		f.set(func() { f.refuse = false })
		if r := <-reports; r.Info.Ranks != 2 || r.Health != Up || r.Err != nil {
			t.Fatalf("when it comes: %+v", r)
		}

		f.set(func() { f.body["/metrics"] = metricsPage(0, 0, 0, 0); f.body["/version"] = `{"version":"0.33.0"}` })
		if r := <-reports; r.Info.Ranks != 3 || len(r.Samples) != 3 || r.Epoch != 2 || r.Info.Version != "0.33.0" {
			t.Fatalf("with another rank: %+v", r)
		}

		f.set(func() { f.status["/v1/models"] = 401; f.body["/metrics"] = metricsPage(0, 0) })
		if r := <-reports; r.Info.Ranks != 3 || len(r.Samples) != 1 || r.Health != Up || !strings.Contains(r.Err.Error(), "401") {
			t.Fatalf("when it does not let us ask: %+v", r)
		}
		f.set(func() { delete(f.status, "/v1/models") })
		if r := <-reports; r.Info.Ranks != 1 || r.Err != nil {
			t.Fatalf("when it lets us ask again: %+v", r)
		}
	})
}

func TestWatcherNudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		w, reports := watch(t, f)
		start := (<-reports).Time
		synctest.Wait()
		for range 10 {
			w.Nudge()
		}
		if got := (<-reports).Time.Sub(start); got != minGap {
			t.Errorf("scraped after %v, want %v", got, minGap)
		}
		if got := (<-reports).Time.Sub(start); got != time.Second {
			t.Errorf("then after %v, want the tick", got)
		}
	})
}

func TestNewWatcherNeedsItsParts(t *testing.T) {
	for _, o := range []WatcherOptions{
		{Client: NewClient(), Report: func(Report) {}},
		{Base: mustBase(t, "x"), Report: func(Report) {}},
		{Base: mustBase(t, "x"), Client: NewClient()},
	} {
		if _, err := NewWatcher(o); err == nil {
			t.Errorf("no error for %+v", o)
		}
	}
}
