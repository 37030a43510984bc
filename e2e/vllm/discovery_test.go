package vllm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// rankOnResponses reports whether a version sends a request on /v1/responses to
// the rank that is asked for.
func rankOnResponses(version string) bool {
	var major, minor int
	fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major > 0 || minor >= 33
}

func TestDiscovery(t *testing.T) {
	e := running(t)
	g := warden.Gateway(t, []string{e.url})
	m := g.Model(t, modelName)

	if len(m.Servers) != 1 || m.Servers[0].Kind != "vllm" || m.Servers[0].Version != e.version(t) {
		t.Errorf("servers %+v, want one vLLM %s", m.Servers, e.version(t))
	}
	if want := ranks * rankBlocks * blockSize; m.WorkingSet.Capacity == nil || *m.WorkingSet.Capacity != int64(want) {
		t.Errorf("capacity %v, want %d tokens", m.WorkingSet.Capacity, want)
	}
	if page, want := g.Page(t, "/models/"+modelName), fmt.Sprintf("blocks of %d", blockSize); !strings.Contains(page, want) {
		t.Errorf("the model's page does not say %q", want)
	}
	if len(m.Replicas) != ranks {
		t.Fatalf("%d replicas, want %d", len(m.Replicas), ranks)
	}
	for i, r := range m.Replicas {
		if r.Rank == nil || *r.Rank != i || r.State != "ready" || r.Epoch == nil || *r.Epoch != 1 {
			t.Errorf("replica %d: %+v, want rank %d, ready, epoch 1", i, r, i)
		}
	}
}

// expectPrompts asserts that the prompts since before were computed where they
// should: want has the tokens of each rank.
func expectPrompts(t *testing.T, e *engine, before, want [ranks]float64) {
	t.Helper()
	for rank := range want {
		want[rank] += before[rank]
	}
	wardentest.WaitFor(t, 10*time.Second, "the engine's prompt counters", func() error {
		if got := e.metric(t, "vllm:prompt_tokens_total"); got != want {
			return fmt.Errorf("prompt tokens by rank are %v, want %v", got, want)
		}
		return nil
	})
}

// Where the engine honours the rank, a conversation stays on one, and another
// conversation has the other.
func TestConversationsStayOnTheirRank(t *testing.T) {
	e := running(t)
	routes := []route{{chatPath, false}, {chatPath, true}, {completionsPath, false}, {completionsPath, true}, {messagesPath, false}, {messagesPath, true}}
	if rankOnResponses(e.version(t)) {
		routes = append(routes, route{responsesPath, false}, route{responsesPath, true})
	}
	for _, r := range routes {
		t.Run(strings.TrimPrefix(r.String(), "/v1/"), func(t *testing.T) {
			g := warden.Gateway(t, []string{e.url})
			var homes []string
			for c := range 2 {
				texts := []string{fmt.Sprintf("%s: conversation %d opens with this. ", r, c)}
				for turn := range 4 {
					before := e.metric(t, "vllm:prompt_tokens_total")
					a := ask(t, g.URL, r, r.body(talk(texts...), 4), session(fmt.Sprint(c)))
					if turn == 0 {
						homes = append(homes, a.replica())
					}
					reason := "stayed"
					if turn == 0 {
						reason = "placed"
					}
					if a.reason() != reason || a.replica() != homes[c] {
						t.Errorf("conversation %d, turn %d: %s on %s, want %s on %s", c, turn, a.reason(), a.replica(), reason, homes[c])
					}
					var want [ranks]float64
					tokens, _ := a.prompt()
					want[rankOf(t, homes[c])] = float64(tokens)
					expectPrompts(t, e, before, want)
					texts = append(texts, "An answer. ", fmt.Sprintf("Question %d. ", turn+2))
				}
			}
			if homes[0] == homes[1] {
				t.Errorf("both conversations are on replica %s", homes[0])
			}

			for replica := range ranks {
				before := e.metric(t, "vllm:prompt_tokens_total")
				a := ask(t, g.URL, r, r.body(talk("pinned"), 4), pin(replica))
				if a.reason() != "pinned" || a.replica() != fmt.Sprint(replica) {
					t.Errorf("a request for replica %d: %s on %s", replica, a.reason(), a.replica())
				}
				var want [ranks]float64
				tokens, _ := a.prompt()
				want[replica] = float64(tokens)
				expectPrompts(t, e, before, want)
			}
		})
	}
}

// rankOf reads the header X-Warden-Replica: one server's replicas are its ranks.
func rankOf(t *testing.T, replica string) int {
	t.Helper()
	for rank := range ranks {
		if replica == fmt.Sprint(rank) {
			return rank
		}
	}
	t.Fatalf("X-Warden-Replica is %q, want a rank below %d", replica, ranks)
	return 0
}

// Where the engine ignores the rank, nothing may be shown as sticky.
func TestResponsesAreTheEnginesChoice(t *testing.T) {
	e := running(t)
	if v := e.version(t); rankOnResponses(v) {
		t.Skipf("vLLM %s honours the rank on %s", v, responsesPath)
	}
	g := warden.Gateway(t, []string{e.url})
	before := e.metric(t, "vllm:prompt_tokens_total")
	var sum float64
	texts := []string{"a conversation opens with this"}
	for turn := range 4 {
		r := route{responsesPath, turn%2 == 1}
		a := ask(t, g.URL, r, r.body(talk(texts...), 4), session("one"))
		if a.reason() != "engine" || a.replica() != "engine" {
			t.Errorf("turn %d: %s on %s, want engine on engine", turn, a.reason(), a.replica())
		}
		tokens, _ := a.prompt()
		sum += float64(tokens)
		texts = append(texts, "an answer", fmt.Sprintf("question %d", turn+2))
	}
	after := e.metric(t, "vllm:prompt_tokens_total")
	var total float64
	for rank := range after {
		rose := after[rank] - before[rank]
		if rose == 0 {
			t.Errorf("rank %d computed nothing: the engine did not choose", rank)
		}
		total += rose
	}
	if total != sum {
		t.Errorf("the engine counted %v prompt tokens, its answers %v", total, sum)
	}

	m := g.Model(t, modelName)
	if m.Sticky != nil {
		t.Errorf("%v %% are shown as sticky, want nothing", *m.Sticky)
	}
	for _, r := range m.Replicas {
		if r.Placed+r.Sticky != 0 {
			t.Errorf("replica %d shows %d placed and %d sticky, want none", r.Index, r.Placed, r.Sticky)
		}
	}
	if !slices.Equal(m.Servers[0].Blind, []string{responsesPath}) {
		t.Errorf("the rank is said to be ignored on %v, want %s", m.Servers[0].Blind, responsesPath)
	}
}
