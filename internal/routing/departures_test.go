package routing_test

import (
	"testing"
	"time"

	. "lmwarden/internal/routing"
)

// Of more conversations that left within seconds than are kept in mind, the later
// ones teach how long they were away. The others teach nothing: those of them that
// stay away could not.
func TestGapsAreLearnedOfTheLatestDepartures(t *testing.T) {
	const many = 6000
	b := newBox(t, "affinity", separate(2))
	for i := range many {
		b.serve(turn(i))
		b.now = b.now.Add(time.Millisecond)
	}
	b.serve(turn(0))
	if gaps := b.core.Learned().Gaps; len(gaps) != 0 {
		t.Errorf("learned %v of a conversation that left %d turns ago", gaps, many)
	}
	b.serve(turn(many - 1))
	if gaps := b.core.Learned().Gaps; len(gaps) != 1 || gaps[0] != 0.001 {
		t.Errorf("learned %v of a conversation that left 1 ms ago", gaps)
	}
	b.now = b.now.Add(time.Minute)
	b.core.Tick(b.now)
	// A window of those that stayed away, longer than any place is kept.
	for _, gap := range b.core.Learned().Gaps {
		if gap <= 10 {
			t.Fatalf("a gap of %v s of one that stayed away", gap)
		}
	}
}

// A row that a forgotten conversation leaves to another is not taken for the other's
// departure.
func TestAForgottenConversationHasNoDeparture(t *testing.T) {
	b := newBoxWith(t, Options{Policy: "affinity", Replicas: separate(1), MaxConversations: 1})
	b.serve(turn(0))
	b.now = b.now.Add(time.Second)
	id, _ := b.open(turn(1)) // in the row of the first
	b.now = b.now.Add(time.Minute)
	b.core.Tick(b.now)
	if gaps := b.core.Learned().Gaps; len(gaps) != 0 {
		t.Errorf("learned %v of a conversation that is forgotten", gaps)
	}
	b.finish(id, complete(100, 0, 10))
}
