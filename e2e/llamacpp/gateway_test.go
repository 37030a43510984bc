package llamacpp

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

const chatPath = "/v1/chat/completions"

func TestDiscovery(t *testing.T) {
	g, _ := behind(t, 2)
	m := g.Model(t, modelName)
	if len(m.Servers) != 2 || m.Servers[0].Kind != "llama.cpp" || m.Servers[0].Version == "" || len(m.Replicas) != 2 {
		t.Errorf("servers %+v with %d replicas, want two llama.cpp", m.Servers, len(m.Replicas))
	}
	if want := int64(2 * slots * slotContext); m.WorkingSet.Capacity == nil || *m.WorkingSet.Capacity != want {
		t.Errorf("capacity %v, want %d tokens", m.WorkingSet.Capacity, want)
	}
	if page, want := g.Page(t, "/models/"+modelName), fmt.Sprintf("%d slots", slots); !strings.Contains(page, want) {
		t.Errorf("the model's page does not say %q", want)
	}
}

// Conversations stay on their server, where the prompt of the turn before is
// found, and the gateway counts as the engine does.
func TestTurnsAreCachedAndCounted(t *testing.T) {
	for _, path := range []string{chatPath, "/v1/messages", "/v1/responses"} {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s streamed %v", strings.TrimPrefix(path, "/v1/"), streamed), func(t *testing.T) {
				g, _ := behind(t, 2)
				var prompt, cached int64 // of the last turns
				homes := map[string]bool{}
				for c := range 2 {
					session := fmt.Sprintf("conversation-%d", c)
					texts := []string{session + " opens with this. " + strings.Repeat("And goes on. ", 20)}
					var before answer
					for turn := range 4 {
						a := send(t, g.URL, path, session, streamed, 4, texts...)
						<-a.ended
						reason := "stayed"
						if turn == 0 {
							reason = "placed"
							homes[a.replica] = true
						}
						if !a.whole || a.reason != reason {
							t.Fatalf("turn %d: status %d, %s, error %v, want %s:\n%s", turn, a.status, a.reason, a.err, reason, a.body)
						}
						if a.cached < before.prompt || a.cached >= a.prompt {
							t.Errorf("turn %d: %d of %d tokens cached, %d were read before", turn, a.cached, a.prompt, before.prompt)
						}
						before = a.answer
						texts = append(texts, "An answer.", fmt.Sprintf("Turn %d asks for more.", turn+1))
					}
					prompt, cached = prompt+before.prompt, cached+before.cached
				}
				if len(homes) != 2 {
					t.Errorf("homes %v, want both servers", homes)
				}
				wardentest.WaitFor(t, 10*time.Second, "the gateway's counts", func() error {
					var gotPrompt, gotCached int64
					for _, c := range g.Conversations(t) {
						gotPrompt, gotCached = gotPrompt+c.PromptTokens, gotCached+c.CachedTokens
					}
					if gotPrompt != prompt || gotCached != cached {
						return fmt.Errorf("%d of %d tokens cached, the engine told %d of %d", gotCached, gotPrompt, cached, prompt)
					}
					return nil
				})
			})
		}
	}
}

// With both slots of its home taken a turn goes to the other server.
func TestAFullHomeSpills(t *testing.T) {
	g, _ := behind(t, 2)
	first := send(t, g.URL, chatPath, "a", false, 1, "begin")
	<-first.ended
	var open []*stream
	for range slots {
		s := send(t, g.URL, chatPath, "a", true, 5000, "begin")
		<-s.began
		open = append(open, s)
	}
	turn := send(t, g.URL, chatPath, "a", false, 1, "begin")
	<-turn.ended
	for _, s := range open {
		select {
		case <-s.ended:
			t.Fatalf("an answer that was to hold its slot is over: %d bytes, error %v", len(s.body), s.err)
		default:
		}
	}
	if turn.reason != "spilled" || turn.replica == first.replica || !turn.whole {
		t.Errorf("%s to %s with both slots of %s taken, want spilled to the other; error %v", turn.reason, turn.replica, first.replica, turn.err)
	}
}

// A server that is killed ends its answers in an error, and returns in its next
// epoch.
func TestKilledAndRestarted(t *testing.T) {
	g, engines := behind(t, 2)
	first := send(t, g.URL, chatPath, "a", false, 1, "begin")
	<-first.ended
	s := send(t, g.URL, chatPath, "a", true, 5000, "begin")
	<-s.began
	home := int(first.replica[0] - '0')
	engines[home].kill()
	<-s.ended
	if s.whole {
		t.Errorf("an answer that was cut off looks whole: %q", s.body[max(0, len(s.body)-300):])
	}
	elsewhere := send(t, g.URL, chatPath, "a", false, 1, "begin")
	<-elsewhere.ended
	if !elsewhere.whole || elsewhere.replica == first.replica {
		t.Errorf("the next turn: %s to %s, status %d, error %v, want to the other server", elsewhere.reason, elsewhere.replica, elsewhere.status, elsewhere.err)
	}
	// It is back within 40 ms, and its page does not tell one process from the next:
	// that it was gone must be seen.
	wardentest.WaitFor(t, 20*time.Second, "a probe of the server to be refused", func() error {
		if e := g.Model(t, modelName).Servers[home].Error; !strings.Contains(e, "refused") {
			return fmt.Errorf("the page says %q", e)
		}
		return nil
	})
	engines[home].run(t)
	wardentest.WaitFor(t, 20*time.Second, "the server to be used again", func() error {
		r := g.Model(t, modelName).Replicas[home]
		if r.State != "ready" || *r.Epoch != 2 {
			return fmt.Errorf("replica %d is %s in epoch %d, want ready in epoch 2", r.Index, r.State, *r.Epoch)
		}
		return nil
	})
}

// A server that is told to stop with all slots taken leaves its answers without an
// end; the gateway ends them. With the policy affinity none waits for a slot at the
// gateway.
func TestStoppedWithAnswersOpen(t *testing.T) {
	g, engines := behind(t, 1, "--policy", "affinity")
	var open []*stream
	for range slots {
		s := send(t, g.URL, chatPath, "a", true, 7000, "begin")
		<-s.began
		open = append(open, s)
	}
	open = append(open, send(t, g.URL, chatPath, "a", true, 7000, "waits for a slot"))
	wardentest.WaitFor(t, 10*time.Second, "all to be on their way", func() error {
		if n := g.Model(t, modelName).InFlight; n != len(open) {
			return fmt.Errorf("%d in flight, want %d", n, len(open))
		}
		return nil
	})
	stopped := time.Now()
	if err := engines[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for i, s := range open {
		<-s.ended
		took := time.Since(stopped)
		t.Logf("answer %d ended after %.1f s: status %d, %d bytes, error %v", i, took.Seconds(), s.status, len(s.body), s.err)
		if s.whole || took > time.Minute {
			t.Errorf("answer %d took %.1f s and looks whole: %v", i, took.Seconds(), s.whole)
		}
	}
}
