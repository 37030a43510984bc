package bench

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPausesAreThoseOfRecordedSessions(t *testing.T) {
	trace, err := ReadTrace([]string{"testdata/weka.jsonl"}, TraceOptions{MaxThink: 20 * time.Second, BytesPerToken: 4})
	if err != nil {
		t.Fatal(err)
	}
	w := PublishedWorkload()
	w.Agents = 2
	paced, err := w.PacedBy(trace)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[time.Duration]bool{}
	for n := range 50 {
		place := Place{Seed: 3, Step: 1, N: n}
		plain, _ := w.Session(place)
		s, _ := paced.Session(place)
		place.Arm = 1
		other, _ := paced.Session(place)
		for i := range s.Turns {
			turn := s.Turn(i)
			if i == 0 && turn.Think != 0 || turn.Think != other.Turn(i).Think || turn.Think != s.Turn(i).Think {
				t.Fatalf("turn %d thinks %v, in another arm %v", i, turn.Think, other.Turn(i).Think)
			}
			if i > 0 {
				seen[turn.Think] = true
			}
			if turn.Answer != plain.Turn(i).Answer || len(turn.Agents) != len(plain.Turn(i).Agents) {
				t.Fatalf("turn %d is another one than without pauses", i)
			}
			for _, a := range turn.Agents {
				seen[a.Turn(a.Turns-1).Think] = true
			}
		}
	}
	for d := range seen {
		if !slices.Contains(paced.pauses, d) {
			t.Errorf("a pause of %v was never recorded", d)
		}
	}
	if len(seen) < 5 {
		t.Errorf("only %d different pauses", len(seen))
	}
}

func TestATraceWithoutASecondTurnHasNoPauses(t *testing.T) {
	trace := &Trace{name: "one.jsonl", sessions: []traceSession{{turns: make([]traceTurn, 1)}}}
	if _, err := PublishedWorkload().PacedBy(trace); err == nil || !strings.Contains(err.Error(), "one.jsonl") {
		t.Errorf("%v", err)
	}
}
