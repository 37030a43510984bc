package enginesim

import (
	"slices"
	"time"
)

// plan fills the batch of the next step and returns the step's duration. It is
// vLLM's V1 scheduler for text without priorities and without asynchronous
// scheduling: running requests first, in the order of their admission and
// whether they decode or still read their prompt; then the queue, whose head
// blocks everyone behind it.
func (r *Rank) plan() time.Duration {
	budget := r.params.TokenBudget
	budget, preempted := r.continueRunning(budget)
	if !preempted {
		r.admit(budget)
	}
	var work stepWork
	for _, c := range r.batch {
		work.add(c)
		c.req.computed += c.tokens
	}
	return r.cost.duration(work)
}

// continueRunning gives each running request its tokens of this step. When
// blocks run out it preempts the newest request. It returns the budget left, and
// whether anyone was preempted.
func (r *Rank) continueRunning(budget int) (left int, preempted bool) {
	for i := 0; i < len(r.running) && budget > 0; i++ {
		q := r.running[i]
		n := min(q.tokens()-q.computed, budget)
		for !r.allocate(q, n) {
			preempted = true
			victim := r.preemptNewest()
			if victim == q {
				return budget, true
			}
		}
		r.batch = append(r.batch, chunk{req: q, tokens: n})
		budget -= n
	}
	return budget, preempted
}

// preemptNewest puts the request that was admitted last back to the front of the
// queue, without blocks. It will compute its prompt and the tokens generated so
// far again, except what it finds in the cache. The newest is never in the batch
// already, since the batch is filled in order of admission.
func (r *Rank) preemptNewest() *request {
	last := len(r.running) - 1
	q := r.running[last]
	r.running[last] = nil
	r.running = r.running[:last]
	r.pool.release(q.blocks)
	q.blocks, q.registered, q.computed = q.blocks[:0], 0, 0
	r.waiting = slices.Insert(r.waiting, 0, q)
	r.stats.Preemptions++
	return q
}

// admit moves requests from the queue to the running list until the budget, the
// sequence limit or the free blocks are used up.
func (r *Rank) admit(budget int) {
	admitted := 0
	for _, q := range r.waiting {
		if budget == 0 || len(r.running) == r.params.MaxSequences || r.pool.gains < q.fitsNotBefore {
			break
		}
		hits, unreferenced := r.cachedBlocks(q)
		loaded := r.hostBlocks(q, len(hits)) * r.params.BlockTokens
		hit := len(hits)*r.params.BlockTokens + loaded
		n := min(q.tokens()-hit, budget)
		need := hit + n
		if r.params.ReserveFullPrompt {
			// A check, not a reservation: two long prompts can both pass it against
			// the same free blocks, and the later one is preempted then.
			need = q.tokens()
		}
		if missing := r.blocksFor(need) - len(hits) + unreferenced - r.pool.free; missing > 0 {
			// Each gain helps by one block at most: blocks in use that follow each other
			// in a prompt became findable in that order, and a hit on the free list counts
			// as a block to be had already. Looking again before would find the same, and
			// looking up a long prompt in every step would take most of the model's time.
			if r.params.ReserveFullPrompt { // else it depends on the budget, too
				q.fitsNotBefore = r.pool.gains + int64(missing)
			}
			break
		}
		for _, id := range hits {
			r.pool.touch(id)
		}
		q.blocks = append(q.blocks, hits...)
		q.registered, q.computed = len(hits), hit
		r.allocate(q, n)
		r.useHost(q)
		if !q.admitted {
			q.admitted, q.justNow, q.cached = true, true, hit
			r.stats.PrefixQueries += int64(q.tokens())
			r.stats.PrefixHits += int64(hit - loaded)
			r.stats.HostHits += int64(loaded)
		}
		r.running = append(r.running, q)
		r.batch = append(r.batch, chunk{q, n, loaded})
		budget -= n
		admitted++
	}
	r.waiting = slices.Delete(r.waiting, 0, admitted)
}

// cachedBlocks returns the leading blocks of q that are in the cache, and how
// many of those are on the free list. The last token is always computed again,
// since its output is what the model continues from. The slice is valid until the
// next call.
func (r *Rank) cachedBlocks(q *request) (hits []blockID, unreferenced int) {
	hits = r.hits[:0]
	most := (q.tokens() - 1) / r.params.BlockTokens
	for _, h := range q.seq.hashes[:most] {
		id, ok := r.pool.find(h)
		if !ok {
			break
		}
		hits = append(hits, id)
		if r.pool.unreferenced(id) {
			unreferenced++
		}
	}
	r.hits = hits
	return hits, unreferenced
}

// hostBlocks is how many blocks of q the host has that follow those found in the
// cache.
func (r *Rank) hostBlocks(q *request, found int) int {
	n := 0
	for _, h := range q.seq.hashes[found : (q.tokens()-1)/r.params.BlockTokens] {
		if !r.host.has(h) {
			break
		}
		n++
	}
	return n
}

// useHost marks what q begins with as used, its first block last: the end of a
// prompt goes before its beginning.
func (r *Rank) useHost(q *request) {
	for i := q.registered - 1; i >= 0; i-- {
		r.host.use(q.seq.hashes[i])
	}
}

// allocate gives q the blocks for n more tokens, all or none. Blocks that this
// fills can be found in the cache from now on, before the step has run: a
// request admitted later in the same step can hit them.
func (r *Rank) allocate(q *request, n int) bool {
	need := r.blocksFor(q.computed+n) - len(q.blocks)
	if need > r.pool.free {
		return false
	}
	for range need {
		q.blocks = append(q.blocks, r.pool.take())
	}
	full := (q.computed + n) / r.params.BlockTokens
	r.pool.events.stored(q, full, r.params.BlockTokens)
	for ; q.registered < full; q.registered++ {
		r.pool.register(q.blocks[q.registered], q.seq.hashes[q.registered])
		r.host.use(q.seq.hashes[q.registered])
	}
	return true
}

// blocksFor is the number of blocks that hold so many tokens.
func (r *Rank) blocksFor(tokens int) int {
	return (tokens + r.params.BlockTokens - 1) / r.params.BlockTokens
}
