package routing

// cache is a model of a replica's prefix cache: which conversations are likely
// still there. An engine evicts whole blocks, those unused longest first and a
// conversation's tail before its head, so what is left of a conversation is a
// prefix of it. A conversation is kept in mind at one replica, the last that
// served it.
type cache struct {
	front, back row   // conversations, last used in front
	tokens      int64 // of theirs, the shared prefix not counted
	// kept is the tokens of those that left a moment ago and are likely back.
	kept int64
}

// cached says that v's context, beyond the shared prefix, was just used on
// replica i.
func (t *table) cached(v *conversation, i int, tokens int64) {
	t.uncache(v)
	c := &t.caches[i]
	v.cached, v.cachedAt = tokens, int32(i)
	c.tokens += tokens
	v.cachePrev, v.cacheNext = 0, c.front
	if c.front == 0 {
		c.back = v.row
	} else {
		t.at(c.front).cachePrev = v.row
	}
	c.front = v.row
}

// uncache forgets what is cached of v.
func (t *table) uncache(v *conversation) {
	if v.cachedAt == None {
		return
	}
	c := &t.caches[v.cachedAt]
	c.tokens -= v.cached
	if v.cachePrev == 0 {
		c.front = v.cacheNext
	} else {
		t.at(v.cachePrev).cacheNext = v.cacheNext
	}
	if v.cacheNext == 0 {
		c.back = v.cachePrev
	} else {
		t.at(v.cacheNext).cachePrev = v.cachePrev
	}
	v.cached, v.cachedAt, v.cachePrev, v.cacheNext = 0, None, 0, 0
}

// evict takes so many tokens from the tail of replica i's cache, but nothing of
// what is in flight.
func (t *table) evict(i int, excess int64) {
	c := &t.caches[i]
	for at := c.back; excess > 0 && at != 0; {
		v := t.at(at)
		at = v.cachePrev
		if v.running > 0 {
			continue
		}
		gone := min(v.cached, excess)
		v.cached -= gone
		c.tokens -= gone
		if excess -= gone; v.cached == 0 {
			t.uncache(v)
		}
	}
}

// clear forgets all that replica i had cached: its engine restarted.
func (t *table) clear(i int) {
	for t.caches[i].back != 0 {
		t.uncache(t.at(t.caches[i].back))
	}
}

// keep keeps v's place on replica i.
func (t *table) keep(v *conversation, i int, tokens int64) {
	t.unkeep(v)
	v.kept, v.keptAt = tokens, int32(i)
	t.caches[i].kept += tokens
}

// unkeep gives v's place free.
func (t *table) unkeep(v *conversation) {
	if v.keptAt != None {
		t.caches[v.keptAt].kept -= v.kept
		v.kept, v.keptAt = 0, None
	}
}

// use notes that q is about to be read on replica i.
func (c *Core) use(q *request, i int) {
	capacity := c.replicas[i].load.Capacity
	need := c.own(q) + q.output
	if q.conv != nil {
		c.homes.cached(q.conv, i, need)
		need = 0
	}
	if capacity > 0 {
		c.homes.evict(i, c.shared()+c.homes.caches[i].tokens+need-capacity)
	}
}

// cachedTokens is what replica i likely has cached in all.
func (c *Core) cachedTokens(i int) int64 {
	own := c.homes.caches[i].tokens
	if own == 0 && !c.replicas[i].warm {
		return 0
	}
	return own + c.shared()
}

// uncached is how much of q's prompt replica i would have to read.
func (c *Core) uncached(q *request, i int) int64 {
	found := int64(0)
	if v := q.conv; v != nil && int(v.cachedAt) == i {
		found = v.cached
	}
	if q.Extends != (Key{}) {
		if v := c.homes.get(q.Extends); v != nil && int(v.cachedAt) == i {
			found = max(found, v.cached)
		}
	}
	if found > 0 || c.replicas[i].warm {
		found += c.shared()
	}
	return max(q.prompt-found, 0)
}

// pushedOut is how much of replica i's cache q would push out.
func (c *Core) pushedOut(q *request, i int) int64 {
	if c.replicas[i].load.Capacity <= 0 {
		return 0
	}
	more := c.own(q) + q.output
	if v := q.conv; v != nil && int(v.cachedAt) == i {
		more -= v.cached
	}
	return max(c.shared()+c.homes.caches[i].tokens+more-c.replicas[i].load.Capacity, 0)
}
