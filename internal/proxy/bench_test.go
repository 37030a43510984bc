package proxy

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/routing"
)

// BenchmarkAgainstReverseProxy runs requests through the gateway and through a
// plain httputil.ReverseProxy that reads the body first, in turns, in front of
// the same engine. "x" is the ratio of their times less the time of the same
// request without any proxy.
func BenchmarkAgainstReverseProxy(b *testing.B) {
	prompt := func(size int) string {
		return `{"model":"claude-x","max_tokens":64,"messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}]}`
	}
	delta := event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}`)
	events := scripts["/v1/messages"].events
	stream := append(append(events[:2:2], strings.Split(strings.Repeat(delta+"|", 50), "|")[:50]...), events[3:]...)
	cases := []struct {
		name, body string
		engine     http.HandlerFunc
	}{
		{"2kB", prompt(2 << 10), answered(200, messagesAnswer)},
		{"300kB", prompt(300 << 10), answered(200, messagesAnswer)},
		{"50chunks", prompt(2 << 10), streamed(stream...)},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			engine := fakeEngine(b, c.engine)
			u, _ := url.Parse(engine)
			m := &fakeModel{name: "m", served: "claude-x", reason: routing.Placed, bases: []*url.URL{u}}
			g := serve(b, Limits{}, m)
			g.recorder = nil
			g.logger = slog.New(slog.NewTextHandler(io.Discard, nil))
			targets := []string{engine, plainProxy(b, u), g.url}
			var spent [3]time.Duration
			for i := 0; b.Loop(); i++ {
				for k := range targets {
					k = (k + i) % len(targets)
					start := time.Now()
					res, err := g.client.Post(targets[k]+"/v1/messages", "application/json", strings.NewReader(c.body))
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, res.Body); err != nil {
						b.Fatal(err)
					}
					res.Body.Close()
					spent[k] += time.Since(start)
				}
			}
			perOp := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N) }
			b.ReportMetric(perOp(spent[1]-spent[0]), "plain-us")
			b.ReportMetric(perOp(spent[2]-spent[0]), "warden-us")
			b.ReportMetric(float64(spent[2]-spent[0])/float64(spent[1]-spent[0]), "x")
			m.leases, m.requests = nil, nil
		})
	}
}

func plainProxy(b *testing.B, to *url.URL) string {
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
		Transport: transport,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	b.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	return s.URL
}
