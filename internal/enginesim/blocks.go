package enginesim

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// blockID is an index into a rank's blocks. Block 0 is vLLM's reserved null
// block: it never holds tokens and is never free.
type blockID int32

const nullBlock blockID = 0

// blockHash stands for the tokens of a block and of every block before it. 64
// bits are enough here: a collision would only make a model's hit too long.
type blockHash uint64

// block holds the KV state of BlockTokens tokens.
type block struct {
	refs       int32 // sequences that use it
	hashed     bool  // full, and found under hash
	hash       blockHash
	chain      blockID // the next block in its bucket, or nullBlock
	prev, next blockID // neighbours in the free list while refs is 0
}

// blockPool owns a rank's blocks: which are free, and which content each holds.
//
// The free list runs from the block to be reused next (head) to the one released
// last (tail), and is a ring closed by the null block: its next is the head, its
// prev the tail. Free blocks keep their content until they are taken.
type blockPool struct {
	blocks []block
	free   int
	// buckets find blocks by the low bits of their hash, each a chain in the order of
	// registration. It does what a map would, and most of the model's time is spent
	// here: hashes are spread already, and there are never more than the blocks.
	buckets []blockID
	// gains counts what can help a prompt that did not fit: blocks that came back to
	// the free list, and blocks in use that became findable.
	gains  int64
	events *kvEvents
}

func newBlockPool(n int) *blockPool {
	p := &blockPool{blocks: make([]block, n), buckets: make([]blockID, 1<<bits.Len(uint(n)))}
	for id := range blockID(n) {
		p.blocks[id].prev, p.blocks[id].next = id-1, id+1
	}
	p.blocks[nullBlock].prev = blockID(n - 1)
	p.blocks[n-1].next = nullBlock
	p.free = n - 1
	return p
}

// usable is how many blocks can hold tokens.
func (p *blockPool) usable() int { return len(p.blocks) - 1 }

// used is the share of usable blocks that sequences hold, 0 to 1.
func (p *blockPool) used() float64 { return 1 - float64(p.free)/float64(p.usable()) }

// bucket is where the chain of a hash begins.
func (p *blockPool) bucket(h blockHash) *blockID {
	return &p.buckets[uint64(h)&uint64(len(p.buckets)-1)]
}

// find returns the block with this content that was registered first.
func (p *blockPool) find(h blockHash) (blockID, bool) {
	id := *p.bucket(h)
	for id != nullBlock && p.blocks[id].hash != h {
		id = p.blocks[id].chain
	}
	return id, id != nullBlock
}

// unreferenced says whether the block is on the free list.
func (p *blockPool) unreferenced(id blockID) bool { return p.blocks[id].refs == 0 }

// touch makes one more sequence use the block and its content.
func (p *blockPool) touch(id blockID) {
	b := &p.blocks[id]
	if b.refs == 0 {
		p.unlink(id)
	}
	b.refs++
}

// take hands out the free block at the head, without content. There must be one.
func (p *blockPool) take() blockID {
	id := p.blocks[nullBlock].next
	p.unlink(id)
	p.forget(id)
	p.blocks[id].refs = 1
	return id
}

// register makes the content of a block that is now full findable. An earlier
// block with the same content stays the one that find returns.
func (p *blockPool) register(id blockID, h blockHash) {
	p.gains++
	end := p.bucket(h)
	for *end != nullBlock {
		end = &p.blocks[*end].chain
	}
	*end = id
	b := &p.blocks[id]
	b.hashed, b.hash, b.chain = true, h, nullBlock
}

// forget drops the block's content from the cache.
func (p *blockPool) forget(id blockID) {
	b := &p.blocks[id]
	if !b.hashed {
		return
	}
	b.hashed = false
	p.events.removed(b.hash)
	at := p.bucket(b.hash)
	for *at != id {
		at = &p.blocks[*at].chain
	}
	*at = b.chain
}

// release gives back one sequence's blocks, last first, so that the end of a
// prompt is reused before its beginning. A block without content is reused at
// once (vLLM 0.26 and later).
func (p *blockPool) release(ids []blockID) {
	for i := len(ids) - 1; i >= 0; i-- {
		b := &p.blocks[ids[i]]
		b.refs--
		switch {
		case b.refs > 0:
		case b.hashed:
			p.link(ids[i], p.blocks[nullBlock].prev)
		default:
			p.link(ids[i], nullBlock)
		}
	}
}

// reset forgets all content; it refuses while a block is used.
func (p *blockPool) reset() bool {
	if p.free != p.usable() {
		return false
	}
	for i := range p.blocks {
		p.blocks[i].hashed = false
	}
	clear(p.buckets)
	p.events.cleared()
	return true
}

// link puts the block into the free list behind another.
func (p *blockPool) link(id, after blockID) {
	before := p.blocks[after].next
	p.blocks[id].prev, p.blocks[id].next = after, before
	p.blocks[after].next, p.blocks[before].prev = id, id
	p.free++
	p.gains++
}

func (p *blockPool) unlink(id blockID) {
	b := &p.blocks[id]
	p.blocks[b.prev].next, p.blocks[b.next].prev = b.next, b.prev
	p.free--
}

// hashBlock chains a block to its parent: a polynomial over the products of
// pairs of tokens. The products do not depend on each other, so that a processor
// computes several at once; a hash made of bytes takes three times as long, and a
// long trace is 400 million blocks.
func hashBlock(parent blockHash, tokens []Token) blockHash {
	const (
		first, second = 0xa0761d6478bd642f, 0xe7037ed1a0b428db // odd, without structure
		factor        = 0x9e3779b97f4a7c15
	)
	h := uint64(parent)
	for len(tokens) > 1 {
		high, low := bits.Mul64(uint64(tokens[0])^first, uint64(tokens[1])^second)
		h = h*factor + (high ^ low)
		tokens = tokens[2:]
	}
	if len(tokens) == 1 {
		high, low := bits.Mul64(uint64(tokens[0])^first, second)
		h = h*factor + (high ^ low)
	}
	high, low := bits.Mul64(h^first, factor)
	return blockHash(high ^ low)
}

// rootHash is the parent of a sequence's first block. Since every hash includes
// its parent, the salt separates whole sequences.
func rootHash(salt string) blockHash {
	if salt == "" {
		return 0
	}
	return blockHash(xxhash.Sum64String(salt))
}
