package enginesim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// smallParams is an engine of few blocks of four tokens, whose steps take 1 ms
// for each token.
func smallParams(usableBlocks int) Params {
	p, _ := Preset("tiny-fast")
	p.BlockTokens, p.KVTokens = 4, 4*(usableBlocks+1)
	p.OverheadMS, p.WeightsMS, p.LinearUSPerToken = 0, 0, 1000
	return p
}

// seq returns a sequence whose tokens no other ID has.
func seq(id uint64, prompt, output int) *Sequence {
	s := &Sequence{ID: id, Reason: ReasonStop}
	for i := range prompt + output {
		s.Prompt = append(s.Prompt, Token(id<<32)+Token(i))
	}
	s.Prompt, s.Output = s.Prompt[:prompt:prompt], s.Prompt[prompt:]
	return s
}

func add(t testing.TB, r *Rank, seqs ...*Sequence) {
	t.Helper()
	for _, s := range seqs {
		if err := r.Add(s); err != nil {
			t.Fatal(err)
		}
	}
}

// part is one sequence's part of a step.
type part struct {
	ID     uint64
	Tokens int
}

// begin plans a step and returns its batch, nil when the rank is idle.
func begin(r *Rank) []part {
	if _, ok := r.Begin(); !ok {
		return nil
	}
	var parts []part
	for _, c := range r.batch {
		parts = append(parts, part{c.req.seq.ID, c.tokens})
	}
	return parts
}

// steps runs up to n steps and returns the batch of each.
func steps(r *Rank, n int) [][]part {
	var batches [][]part
	for range n {
		parts := begin(r)
		if parts == nil {
			break
		}
		batches = append(batches, parts)
		r.End()
	}
	return batches
}

func wantSteps(t testing.TB, got, want [][]part) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps: want -, got +:\n%s", diff)
	}
}

func TestLongPromptIsComputedInChunks(t *testing.T) {
	p := mustPreset(t, "cpu-tiny")
	r := NewRank(p)
	add(t, r, seq(1, 5000, 2))
	var got []time.Duration
	var firstAt int
	for {
		took, ok := r.Begin()
		if !ok {
			break
		}
		got = append(got, took)
		for _, e := range r.End() {
			if e.First {
				firstAt = len(got)
			}
		}
	}
	// read is a step that reads so many tokens behind others that are there already.
	read := func(n, before time.Duration) time.Duration {
		return time.Millisecond + n*20*time.Microsecond + (n*before+n*(n+1)/2)*14*time.Nanosecond
	}
	want := []time.Duration{read(2048, 0), read(2048, 2048), read(904, 4096), 3*time.Millisecond + 5001*250*time.Nanosecond}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("step times: want -, got +:\n%s", diff)
	}
	if firstAt != 3 {
		t.Errorf("the first token came in step %d, want 3", firstAt)
	}
}

// A running prompt takes the budget before younger sequences, decodes included:
// the order is that of admission.
func TestRunningSequencesGoInOrderOfAdmission(t *testing.T) {
	p := smallParams(100)
	p.TokenBudget = 10
	r := NewRank(p)
	add(t, r, seq(1, 4, 9), seq(2, 23, 1), seq(3, 2, 1))
	wantSteps(t, steps(r, 5), [][]part{
		{{1, 4}, {2, 6}},
		{{1, 1}, {2, 9}},
		{{1, 1}, {2, 8}, {3, 1}},
		{{1, 1}, {3, 1}},
		{{1, 1}},
	})
}

func TestSequenceLimit(t *testing.T) {
	p := smallParams(100)
	p.MaxSequences = 2
	r := NewRank(p)
	add(t, r, seq(1, 4, 2), seq(2, 4, 1), seq(3, 4, 1))
	wantSteps(t, steps(r, 3), [][]part{{{1, 4}, {2, 4}}, {{1, 1}, {3, 4}}})
}

func TestHeadOfTheQueueBlocksThoseBehind(t *testing.T) {
	r := NewRank(smallParams(5))
	add(t, r, seq(1, 8, 3), seq(2, 13, 1), seq(3, 4, 1))
	wantSteps(t, steps(r, 5), [][]part{
		{{1, 8}}, // 2 needs four blocks of the three that are free; 3 would fit
		{{1, 1}},
		{{1, 1}},
		{{2, 13}, {3, 4}},
	})
}

func TestAdmissionOfALongPrompt(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reserve bool
		want    [][]part
	}{
		{"only when all of it fits", true, [][]part{{{1, 8}}, {{1, 1}}, {{1, 1}}, {{2, 8}}, {{2, 8}}}},
		// Its second chunk finds no blocks: it preempts itself, and keeps one block in
		// the cache.
		{"as soon as its first chunk fits", false, [][]part{{{1, 8}}, {{1, 1}, {2, 7}}, {{1, 1}}, {{2, 8}}, {{2, 4}}}},
	} {
		p := smallParams(5)
		p.TokenBudget, p.ReserveFullPrompt = 8, tc.reserve
		r := NewRank(p)
		add(t, r, seq(1, 8, 3), seq(2, 16, 1))
		t.Log(tc.name)
		wantSteps(t, steps(r, 10), tc.want)
	}
}

// Free blocks that a prompt hits are not free for it: they count as needed.
func TestAdmissionCountsUnreferencedHits(t *testing.T) {
	r := NewRank(smallParams(4))
	cached := seq(1, 9, 1)
	add(t, r, cached)
	steps(r, 2) // leaves two full blocks in the cache
	again := seq(3, 9, 1)
	again.Prompt = cached.Prompt
	add(t, r, seq(2, 8, 2), again)
	// 2 holds two of four blocks, and a third from its second step on. 3 needs three.
	wantSteps(t, steps(r, 4), [][]part{{{2, 8}}, {{2, 1}}, {{3, 5}}})
}

func TestPreemptionOfTheNewest(t *testing.T) {
	r := NewRank(smallParams(5))
	add(t, r, seq(1, 8, 6), seq(2, 8, 4))
	wantSteps(t, steps(r, 1), [][]part{{{1, 8}, {2, 8}}})
	add(t, r, seq(3, 1, 1))
	if got := r.Stats(); got.Running != 2 || got.Waiting != 1 || got.KVUsed != 4.0/5 {
		t.Errorf("before: %+v", got)
	}

	// Both need a third block for their second token, and one is free. The newest goes
	// to the front of the queue, and nobody is admitted, though blocks are free.
	wantSteps(t, [][]part{begin(r)}, [][]part{{{1, 1}}})
	if got := r.Stats(); got.Running != 1 || got.Waiting != 2 || got.KVUsed != 3.0/5 || got.Preemptions != 1 {
		t.Errorf("after: %+v", got)
	}
	r.End()

	// It waits for room for its prompt and the token generated, and blocks 3.
	wantSteps(t, steps(r, 4), [][]part{{{1, 1}}, {{1, 1}}, {{1, 1}}, {{1, 1}}})
	// 1 took the last block of its prompt meanwhile, the first is still cached.
	wantSteps(t, steps(r, 9), [][]part{{{2, 5}, {3, 1}}, {{2, 1}}, {{2, 1}}})

	got := r.Stats()
	want := Stats{
		PromptTokens: 17, PrefixQueries: 17, // the second reading of 2's prompt is not counted
		GenerationTokens: 11, Preemptions: 1, LastStepTokens: 1,
		Finished: map[string]int64{ReasonStop: 3},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stats: want -, got +:\n%s", diff)
	}
}

func TestPreemptionOfAnother(t *testing.T) {
	r := NewRank(smallParams(5))
	// 1 needs its third block when none is free: 2 gives way.
	add(t, r, seq(1, 8, 3), seq(2, 11, 3))
	wantSteps(t, steps(r, 2), [][]part{{{1, 8}, {2, 11}}, {{1, 1}}})
	if got := r.Stats().Preemptions; got != 1 {
		t.Errorf("%d preemptions, want 1", got)
	}
	wantSteps(t, steps(r, 9), [][]part{{{1, 1}}, {{2, 4}}, {{2, 1}}})
}

// The first chunk of the preempted prompt would fit at once.
func TestNobodyIsAdmittedInAStepThatPreempts(t *testing.T) {
	p := smallParams(5)
	p.TokenBudget, p.ReserveFullPrompt = 4, false
	r := NewRank(p)
	add(t, r, seq(1, 8, 9), seq(2, 12, 1))
	wantSteps(t, steps(r, 6), [][]part{
		{{1, 4}},
		{{1, 4}},
		{{1, 1}, {2, 3}},
		{{1, 1}, {2, 3}},
		{{1, 1}},
		{{1, 1}, {2, 3}},
	})
}

func TestEndOfAnAnswer(t *testing.T) {
	for _, tc := range []struct {
		name   string
		output int
		want   Emit
	}{
		{"its own reason", 3, Emit{ID: 1, Tokens: 1, Done: true, Reason: ReasonStop}},
		{"its own reason at the model's length", 4, Emit{ID: 1, Tokens: 1, Done: true, Reason: ReasonStop}},
		{"the model's length", 5, Emit{ID: 1, Tokens: 1, Done: true, Reason: ReasonLength}},
	} {
		p := smallParams(10)
		p.MaxModelLen = 12
		r := NewRank(p)
		add(t, r, seq(1, 8, tc.output))
		var last Emit
		tokens := 0
		for begin(r) != nil {
			for _, e := range r.End() {
				last = e
				tokens += e.Tokens
			}
		}
		if diff := cmp.Diff(tc.want, last); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", tc.name, diff)
		}
		if want := min(tc.output, 4); tokens != want {
			t.Errorf("%s: %d tokens, want %d", tc.name, tokens, want)
		}
	}
}

func TestRefusedSequences(t *testing.T) {
	r := NewRank(smallParams(5)) // 20 tokens
	add(t, r, seq(1, 19, 1))
	var tooLong *PromptError
	if err := r.Add(seq(2, 20, 1)); !errors.As(err, &tooLong) || tooLong.Tokens != 20 || tooLong.Limit != 19 {
		t.Errorf("a prompt without room for an answer: %v", err)
	}
	for name, s := range map[string]*Sequence{
		"an ID in use": seq(1, 4, 1),
		"no prompt":    seq(3, 0, 1),
		"no output":    seq(3, 4, 0),
	} {
		if err := r.Add(s); err == nil || errors.As(err, &tooLong) || !strings.Contains(err.Error(), "sequence") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := r.Stats().Waiting; got != 1 {
		t.Errorf("%d waiting, want only the first", got)
	}
}

func TestAbort(t *testing.T) {
	r := NewRank(smallParams(5))
	if r.Abort(7) {
		t.Error("an unknown sequence was aborted")
	}
	add(t, r, seq(1, 9, 5), seq(2, 16, 5), seq(3, 4, 5))

	// During a step a running and a waiting sequence stay until its end.
	begin(r)
	if !r.Abort(1) || !r.Abort(2) || r.Abort(1) {
		t.Error("Abort must know a living sequence, and only once")
	}
	if got := r.Load(); got.Running != 1 || got.Waiting != 2 {
		t.Errorf("during the step: %+v", got)
	}
	if got := r.End(); len(got) != 0 {
		t.Errorf("an aborted sequence emitted %+v", got)
	}
	if got := r.Load(); got != (Load{Waiting: 1}) {
		t.Errorf("after the step: %+v", got)
	}

	// Its ID is free again, and its full blocks are cached.
	add(t, r, seq(1, 9, 2))
	begin(r)
	got := r.End()
	want := []Emit{
		{ID: 3, Admitted: true, Tokens: 1, First: true, Created: 4},
		{ID: 1, Admitted: true, Tokens: 1, First: true, Cached: 8},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}

	// Between steps they leave at once.
	if !r.Abort(1) || !r.Abort(3) {
		t.Error("Abort does not know living sequences")
	}
	if got := r.Load(); got != (Load{}) {
		t.Errorf("after the aborts: %+v", got)
	}
	if got := r.Stats().Finished; len(got) != 0 {
		t.Errorf("aborts were counted as finished: %v", got)
	}
	if got := begin(r); got != nil {
		t.Errorf("an empty rank plans a step: %v", got)
	}
	if got := r.End(); got != nil {
		t.Errorf("End without a step returned %v", got)
	}
}

func TestStatsMoveWithTheFirstToken(t *testing.T) {
	p := smallParams(10)
	p.TokenBudget = 8
	r := NewRank(p)
	before := r.Stats()
	add(t, r, seq(1, 12, 2))
	for i, want := range []Stats{
		{Running: 1, KVUsed: 2.0 / 10, PrefixQueries: 12},
		{Running: 1, KVUsed: 3.0 / 10, PrefixQueries: 12, PromptTokens: 12, GenerationTokens: 1, LastStepTokens: 13},
		{PrefixQueries: 12, PromptTokens: 12, GenerationTokens: 2, LastStepTokens: 1},
	} {
		begin(r)
		r.End()
		got := r.Stats()
		want.Finished = map[string]int64{}
		if i == 2 {
			want.Finished[ReasonStop] = 1
		}
		want.KVUsed, got.KVUsed = roundShare(want.KVUsed), roundShare(got.KVUsed)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after step %d: want -, got +:\n%s", i+1, diff)
		}
	}
	if diff := cmp.Diff(Stats{Finished: map[string]int64{}}, before); diff != "" {
		t.Errorf("stats taken earlier have changed: want -, got +:\n%s", diff)
	}
}

// roundShare makes shares comparable that were computed in different ways.
func roundShare(share float64) float64 { return float64(int(share*1e6+0.5)) / 1e6 }

func TestStepTime(t *testing.T) {
	cost := newStepCost(Params{
		OverheadMS: 2, WeightsMS: 20.5, LinearUSPerToken: 151,
		AttentionNSPerTokenContext: 13.7, KVReadUSPerContextToken: 0.366,
		KVBytesPerToken: 144 << 10, HostLinkGBPerS: 20,
	})
	prompt := func(computed int) *request { return &request{computed: computed} }
	answer := func(computed int) *request { return &request{computed: computed, generated: 1} }
	for _, tc := range []struct {
		name  string
		batch []chunk
		want  time.Duration
	}{
		// 2 + 20.5 ms + 1000 x 0.366 us
		{"a decode reads the weights", []chunk{{req: answer(999), tokens: 1}}, 22_866 * time.Microsecond},
		// 2 + 1000 x 0.151 ms + (1 + ... + 1000) x 13.7 ns
		{"a prompt computes", []chunk{{req: prompt(0), tokens: 1000}}, 159_856_850 * time.Nanosecond},
		// its second chunk also attends to the first: + 1000 x 1000 x 13.7 ns
		{"a second chunk", []chunk{{req: prompt(1000), tokens: 1000}}, 173_556_850 * time.Nanosecond},
		// 2 + 20.5 ms + 101 x 13.7 ns: no decode, though it is one token
		{"the end of a prompt", []chunk{{req: prompt(100), tokens: 1}}, 22_501_383 * time.Nanosecond},
		// 2 + 20.5 ms + 101 x 13.7 ns + 96 x 147,456 bytes at 20 GB/s
		{"a prompt that the host had", []chunk{{req: prompt(100), tokens: 1, loaded: 96}}, 23_209_172 * time.Nanosecond},
		{"all together", []chunk{{req: answer(999), tokens: 1}, {req: prompt(0), tokens: 999}}, 160_209_150 * time.Nanosecond},
	} {
		var work stepWork
		for _, c := range tc.batch {
			work.add(c)
		}
		if got := cost.duration(work); got != tc.want {
			t.Errorf("%s takes %v, want %v", tc.name, got, tc.want)
		}
	}
}
