package bench

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Events come by time, and those of one moment in the order of their scheduling.
func TestEventsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q events
		type scheduled struct{ at, n int }
		var want, got []scheduled
		n := 0
		take := func() {
			e := q.take()
			e.do()
			if last := got[len(got)-1]; time.Duration(last.at) != e.at {
				t.Fatalf("event of %d came at %d", last.at, e.at)
			}
		}
		for _, at := range rapid.SliceOf(rapid.IntRange(-3, 9)).Draw(t, "times; negative takes one") {
			if at < 0 {
				if len(q.heap) > 0 {
					slices.SortStableFunc(want, func(a, b scheduled) int { return a.at - b.at })
					take()
					if got[len(got)-1] != want[0] {
						t.Fatalf("got %v, want %v", got[len(got)-1], want[0])
					}
					want = want[1:]
				}
				continue
			}
			e := scheduled{at, n}
			n++
			want = append(want, e)
			q.add(time.Duration(at), func() { got = append(got, e) })
		}
	})
}
