package routing_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "lmwarden/internal/routing"
)

func TestTheShadowIsCounted(t *testing.T) {
	b := newBoxWith(t, Options{Policy: "affinity", Shadow: "patience", Replicas: separate(2)})
	for i := range 2 {
		b.core.Observe(b.now, i, Load{Capacity: 10_000, Epoch: 1})
	}
	b.open(sized(0, 9000))
	b.open(sized(1, 9000))
	b.open(sized(2, 9000)) // patience would hold it
	r := sized(3, 9000)
	r.Pin = 1
	b.open(r)
	b.set(0, Down)
	b.set(1, Down)
	b.refuse(sized(4, 100))
	want := &ShadowView{Policy: "patience", Requests: 4, Same: 2, Held: 1, Refused: 1, Reasons: map[Reason]int64{Placed: 2}}
	if diff := cmp.Diff(want, b.view().Shadow); diff != "" {
		t.Errorf("shadow (-want +got):\n%s", diff)
	}

	if err := b.core.SetShadow("patients"); err == nil {
		t.Error("an unknown policy is accepted")
	}
	if err := b.core.SetShadow("session-hash"); err != nil || b.view().Shadow.Requests != 0 {
		t.Errorf("%v; %+v, want another shadow that counts from 0", err, b.view().Shadow)
	}
	if err := b.core.SetShadow(""); err != nil || b.view().Shadow != nil {
		t.Errorf("%v; %+v, want no shadow", err, b.view().Shadow)
	}
}

// Another replica is not the same.
func TestTheShadowMayDisagree(t *testing.T) {
	b := newBoxWith(t, Options{Policy: "affinity", Shadow: "round-robin", Replicas: separate(2)})
	b.serve(turn(0))
	for range 4 {
		b.serve(turn(0))
	}
	want := &ShadowView{Policy: "round-robin", Requests: 5, Same: 1, Reasons: map[Reason]int64{Placed: 1, Moved: 4}}
	if diff := cmp.Diff(want, b.view().Shadow); diff != "" {
		t.Errorf("shadow (-want +got):\n%s", diff)
	}
}

// Whatever shadow a core has, it decides as without one.
func TestTheShadowChangesNothing(t *testing.T) {
	for _, policy := range Policies() {
		for _, other := range Policies() {
			with := newBoxWith(t, Options{Policy: policy, Shadow: other, Replicas: ranks(1, 2)})
			without := newBoxWith(t, Options{Policy: policy, Replicas: ranks(1, 2)})
			rng := rand.New(rand.NewPCG(1, 2))
			now, open := with.now, []RequestID(nil)
			both := func(do func(c *Core) any) {
				t.Helper()
				if diff := cmp.Diff(do(without.core), do(with.core), nanEqual()); diff != "" {
					t.Fatalf("%s beside %s decides otherwise (-without +with):\n%s", policy, other, diff)
				}
			}
			for i := range 3 {
				both(func(c *Core) any { c.Observe(now, i, Load{Capacity: 20_000, Epoch: 1}); return nil })
			}
			for n := range 200 {
				now = now.Add(time.Duration(rng.IntN(1000)) * time.Millisecond)
				if rng.IntN(2) == 0 {
					r := sized(rng.IntN(12), 500+rng.Int64N(6000))
					r.ID = RequestID(n + 1)
					open = append(open, r.ID)
					both(func(c *Core) any { return c.Arrive(now, r) })
				} else if len(open) > 0 {
					id := open[0]
					open = open[1:]
					prompt := 500 + rng.Int64N(6000)
					both(func(c *Core) any { return c.Finish(now, id, complete(prompt, prompt/2, 50)) })
				}
				both(func(c *Core) any { return c.Tick(now) })
			}
		}
	}
}

// The shadow writes no receipt.
func TestTheShadowIsCheap(t *testing.T) {
	allocs := func(shadow string) float64 {
		b := newBoxWith(t, Options{Policy: "affinity", Shadow: shadow, Replicas: separate(64)})
		return testing.AllocsPerRun(100, func() { b.serve(unbound()) })
	}
	if without, with := allocs(""), allocs("least-inflight"); with > without+1 {
		t.Errorf("a request allocates %v times, and %v with a shadow", without, with)
	}
}
