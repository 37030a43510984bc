package enginesim

// hostTier is the cache behind the cache: blocks' content in the host's memory, as
// vLLM's native KV offloading keeps it. What fills in a rank's cache is copied here
// at once and costs nothing; when it is full, what was used longest ago goes.
type hostTier struct {
	capacity int // blocks; 0 keeps nothing
	index    map[blockHash]int32
	// entries are a ring closed by entry 0: its next was used last, its prev goes
	// first.
	entries []hostEntry
}

type hostEntry struct {
	hash       blockHash
	prev, next int32
}

func newHostTier(p Params) *hostTier {
	return &hostTier{capacity: p.HostBlocks(), index: make(map[blockHash]int32), entries: make([]hostEntry, 1)}
}

func (t *hostTier) has(h blockHash) bool {
	_, ok := t.index[h]
	return ok
}

// use puts content in, or marks it as used.
func (t *hostTier) use(h blockHash) {
	if t.capacity == 0 {
		return
	}
	id, ok := t.index[h]
	switch {
	case ok:
		t.unlink(id)
	case len(t.entries) <= t.capacity:
		id = int32(len(t.entries))
		t.entries = append(t.entries, hostEntry{})
	default:
		id = t.entries[0].prev
		t.unlink(id)
		delete(t.index, t.entries[id].hash)
	}
	t.index[h] = id
	first := t.entries[0].next
	t.entries[id] = hostEntry{hash: h, prev: 0, next: first}
	t.entries[first].prev, t.entries[0].next = id, id
}

func (t *hostTier) unlink(id int32) {
	e := t.entries[id]
	t.entries[e.prev].next, t.entries[e.next].prev = e.next, e.prev
}

// reset forgets all content.
func (t *hostTier) reset() {
	clear(t.index)
	t.entries = append(t.entries[:0], hostEntry{})
}
