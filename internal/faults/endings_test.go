package faults

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/config"
)

// unfinished asserts that a stream which broke behind these events says so: an
// error event of its dialect, no mark of a regular end, a connection that is cut.
func unfinished(t *testing.T, d dialect, a answer, begin string) {
	t.Helper()
	rest, found := strings.CutPrefix(a.body, begin)
	if a.status != 200 || !found {
		t.Errorf("got %d %q, want what the engine sent first: %q", a.status, a.body, begin)
		return
	}
	at := strings.Index(rest, d.errs)
	if at < 0 || strings.Count(rest[at:], "\n\n") != 1 {
		t.Errorf("after the engine's events: %q, want one error event at the end", rest)
	}
	for _, end := range d.ends {
		if strings.Contains(rest, end) {
			t.Errorf("the stream looks finished: %q has %q", rest, end)
		}
	}
	if a.err == nil {
		t.Error("the connection ended cleanly")
	}
}

// A data-parallel server of which one engine dies ends what runs on its other
// ranks at once, with bytes that look like the regular end of an answer.
func TestAnswersThatADyingEngineAbortsAreNotPassedOffAsFinished(t *testing.T) {
	t.Parallel()
	for _, d := range []dialect{chat, completions, messages} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", d.name, stream), func(t *testing.T) {
				t.Parallel()
				const running = 4 // on two ranks
				begin := d.events("one ", "two ")[:3]
				arrived, die := make(chan bool, running), make(chan bool)
				dying := newEngine(t, 2, func(c *call) {
					if stream {
						c.begin()
						c.chunk(strings.Join(begin, ""))
					}
					arrived <- true
					<-die
					if stream {
						c.chunk(strings.Join(d.aborted, ""))
						c.end()
					} else {
						c.answer(200, d.abortedWhole)
					}
				})
				other := newEngine(t, 1, reply)
				g := start(t, nil, dying, other)
				answers := make(chan answer, running)
				for i := range running {
					go func() {
						// Pinned, so that all of them are on the two ranks of the server that dies.
						a, err := g.ask(t.Context(), d.path, d.request(fmt.Sprint("turn ", i), stream, ""),
							"X-Warden-Session", fmt.Sprint(i))
						if err != nil {
							t.Error(err)
						}
						answers <- a
					}()
					if i == 0 {
						// The rest must not run to the third replica, which is as empty.
						g.admin("POST", "/api/models/tiny/replicas/2/drain", "", nil)
					}
				}
				for range running {
					receive(t, "the requests to arrive", arrived)
				}
				g.admin("POST", "/api/models/tiny/replicas/2/resume", "", nil)
				close(die)
				for range running {
					a := receive(t, "an answer", answers)
					if stream {
						unfinished(t, d, a, strings.Join(begin, ""))
					} else if a.status != 200 || a.body != d.whole("one two three") || a.replica() != "2" {
						t.Errorf("got %d from replica %s: %s", a.status, a.replica(), a.body)
					}
				}
				want := map[string]int{"engine_error": running}
				if !stream {
					want = map[string]int{"ok": running}
				}
				g.settled(want)
			})
		}
	}
}

var _ = io.EOF
var _ = time.Now
var _ config.Config
