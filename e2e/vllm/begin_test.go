package vllm

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// vLLM announces a response before it has read its prompt. That waits for the answer
// itself, since another replica can answer until the client has it, and is not what
// the gateway shows as the time to the first byte and learns about reading.
func TestAnAnswerBeginsWhenItsPromptIsRead(t *testing.T) {
	e := running(t)
	g := policyGateway(t, e, "affinity")
	for _, path := range []string{chatPath, messagesPath, responsesPath} {
		r := route{path, true}
		e.emptyCache(t)
		before := ttfb(t, g)
		c := send(t, g.URL, r, r.body(talk(text("begin "+path, 7000)), 8), session("begin "+path))
		a := c.wait()
		if !a.finished() {
			t.Fatalf("%s: %s", r, a)
		}
		first, took := a.first.Sub(a.sent), a.end.Sub(a.sent)
		var shown time.Duration
		wardentest.WaitFor(t, 2*time.Second, "the request's numbers", func() error {
			if shown = ttfb(t, g) - before; shown == 0 {
				return fmt.Errorf("no request more")
			}
			return nil
		})
		t.Logf("%s: first byte after %v, the end after %v, shown %v", r, first, took, shown)
		// To read 7,000 tokens takes longer than to write 8.
		if shown < took/2 || shown > took {
			t.Errorf("%s: shown is %v of %v", r, shown, took)
		}
		if first < shown || first > took {
			t.Errorf("%s: the client had its first byte after %v, shown is %v", r, first, shown)
		}
	}
}

// ttfb is the sum of all times to a first byte.
func ttfb(t *testing.T, g *wardentest.Gateway) time.Duration {
	t.Helper()
	for line := range strings.Lines(g.Page(t, "/metrics")) {
		if series, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(series, "warden_ttfb_seconds_sum") {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(seconds * float64(time.Second))
		}
	}
	return 0
}
