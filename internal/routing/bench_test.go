package routing_test

import (
	"runtime"
	"testing"
	"time"

	. "lmwarden/internal/routing"
)

const million = 1_000_000

// populated is a core of 64 replicas that knows n conversations.
func populated(t testing.TB, policy string, n int) *box {
	b := newBox(t, policy, separate(64))
	for i := range n {
		id, _ := b.open(turn(i))
		b.finish(id, complete(8000, 3500, 256))
	}
	return b
}

// The budget of a decision is 3 µs, and no allocation per replica.
func BenchmarkTurn(bench *testing.B) {
	cases := []struct {
		name string
		next func(i int) Request
	}{
		{"stays", func(i int) Request { return turn(i * 7919 % million) }},
		{"unbound", func(int) Request { return unbound() }},
		{"placed", func(i int) Request { return turn(million + i) }},
	}
	b := populated(bench, "affinity", million)
	i := 0
	for _, c := range cases {
		bench.Run(c.name, func(bench *testing.B) {
			bench.ReportAllocs()
			for range bench.N {
				i++
				r := c.next(i)
				r.ID = RequestID(i)
				b.now = b.now.Add(time.Microsecond)
				b.core.Arrive(b.now, r)
				b.core.Finish(b.now, r.ID, complete(8000, 3500, 256))
			}
		})
	}
}

func BenchmarkView(bench *testing.B) {
	b := populated(bench, "affinity", million)
	bench.ResetTimer()
	for range bench.N {
		b.core.View(b.now)
	}
}

func TestAConversationTakesAtMost400Bytes(t *testing.T) {
	const n = 200_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b := populated(t, "affinity", n)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (after.HeapAlloc - before.HeapAlloc) / n; each > 400 {
		t.Errorf("%d bytes per conversation", each)
	} else {
		t.Logf("%d bytes per conversation", each)
	}
	runtime.KeepAlive(b)
}

func TestADecisionAllocatesNothingPerReplica(t *testing.T) {
	allocs := func(replicas int) float64 {
		b := newBox(t, "affinity", separate(replicas))
		b.serve(turn(0))
		return testing.AllocsPerRun(100, func() {
			b.serve(turn(0))
			b.serve(unbound())
		})
	}
	if few, many := allocs(2), allocs(64); many > few {
		t.Errorf("two requests allocate %v times with 2 replicas and %v with 64", few, many)
	}
}
