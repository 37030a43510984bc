package routing

import "time"

// conversation is one row of the home table.
type conversation struct {
	key        Key
	bond       bond
	lastSpill  int32 // None when it never spilled
	lastServer int32 // where an engine's balancer served it last, or None
	open       int32 // requests in flight
	measured   bool  // tokens is the engine's own count
	live       bool  // counted in the contents of its home
	tokens     int64 // context, an estimate until it is measured, 0 when not known
	turns      int64
	spills     int64
	moves      int64
	seen       time.Duration // on the core's clock

	row                row
	prev, next         row // neighbours in its list
	in                 listName
	homePrev, homeNext row // neighbours at its home

	root Key // of its tree, zero for the root itself
	// estimated is the tokens that were estimated of its prompts for each that the
	// engine counted, 0 when not known.
	estimated float32
	away      bool // answered at left and not back since
	left      time.Duration

	running, runningAt   int32 // attempts in flight, and where the last one is
	waiting              int32 // requests that are held
	cachedAt, keptAt     int32 // None when nothing is
	cached, kept         int64
	cachePrev, cacheNext row
}

// bond ties a conversation to its home.
type bond struct {
	replica int32 // None when it has no home
	epoch   int32 // of the home, at the last complete turn there; 0 when not known
	served  bool  // the home completed a turn of it, in the life of this process
	// byOperator is set from an operator's move until the next turn; from is the
	// home before.
	byOperator bool
	removed    bool // the home was, without a replica for it since
	from       int32
}

func (v *conversation) home() int { return int(v.bond.replica) }

// table holds the conversations. Those with an open request are in no list; the
// others wait in recent until they are no longer live, then in idle until they
// are forgotten, both in order of their last request. So every event costs the
// same however many conversations there are.
type table struct {
	rows
	byKey            map[Key]row
	lists            [2]list
	homed            []row      // by replica, the first of those whose home it is
	held             []contents // by replica; the last for those without a home
	caches           []cache    // by replica
	all              contents
	liveFor, idleFor time.Duration
	max              int
}

func newTable(replicas int) table {
	return table{byKey: make(map[Key]row), held: make([]contents, replicas+1), caches: make([]cache, replicas), homed: make([]row, replicas)}
}

// contents is what the live conversations of one home hold.
type contents struct {
	live     int
	sized    int   // those whose context is known, measured or estimated
	measured int   // those whose context was measured
	exact    int64 // tokens of the measured
	guessed  int64 // tokens of the estimated
}

func (h *contents) tokens() int64 { return h.exact + h.guessed }

// weight is the context of the live conversations in mean conversations, which
// those not known count as.
func (h *contents) weight(perToken float64) float64 {
	return float64(h.tokens())*perToken + float64(h.live-h.sized)
}

func (h *contents) add(v *conversation, sign int) {
	h.live += sign
	if v.tokens > 0 {
		h.sized += sign
	}
	if v.measured {
		h.measured += sign
		h.exact += int64(sign) * v.tokens
	} else {
		h.guessed += int64(sign) * v.tokens
	}
}

// heldAt is what a replica holds; None stands for the conversations without a home.
func (t *table) heldAt(replica int) *contents {
	if replica == None {
		replica = len(t.held) - 1
	}
	return &t.held[replica]
}

// meanContext is the mean context of the live conversations in tokens; 1 while
// nothing is known, so that weights are then numbers of conversations.
func (t *table) meanContext() float64 {
	if t.all.sized == 0 {
		return 1
	}
	return float64(t.all.tokens()) / float64(t.all.sized)
}

// get finds a conversation, nil when it is not known.
func (t *table) get(k Key) *conversation {
	if r, known := t.byKey[k]; known {
		return t.at(r)
	}
	return nil
}

// add makes a conversation without a home. It is in no list: the caller opens
// it, or puts it into one.
func (t *table) add(k Key, now time.Duration) *conversation {
	v := t.take()
	v.key, v.bond, v.seen = k, bond{replica: None, from: None}, now
	v.lastSpill, v.lastServer = None, None
	v.runningAt, v.cachedAt, v.keptAt = None, None, None
	t.byKey[k] = v.row
	return v
}

// open counts a request of v; estimate is its prompt in tokens, 0 when not known.
func (t *table) open(v *conversation, now time.Duration, estimate int64) {
	t.unlink(v)
	t.setLive(v, true)
	v.open++
	v.turns++
	v.seen = now
	if !v.measured && estimate > 0 {
		t.resize(v, estimate, false)
	}
	t.trim()
}

// close ends a request of v.
func (t *table) close(v *conversation, now time.Duration) {
	v.open--
	v.seen = now
	if v.open == 0 {
		t.pushBack(recent, v)
		t.trim()
	}
}

// resize sets v's context.
func (t *table) resize(v *conversation, tokens int64, measured bool) {
	live := v.live
	t.setLive(v, false)
	v.tokens, v.measured = max(tokens, 0), measured
	t.setLive(v, live)
}

// bind gives v a home, or none.
func (t *table) bind(v *conversation, b bond) {
	live := v.live
	t.setLive(v, false)
	t.leave(v)
	v.bond = b
	t.enter(v)
	t.setLive(v, live)
}

// enter lists v, which is in no home's list, at its home.
func (t *table) enter(v *conversation) {
	if v.home() == None {
		return
	}
	first := &t.homed[v.home()]
	v.homePrev, v.homeNext = 0, *first
	if *first != 0 {
		t.at(*first).homePrev = v.row
	}
	*first = v.row
}

// leave takes v out of the list of its home.
func (t *table) leave(v *conversation) {
	if v.home() == None {
		return
	}
	if v.homePrev == 0 {
		t.homed[v.home()] = v.homeNext
	} else {
		t.at(v.homePrev).homeNext = v.homeNext
	}
	if v.homeNext != 0 {
		t.at(v.homeNext).homePrev = v.homePrev
	}
	v.homePrev, v.homeNext = 0, 0
}

func (t *table) setLive(v *conversation, live bool) {
	if v.live == live {
		return
	}
	v.live = live
	sign := 1
	if !live {
		sign = -1
	}
	t.heldAt(v.home()).add(v, sign)
	t.all.add(v, sign)
}

// expire lets conversations fall out of the live ones, and forgets the idle.
func (t *table) expire(now time.Duration) {
	for v := t.front(recent); v != nil && v.seen+t.liveFor <= now; v = t.front(recent) {
		t.unlink(v)
		t.setLive(v, false)
		t.pushBack(idle, v)
	}
	for v := t.front(idle); v != nil && v.seen+t.idleFor <= now; v = t.front(idle) {
		t.forget(v)
	}
}

// trim forgets the longest idle while there are too many.
func (t *table) trim() {
	for len(t.byKey) > t.max {
		oldest := t.front(idle)
		if oldest == nil {
			oldest = t.front(recent)
		}
		if oldest == nil {
			return
		}
		t.forget(oldest)
	}
}

// forget removes a conversation that has no open request.
func (t *table) forget(v *conversation) {
	t.unlink(v)
	t.setLive(v, false)
	t.leave(v)
	t.uncache(v)
	t.unkeep(v)
	delete(t.byKey, v.key)
	t.give(v)
}
