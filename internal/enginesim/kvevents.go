package enginesim

// KVEventKind says what happened to blocks of a prefix cache.
type KVEventKind int

const (
	BlocksStored  KVEventKind = iota // they can be found from now on
	BlocksRemoved                    // their room was taken
	BlocksCleared                    // the cache was reset
)

// KVEvent is a change of what a rank's prefix cache holds, as vLLM publishes it. Equal
// content has equal names, on any rank.
type KVEvent struct {
	Kind   KVEventKind
	Blocks []uint64 // names; none when all were cleared
	// Of stored blocks, which follow each other: the block before them, 0 for none,
	// and their tokens.
	Parent uint64
	Tokens []Token
}

// kvEvents collects the events of a rank. A nil one collects nothing.
type kvEvents struct{ list []KVEvent }

// stored notes the blocks of q from those registered so far up to full.
func (e *kvEvents) stored(q *request, full, blockTokens int) {
	if e == nil || full <= q.registered {
		return
	}
	event := KVEvent{Kind: BlocksStored}
	if q.registered > 0 {
		event.Parent = uint64(q.seq.hashes[q.registered-1])
	}
	for i := q.registered; i < full; i++ {
		event.Blocks = append(event.Blocks, uint64(q.seq.hashes[i]))
		event.Tokens = append(event.Tokens, q.slice(i*blockTokens, blockTokens)...)
	}
	e.list = append(e.list, event)
}

func (e *kvEvents) removed(h blockHash) {
	if e != nil {
		e.list = append(e.list, KVEvent{Kind: BlocksRemoved, Blocks: []uint64{uint64(h)}})
	}
}

func (e *kvEvents) cleared() {
	if e != nil {
		e.list = append(e.list, KVEvent{Kind: BlocksCleared})
	}
}

// RecordKVEvents makes the rank keep its events until KVEvents takes them, from now
// on.
func (r *Rank) RecordKVEvents() {
	if r.pool.events == nil {
		r.pool.events = &kvEvents{}
	}
}

// KVEvents returns what happened since the last call, in order; nothing without
// RecordKVEvents. vLLM publishes them behind each step.
func (r *Rank) KVEvents() []KVEvent {
	if r.pool.events == nil {
		return nil
	}
	list := r.pool.events.list
	r.pool.events.list = nil
	return list
}

// RecordKVEvents is Rank.RecordKVEvents for every rank.
func (b *Box) RecordKVEvents() {
	for _, r := range b.ranks {
		r.RecordKVEvents()
	}
}

// KVEvents is Rank.KVEvents.
func (b *Box) KVEvents(rank int) []KVEvent { return b.ranks[rank].KVEvents() }

// CachedTokens is the content of the full blocks that can be found, each once.
func (r *Rank) CachedTokens() int {
	n := 0
	for id, b := range r.pool.blocks {
		if !b.hashed {
			continue
		}
		if first, _ := r.pool.find(b.hash); first == blockID(id) {
			n += r.params.BlockTokens
		}
	}
	return n
}

// CachedTokens is Rank.CachedTokens.
func (b *Box) CachedTokens(rank int) int { return b.ranks[rank].CachedTokens() }
