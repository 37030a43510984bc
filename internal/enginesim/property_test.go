package enginesim

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// checkBlocks fails when a rank's blocks are not all accounted for.
func checkBlocks(t *rapid.T, r *Rank) {
	t.Helper()
	p := r.pool
	refs := make([]int32, len(p.blocks))
	for _, q := range r.running {
		for _, id := range q.blocks {
			refs[id]++
		}
	}
	for _, q := range r.waiting {
		if len(q.blocks) != 0 {
			t.Fatalf("a waiting request holds %d blocks", len(q.blocks))
		}
	}
	free := p.freeList()
	if len(free) != p.free {
		t.Fatalf("the free list has %d blocks, counted %d", len(free), p.free)
	}
	onList := make(map[blockID]bool)
	for _, id := range free {
		onList[id] = true
	}
	for id := blockID(1); int(id) < len(p.blocks); id++ {
		b := p.blocks[id]
		if b.refs != refs[id] {
			t.Fatalf("block %d has %d references, running requests hold it %d times", id, b.refs, refs[id])
		}
		if onList[id] != (b.refs == 0) {
			t.Fatalf("block %d has %d references, on the free list: %v", id, b.refs, onList[id])
		}
	}
	found := 0
	for at, id := range p.buckets {
		for ; id != nullBlock; id = p.blocks[id].chain {
			if b := p.blocks[id]; !b.hashed || p.bucket(b.hash) != &p.buckets[at] {
				t.Fatalf("block %d stands in a bucket that is not its own", id)
			}
			found++
		}
	}
	hashed := 0
	for _, b := range p.blocks {
		if b.hashed {
			hashed++
		}
	}
	if found != hashed {
		t.Fatalf("%d blocks have content, %d can be found", hashed, found)
	}
}

// operation is one thing that a driver does to a rank.
type operation struct {
	Add   *Sequence
	Abort uint64
	Reset bool // else a step begins or ends
}

func drawOperations(t *rapid.T, modelLen int) []operation {
	// Few different tokens and lengths make prompts share beginnings.
	var ops []operation
	n := rapid.IntRange(1, 60).Draw(t, "operations")
	for i := range n {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0, 1, 2:
			text := rapid.SliceOfN(rapid.SampledFrom([]Token{1, 1, 1, 2}), 1, modelLen-1)
			output := rapid.SliceOfN(rapid.SampledFrom([]Token{1, 2}), 1, modelLen)
			ops = append(ops, operation{Add: &Sequence{
				ID: uint64(i + 1), Prompt: text.Draw(t, "prompt"), Output: output.Draw(t, "output"),
				Reason: ReasonStop, Salt: rapid.SampledFrom([]string{"", "", "s"}).Draw(t, "salt"),
			}})
		case 3:
			ops = append(ops, operation{Abort: uint64(rapid.IntRange(1, n).Draw(t, "abort"))})
		case 4:
			ops = append(ops, operation{Reset: rapid.Bool().Draw(t, "reset")})
		default:
			ops = append(ops, operation{})
		}
	}
	return ops
}

func TestRankProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := smallParams(0)
		p.BlockTokens = rapid.IntRange(2, 5).Draw(t, "block")
		p.KVTokens = p.BlockTokens * rapid.IntRange(2, 13).Draw(t, "blocks")
		p.TokenBudget = rapid.IntRange(1, 20).Draw(t, "budget")
		p.MaxSequences = rapid.IntRange(1, 5).Draw(t, "sequences")
		p.ReserveFullPrompt = rapid.Bool().Draw(t, "reserve")
		p.KVBytesPerToken = 1 << 20
		p.HostKVGiB = float64(p.BlockTokens*rapid.IntRange(0, 20).Draw(t, "host")) / 1024
		ops := drawOperations(t, p.ModelLen())

		trace := runOperations(t, p, ops, false)
		if diff := cmp.Diff(trace, runOperations(t, p, ops, false)); diff != "" {
			t.Fatalf("equal inputs gave different outputs:\n%s", diff)
		}
		if diff := cmp.Diff(trace, runOperations(t, p, ops, true)); diff != "" {
			t.Fatalf("a prompt that did not fit is not looked at soon enough again:\n%s", diff)
		}
	})
}

// runOperations drives a rank, checks what must always hold, lets it finish, and
// returns what happened. With lookAlways, a prompt that did not fit is looked at
// again in every step.
func runOperations(t *rapid.T, p Params, ops []operation, lookAlways bool) []string {
	r := NewRank(p)
	var trace []string
	type progress struct {
		seq    *Sequence
		tokens int
	}
	living := make(map[uint64]*progress)
	inStep := false
	computed, owed, aborts := 0, 0, 0 // tokens
	step := func() {
		if !inStep {
			for _, q := range r.waiting {
				if lookAlways {
					q.fitsNotBefore = 0
				}
			}
			took, busy := r.Begin()
			trace = append(trace, fmt.Sprint("begin ", took, busy))
			scheduled := 0
			for _, c := range r.batch {
				scheduled += c.tokens
			}
			computed += scheduled
			if busy != (len(living) > 0) || busy != (scheduled > 0) {
				t.Fatalf("busy %v with %d sequences and %d tokens in the step", busy, len(living), scheduled)
			}
			if scheduled > p.TokenBudget || len(r.running) > p.MaxSequences {
				t.Fatalf("%d tokens of a budget of %d, %d running of %d",
					scheduled, p.TokenBudget, len(r.running), p.MaxSequences)
			}
			inStep = busy
			return
		}
		inStep = false
		for _, e := range r.End() {
			trace = append(trace, fmt.Sprint(e))
			at := living[e.ID]
			if at == nil {
				t.Fatalf("%+v for a sequence that does not live", e)
			}
			at.tokens += e.Tokens
			prompt := len(at.seq.Prompt)
			if e.First != (at.tokens == 1 && e.Tokens == 1) {
				t.Fatalf("%+v is token %d", e, at.tokens)
			}
			if e.Cached%p.BlockTokens != 0 || e.Cached > (prompt-1)/p.BlockTokens*p.BlockTokens {
				t.Fatalf("%d cached of a prompt of %d", e.Cached, prompt)
			}
			if full := min(len(at.seq.Output), p.ModelLen()-prompt); e.Done != (at.tokens == full) {
				t.Fatalf("%+v after %d tokens of %d", e, at.tokens, full)
			}
			if e.First {
				owed += prompt - e.Cached
			} else {
				owed += e.Tokens
			}
			if e.Done {
				delete(living, e.ID)
			}
		}
	}
	for _, op := range ops {
		switch {
		case op.Add != nil:
			if err := r.Add(op.Add); err != nil {
				t.Fatal(err)
			}
			living[op.Add.ID] = &progress{seq: op.Add}
		case op.Abort != 0:
			_, lives := living[op.Abort]
			if r.Abort(op.Abort) != lives {
				t.Fatalf("abort of %d, which lives: %v", op.Abort, lives)
			}
			if lives {
				aborts++
			}
			delete(living, op.Abort)
		case op.Reset:
			trace = append(trace, fmt.Sprint("reset ", r.Reset()))
		default:
			step()
		}
		checkBlocks(t, r)
	}
	for i := 0; len(living) > 0 || inStep; i++ {
		if i > 100_000 {
			t.Fatalf("%d sequences never finish", len(living))
		}
		step()
		checkBlocks(t, r)
	}
	stats := r.Stats()
	if stats.Running != 0 || stats.Waiting != 0 || stats.KVUsed != 0 {
		t.Fatalf("at the end: %+v", stats)
	}
	if stats.PromptTokens > stats.PrefixQueries || stats.CachedTokens > stats.PrefixHits+stats.HostHits {
		t.Fatalf("more was computed than was admitted: %+v", stats)
	}
	// Tokens asked for are those found and those computed; a token's own state is
	// computed in the step that makes the next one.
	if again := computed - owed; again < 0 || again > 0 && aborts == 0 && stats.Preemptions == 0 {
		t.Fatalf("%d tokens computed, the answers owe %d, with %d aborts: %+v", computed, owed, aborts, stats)
	}
	if stats.PrefixHits+stats.HostHits > stats.PrefixQueries {
		t.Fatalf("more was found than asked for: %+v", stats)
	}
	return append(trace, fmt.Sprint(stats))
}
