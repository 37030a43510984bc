package enginesim

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Whoever follows the events knows at every moment what the cache holds, and from the
// tokens and parents of stored blocks what their names stand for.
func TestKVEventsTellWhatIsCached(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := smallParams(rapid.IntRange(2, 13).Draw(t, "blocks"))
		p.TokenBudget = rapid.IntRange(1, 20).Draw(t, "budget")
		r := NewRank(p)
		r.RecordKVEvents()
		told := map[uint64]int{} // copies by name
		follow := func() {
			for _, e := range r.KVEvents() {
				switch e.Kind {
				case BlocksCleared:
					clear(told)
				case BlocksRemoved:
					told[e.Blocks[0]]--
				case BlocksStored:
					parent := blockHash(e.Parent)
					for i, name := range e.Blocks {
						tokens := e.Tokens[i*p.BlockTokens:][:p.BlockTokens]
						if h := hashBlock(parent, tokens); uint64(h) != name && (i > 0 || e.Parent != 0) {
							t.Fatalf("block %d of %+v has another name", i, e)
						}
						parent = blockHash(name)
						told[name]++
					}
				}
			}
			held := map[uint64]int{}
			for _, b := range r.pool.blocks {
				if b.hashed {
					held[uint64(b.hash)]++
				}
			}
			maps.DeleteFunc(told, func(_ uint64, n int) bool { return n == 0 })
			if d := cmp.Diff(held, told); d != "" {
				t.Fatalf("held and told differ: %s", d)
			}
			if got := r.CachedTokens(); got != len(held)*p.BlockTokens {
				t.Fatalf("%d tokens cached in %d different blocks", got, len(held))
			}
		}
		inStep := false
		for _, op := range drawOperations(t, p.ModelLen()) {
			switch {
			case op.Add != nil:
				if err := r.Add(op.Add); err != nil {
					t.Fatal(err)
				}
			case op.Abort != 0:
				r.Abort(op.Abort)
			case op.Reset:
				r.Reset()
			case inStep:
				r.End()
				inStep = false
			default:
				_, inStep = r.Begin()
			}
			follow()
		}
	})
}

func TestKVEventsOfOneStep(t *testing.T) {
	p := smallParams(4)
	r := NewRank(p)
	r.RecordKVEvents()
	run := func(s *Sequence) (events []string) {
		if err := r.Add(s); err != nil {
			t.Fatal(err)
		}
		for _, busy := r.Begin(); busy; _, busy = r.Begin() {
			r.End()
		}
		for _, e := range r.KVEvents() {
			events = append(events, fmt.Sprint(e.Kind, len(e.Blocks), len(e.Tokens), e.Parent != 0))
		}
		return events
	}
	first := run(seq(1, 10, 3)) // blocks 1 and 2 of the prompt, 3 with the answer
	second := run(seq(2, 9, 1)) // one block is free: a second and a third are taken
	want := [][]string{
		{"0 2 8 false", "0 1 4 true"},
		{"1 1 0 false", "1 1 0 false", "0 2 8 false"},
	}
	if !slices.EqualFunc(want, [][]string{first, second}, slices.Equal) {
		t.Errorf("got %q, want %q", [][]string{first, second}, want)
	}
	if quiet := NewRank(p); quiet.KVEvents() != nil {
		t.Error("events that nobody asked for")
	}
}
