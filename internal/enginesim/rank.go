package enginesim

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Rank is one engine: a scheduler over a KV cache of its own. See the package
// comment for how to drive it; the scheduling itself is in schedule.go.
type Rank struct {
	params Params
	cost   stepCost
	pool   *blockPool
	host   *hostTier

	live    map[uint64]*request // by sequence ID, aborted ones excluded
	waiting []*request          // first come, first served; preempted ones in front
	running []*request          // in order of admission

	// batch is the running step, valid from Begin to End.
	inStep bool
	batch  []chunk
	aborts int // aborted requests still in waiting or running

	stats Stats
	emits []Emit    // reused by End
	hits  []blockID // reused by cachedBlocks
}

// request is a sequence inside a rank.
type request struct {
	seq       *Sequence
	generated int // tokens of the output so far
	computed  int // tokens whose KV state is in blocks, the running step's included
	blocks    []blockID
	// registered is how many of the blocks can be found in the cache.
	registered int

	// fitsNotBefore is the pool's gains without which q cannot be admitted, known
	// since it did not fit.
	fitsNotBefore int64

	admitted bool // has left the queue before
	justNow  bool // has left it for the first time in the running step
	cached   int  // prompt tokens found in the cache at the first admission
	aborted  bool
}

// chunk is one request's part of a step.
type chunk struct {
	req    *request
	tokens int
	loaded int // tokens before them whose KV state the host had
}

// tokens is the number of tokens known so far: the prompt and what was generated.
func (q *request) tokens() int { return len(q.seq.Prompt) + q.generated }

// NewRank returns an idle engine with an empty cache. It panics when p does not
// pass Validate.
func NewRank(p Params) *Rank {
	if err := p.Validate(); err != nil {
		panic("enginesim: " + err.Error())
	}
	return &Rank{
		params: p,
		cost:   newStepCost(p),
		pool:   newBlockPool(p.Blocks()),
		host:   newHostTier(p),
		live:   make(map[uint64]*request),
		stats:  Stats{Finished: make(map[string]int64)},
	}
}

// Add queues a sequence; the next Begin sees it. It refuses a prompt that can
// never fit with a *PromptError.
func (r *Rank) Add(s *Sequence) error {
	if r.live[s.ID] != nil {
		return duplicateError(s.ID)
	}
	if err := r.check(s); err != nil {
		return err
	}
	r.queue(s)
	return nil
}

// check says whether a sequence could run on an empty rank.
func (r *Rank) check(s *Sequence) error {
	if len(s.Prompt) == 0 || len(s.Output) == 0 {
		return fmt.Errorf("sequence %d has %d prompt and %d output tokens: an engine needs at least one of each",
			s.ID, len(s.Prompt), len(s.Output))
	}
	return r.params.CheckPrompt(len(s.Prompt))
}

func (r *Rank) queue(s *Sequence) {
	q := &request{seq: s}
	s.hashes = s.hashes[:min(len(s.hashes), s.same/r.params.BlockTokens)]
	r.extendHashes(q)
	r.live[s.ID] = q
	r.waiting = append(r.waiting, q)
}

func duplicateError(id uint64) error {
	return fmt.Errorf("sequence %d is already in the engine: give each living sequence an ID of its own", id)
}

// Abort ends a sequence that the client gave up: nothing more is emitted for it,
// and its blocks are free from the next step border on (at once when no step
// runs). Its full blocks stay cached. It returns false for an unknown ID.
func (r *Rank) Abort(id uint64) bool {
	q := r.live[id]
	if q == nil {
		return false
	}
	delete(r.live, id)
	q.aborted = true
	r.aborts++
	if !r.inStep {
		r.dropAborted()
	}
	return true
}

// Begin plans the next step and returns how long it takes; false means that
// there is nothing to do. End must be called before the next Begin, which panics
// else.
func (r *Rank) Begin() (time.Duration, bool) {
	if r.inStep {
		panic("enginesim: Begin was called twice without End between")
	}
	if len(r.running) == 0 && len(r.waiting) == 0 {
		return 0, false
	}
	r.inStep = true
	return r.plan(), true
}

// End is the border after a step: it returns what the step brought, in the
// order of admission. The slice is valid until the next End. Without a step it
// returns nil.
func (r *Rank) End() []Emit {
	if !r.inStep {
		return nil
	}
	r.inStep = false
	r.emits = r.emits[:0]
	r.stats.LastStepTokens = 0
	for _, c := range r.batch {
		if !c.req.aborted {
			r.endChunk(c.req)
		}
	}
	r.batch = r.batch[:0]
	r.running = slices.DeleteFunc(r.running, func(q *request) bool { return q.seq == nil })
	r.dropAborted()
	return r.emits
}

// endChunk books what a step did for a request. A request that finished has no
// sequence any more.
func (r *Rank) endChunk(q *request) {
	e := Emit{ID: q.seq.ID, Admitted: q.justNow}
	q.justNow = false
	if q.computed < q.tokens() { // the prompt is not computed to its end
		if e.Admitted {
			r.emits = append(r.emits, e)
		}
		return
	}

	q.generated++
	r.extendHashes(q)
	e.Tokens = 1
	r.stats.GenerationTokens++
	r.stats.LastStepTokens++
	if q.generated == 1 {
		prompt := len(q.seq.Prompt)
		e.First = true
		e.Cached = q.cached
		e.Created = prompt/r.params.BlockTokens*r.params.BlockTokens - q.cached
		r.stats.PromptTokens += int64(prompt)
		r.stats.CachedTokens += int64(q.cached)
		r.stats.LastStepTokens += prompt - q.cached
	}
	switch {
	case q.generated == len(q.seq.Output):
		e.Done, e.Reason = true, q.seq.Reason
	case q.tokens() >= r.params.ModelLen():
		e.Done, e.Reason = true, ReasonLength
	}
	if e.Done {
		r.stats.Finished[e.Reason]++
		r.pool.release(q.blocks)
		delete(r.live, q.seq.ID)
		q.seq = nil
	}
	r.emits = append(r.emits, e)
}

// dropAborted takes aborted requests out of the queue and the running list.
func (r *Rank) dropAborted() {
	if r.aborts == 0 {
		return
	}
	r.aborts = 0
	drop := func(q *request) bool {
		if q.aborted {
			r.pool.release(q.blocks)
		}
		return q.aborted
	}
	r.running = slices.DeleteFunc(r.running, drop)
	r.waiting = slices.DeleteFunc(r.waiting, drop)
}

// extendHashes hashes the blocks of q that are full by now.
func (r *Rank) extendHashes(q *request) {
	s, size := q.seq, r.params.BlockTokens
	for (len(s.hashes)+1)*size <= q.tokens() {
		parent := rootHash(s.Salt)
		if n := len(s.hashes); n > 0 {
			parent = s.hashes[n-1]
		}
		s.hashes = append(s.hashes, hashBlock(parent, q.slice(len(s.hashes)*size, size)))
	}
}

// slice returns n tokens of prompt and output from the given position on.
func (q *request) slice(from, n int) []Token {
	prompt := q.seq.Prompt
	switch {
	case from+n <= len(prompt):
		return prompt[from : from+n]
	case from >= len(prompt):
		return q.seq.Output[from-len(prompt) : from-len(prompt)+n]
	default:
		return slices.Concat(prompt[from:], q.seq.Output[:from+n-len(prompt)])
	}
}

// Load returns the rank's gauges.
func (r *Rank) Load() Load {
	return Load{Running: len(r.running), Waiting: len(r.waiting), KVUsed: r.pool.used()}
}

// Stats returns the rank's gauges and counters. During a step the gauges
// already show what the step admitted.
func (r *Rank) Stats() Stats {
	s := r.stats
	load := r.Load()
	s.Running, s.Waiting, s.KVUsed = load.Running, load.Waiting, load.KVUsed
	s.Finished = maps.Clone(s.Finished)
	return s
}

// Reset empties the prefix cache, and the host's part of it. It returns false, and
// does nothing, while a sequence holds blocks.
func (r *Rank) Reset() bool {
	if !r.pool.reset() {
		return false
	}
	r.host.reset()
	return true
}
