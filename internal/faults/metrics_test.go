package faults

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
)

// An engine's metrics are for its load and for the pages. When they break,
// requests flow on our own counts, and the pages do not show old numbers as new.
func TestBrokenMetricsStopNothing(t *testing.T) {
	t.Parallel()
	text := func(status int, kind, body string, headers ...string) script {
		return func(c *call) { c.answer(status, body, append([]string{"Content-Type", kind}, headers...)...) }
	}
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	w.Write([]byte(metricsPage(1)))
	w.Close()
	var falling atomic.Int64
	falling.Store(1 << 30)
	for _, tt := range []struct {
		name  string
		page  script
		stale bool // the numbers of before must be marked
	}{
		{"500", text(500, "text/plain", "Internal Server Error"), true},
		{"404", text(404, "application/json", `{"detail":"Not Found"}`), true},
		{"hangs", (*call).left, true},
		{"resets", (*call).reset, true},
		{"closes", (*call).close, true},
		{"empty", text(200, "text/plain", ""), true},
		{"HTML", text(200, "text/html", "<html><body>It works!</body></html>"), true},
		{"zipped, not asked", text(200, "text/plain", zipped.String(), "Content-Encoding", "gzip"), false},
		{"zipped, not said", text(200, "text/plain", zipped.String()), true},
		{"5 MB", text(200, "text/plain", metricsPage(1)+strings.Repeat("other_metric{label=\"value\"} 1\n", 5<<20/30)), false},
		{"20 MB", text(200, "text/plain", strings.Repeat("other_metric{label=\"value\"} 1\n", 20<<20/30)+metricsPage(1)), true},
		{"cut", func(c *call) { c.write(head(200, "Content-Length", "100000") + metricsPage(1)); c.close() }, true},
		{"renamed", text(200, "text/plain", strings.ReplaceAll(metricsPage(1), "vllm:", "engine_")), true},
		{"nonsense", text(200, "text/plain", strings.ReplaceAll(metricsPage(1), " 0\n", " many\n")), true},
		{"NaN", text(200, "text/plain", strings.ReplaceAll(metricsPage(1), " 0\n", " NaN\n")), false},
		{"infinite", text(200, "text/plain", strings.ReplaceAll(metricsPage(1), " 0\n", " +Inf\n")), false},
		{"negative", text(200, "text/plain", strings.ReplaceAll(metricsPage(1), " 0\n", " -5\n")), false},
		{"counters that fall", func(c *call) {
			page := strings.ReplaceAll(metricsPage(1), " 1000\n", fmt.Sprintf(" %d\n", falling.Add(-1000)))
			c.answer(200, page, "Content-Type", "text/plain")
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			hold := newGate()
			list := engines(t, 2, reply)
			g := start(t, nil, list...)
			var read [2]atomic.Int64
			for i, e := range list {
				e.probe("/metrics", func(c *call) {
					read[i].Add(1)
					tt.page(c)
				})
			}
			await(t, "the pages to be read", func() error {
				for i := range read {
					if read[i].Load() < 2 && !tt.stale { // the first of two was taken in
						return fmt.Errorf("page %d was read %d times", i, read[i].Load())
					}
				}
				for _, r := range g.model().Replicas {
					if tt.stale && (r.ScrapeAge == nil || *r.ScrapeAge < 500) {
						return fmt.Errorf("replica %d shows no age", r.Index)
					}
				}
				return nil
			})
			for i := range 8 {
				a := g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", fmt.Sprint("session-", i))
				if a.status != 200 {
					t.Errorf("session %d: %d %s", i, a.status, a.body)
				}
			}
			for _, r := range g.model().Replicas {
				if r.State != "ready" || r.LiveConversations < 3 {
					t.Errorf("replica %d is %s with %d conversations", r.Index, r.State, r.LiveConversations)
				}
			}
			// And by what is in flight.
			for _, e := range list {
				e.on(hold.hold)
			}
			done := make(chan answer, 8)
			for i := range 8 {
				go func() {
					a, err := g.ask(t.Context(), chat.path, chat.request(fmt.Sprint("unbound ", i), true, ""), "X-Session-Id", fmt.Sprint("more-", i))
					if err != nil {
						t.Error(err)
					}
					done <- a
				}()
			}
			for range 8 {
				receive(t, "the requests", hold.arrived)
			}
			close(hold.open)
			var answers []answer
			for range 8 {
				answers = append(answers, receive(t, "an answer", done))
			}
			if got := spread(answers); !maps.Equal(got, map[string]int{"0": 4, "1": 4}) {
				t.Errorf("went to %v", got)
			}
		})
	}
}
