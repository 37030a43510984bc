package bench

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/bench/results"
	"lmwarden/internal/routing"
)

func TestRequests(t *testing.T) {
	p := func(n int) *int { return &n }
	s := func(text string) *string { return &text }
	late := turn(1, 2, 1, 7, 1, 2, 64, 3, routing.Placed)
	late.Token += 500 * time.Millisecond
	cut := turn(1<<60, 0, 2, 3, 1, 0, -1, 1, routing.Spilled)
	cut.End, cut.Parent, cut.Output, cut.Prompt = Cut, 1, -1, -1
	failed := turn(0, 1, 0, 5, 0, 1, -1, -1, "")
	failed.End, failed.First, failed.Token, failed.Error, failed.Prompt, failed.Output = Failed, -1, -1, "refused", -1, -1

	got := observation(late, cut, failed).Requests("affinity", 8, 3)
	want := []results.Request{
		{
			Arm: "affinity", Sessions: 8, Seed: 3, Client: 0, Session: s("1000000000000000"), Parent: s("0000000000000001"), Turn: p(2),
			SentS: 3, TTFB: f(1), TTFT: f(1), Replica: p(1), Decision: s("spilled"), End: results.Cut,
		},
		{Arm: "affinity", Sessions: 8, Seed: 3, Client: 1, SentS: 5, End: results.Failed, Error: s("refused")},
		{
			Arm: "affinity", Sessions: 8, Seed: 3, Client: 2, Session: s("0000000000000001"), Turn: p(1),
			SentS: 7, TTFB: f(1), TTFT: f(1.5), ITL: f(50), E2E: f(2),
			PromptTokens: p(100), CachedTokens: p(64), OutputTokens: p(11), Replica: p(3), Decision: s("placed"), End: results.Finished,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// The requests of a simulation are those that its figures were made of, in the
// same order whichever run ended first.
func TestSimulationHandsOverItsRequests(t *testing.T) {
	simulate := func() *results.Results {
		s := published(t, 3, "off", "affinity")
		s.Protocol.Sessions, s.Protocol.Step = []int{2, 3}, 20*time.Second
		r, err := Simulate(context.Background(), s, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := simulate()
	type place struct {
		arm      string
		sessions int
		seed     uint64
	}
	finished := map[place]float64{}
	for _, q := range r.Requests {
		if q.End == results.Finished {
			finished[place{q.Arm, q.Sessions, q.Seed}]++
		}
	}
	for _, arm := range r.Arms {
		for _, step := range arm.Steps {
			for _, run := range step.Runs {
				if n := finished[place{arm.Name, step.Sessions, run.Seed}]; n == 0 || n != *run.Turns {
					t.Errorf("%s, %d sessions, seed %d: %v requests finished, the figure says %v", arm.Name, step.Sessions, run.Seed, n, *run.Turns)
				}
			}
		}
	}
	if again := simulate(); !cmp.Equal(r.Requests, again.Requests) {
		t.Error("equal simulations handed over different requests")
	}
}
