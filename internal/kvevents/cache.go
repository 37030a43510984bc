package kvevents

import "time"

// maxBlocks bounds what is kept of a replica: 16 million tokens in blocks of 16,
// several times what a card holds, in at most 50 MB.
const maxBlocks = 1 << 20

// cache is the content of a replica's prefix cache as its events tell it.
type cache struct {
	most   int // blocks that are kept
	blocks map[uint64]block
	tokens int64 // of all blocks

	// incomplete: some content may be missing, or listed although it is gone.
	incomplete bool

	stored, removed rate
}

// block is content that is in the cache.
type block struct {
	tokens int32
	// copies: two requests that fill a block with the same tokens at the same time
	// both store it, and each copy is removed by an event of its own. Groups of
	// layers of one model name their blocks alike, too.
	copies int32
}

// apply books a batch.
func (c *cache) apply(events []event, now time.Time) {
	for _, e := range events {
		switch {
		case e.kind == cleared:
			c.removed.add(now, c.tokens)
			c.forget()
		case e.elsewhere:
		case e.kind == stored:
			for _, h := range e.hashes {
				c.store(h, int32(e.tokens), now)
			}
		case e.kind == removed:
			for _, h := range e.hashes {
				c.remove(h, now)
			}
		}
	}
}

// forget makes the cache empty and complete again, but keeps its rates.
func (c *cache) forget() { c.blocks, c.tokens, c.incomplete = nil, 0, false }

func (c *cache) store(hash uint64, tokens int32, now time.Time) {
	b, known := c.blocks[hash]
	if !known {
		if len(c.blocks) >= c.most {
			c.incomplete = true
			return
		}
		if c.blocks == nil {
			c.blocks = map[uint64]block{}
		}
		b.tokens = tokens
		c.tokens += int64(tokens)
		c.stored.add(now, int64(tokens))
	}
	b.copies++
	c.blocks[hash] = b
}

func (c *cache) remove(hash uint64, now time.Time) {
	b, known := c.blocks[hash]
	if !known {
		return // stored before this gateway listened
	}
	if b.copies--; b.copies > 0 {
		c.blocks[hash] = b
		return
	}
	delete(c.blocks, hash)
	c.tokens -= int64(b.tokens)
	c.removed.add(now, int64(b.tokens))
}

// window is how many whole seconds a rate looks back.
const window = 10

// rate is a sum over the last seconds. The zero rate is 0.
type rate struct {
	sums [window + 1]int64 // by second, the running one included
	last int64             // the running second
}

func (r *rate) advance(now time.Time) {
	second := now.Unix()
	for n := min(second-r.last, int64(len(r.sums))); n > 0; n-- {
		r.sums[(second-n+1)%int64(len(r.sums))] = 0
	}
	r.last = max(r.last, second)
}

func (r *rate) add(now time.Time, n int64) {
	r.advance(now)
	r.sums[r.last%int64(len(r.sums))] += n
}

// perSecond is the mean over the whole seconds before the running one.
func (r *rate) perSecond(now time.Time) float64 {
	r.advance(now)
	sum := -r.sums[r.last%int64(len(r.sums))]
	for _, n := range r.sums {
		sum += n
	}
	return float64(sum) / window
}
