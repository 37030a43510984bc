package live

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"lmwarden/internal/bench"
)

// pages serves one metrics page after the other, the last one for ever, and
// whatever else it is asked for with 404.
func pages(t *testing.T, all ...string) *url.URL {
	t.Helper()
	var next atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		page := all[min(int(next.Add(1)), len(all))-1]
		if page == "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, page)
	}))
	t.Cleanup(s.Close)
	return mustURL(t, s.URL)
}

func page(queries, hits int) string {
	return fmt.Sprintf("vllm:num_requests_running{engine=\"0\"} 1\nvllm:prefix_cache_queries_total{engine=\"0\"} %d\nvllm:prefix_cache_hits_total{engine=\"0\"} %d\nvllm:num_preemptions_total{engine=\"0\"} 0\n", queries, hits)
}

// still is a System whose engines are read when a test says so.
func still(t *testing.T, engines ...*url.URL) (*System, *[]string) {
	e := newEndpoint(t, func(w *stream, r *http.Request) {})
	var warned []string
	// Half a year is between two readings.
	s := newSystem(t, e.url, func(o *Options) {
		o.Engines, o.Speed = engines, 1e-7
		o.Warn = func(text string) { warned = append(warned, text) }
	})
	return s, &warned
}

func TestCountersAddUpOverTheLivesOfAnEngine(t *testing.T) {
	s, warned := still(t, pages(t, page(1000, 100), page(3000, 600), page(50, 10), page(80, 20)), pages(t, page(0, 0), page(7, 3)))
	before := s.Counters() // the second reading, after that of New
	s.Counters()
	after := s.Counters()
	got := [3]float64{after.PromptTokens - before.PromptTokens, after.CachedTokens - before.CachedTokens, after.Preemptions - before.Preemptions}
	if got != [3]float64{80, 20, 0} { // 50 and 30 of the second life
		t.Errorf("counted %v", got)
	}
	if s.Replicas() != 2 || len(*warned) != 0 {
		t.Errorf("%d replicas, warned %q", s.Replicas(), *warned)
	}
}

func TestCountersOfAnEngineThatDoesNotTell(t *testing.T) {
	unknown := func(c bench.Counters) bool {
		return math.IsNaN(c.PromptTokens) && math.IsNaN(c.CachedTokens) && math.IsNaN(c.BusySeconds)
	}
	s, warned := still(t, pages(t, page(5, 5)), pages(t, ""))
	if c := s.Counters(); !unknown(c) {
		t.Errorf("one engine of two answers: %+v", c)
	}
	if len(*warned) != 1 || !strings.Contains((*warned)[0], "status 500") {
		t.Errorf("warned %q", *warned)
	}
	// A reading that fails now and then costs nothing; an engine that has gone silent
	// is not known any more.
	s, _ = still(t, pages(t, page(5, 5), "", "", page(9, 9), ""))
	for i, known := range []bool{true, true, true, true, true, false} {
		if c := s.Counters(); unknown(c) == known {
			t.Errorf("reading %d: %+v", i+2, c)
		}
	}
}

// Of a load during which the pages were hardly read nobody knows how busy the
// replicas were.
func TestALoadTooShortForItsBusyTime(t *testing.T) {
	for polls, known := range map[int]bool{fewestPolls - 1: true, fewestPolls - 2: false} {
		s, _ := still(t, pages(t, page(5, 5)))
		before := s.Counters()
		s.Begin(bench.Step{})
		for range polls {
			s.engines.poll(context.Background())
		}
		loaded, after := s.Counters(), s.Counters()
		if math.IsNaN(loaded.BusySeconds) == known || math.IsNaN(before.BusySeconds+after.BusySeconds) || math.IsNaN(loaded.PromptTokens) {
			t.Errorf("%d polls: before %v, at the end %v, after %v", polls, before, loaded, after)
		}
	}
}

func TestACacheThatCannotBeEmptied(t *testing.T) {
	s, warned := still(t, pages(t, page(0, 0)))
	if err := s.Switch("any", true); err != nil {
		t.Fatal(err)
	}
	if s.caches == "cold" || len(*warned) != 1 || !strings.Contains((*warned)[0], "VLLM_SERVER_DEV_MODE") {
		t.Errorf("caches %q, warned %q", s.caches, *warned)
	}
	if err := s.Switch("any", false); err != nil || s.caches != "warm" {
		t.Errorf("%v, caches %q", err, s.caches)
	}
}

func TestOrders(t *testing.T) {
	m := Measurement{Protocol: bench.Protocol{Arms: []string{"a", "b", "c"}}, Seed: 1}
	order := func(o Order, n int) string { m.Order = o; return strings.Join(m.arms(n), "") }
	if got := order(AsGiven, 1) + order(Reversed, 0) + order(Alternate, 0) + order(Alternate, 1) + order(Alternate, 2); got != "abccbaabccbaabc" {
		t.Errorf("orders %s", got)
	}
	seen := map[string]bool{}
	for n := range 50 {
		seen[order(Random, n)] = true
	}
	if len(seen) != 6 {
		t.Errorf("random orders %v", seen)
	}
}
