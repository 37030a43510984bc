package routing

import "slices"

// decide chooses where q goes next, or says why nowhere. It counts nothing and
// changes no conversation: dispatch puts the decision into force.
func (c *Core) decide(q *request) (Decision, Why) {
	if q.Pin != None {
		return c.decidePin(q, q.home())
	}
	in, refusal := c.query(q)
	if refusal != "" {
		return Decision{}, refusal
	}
	return c.decision(q, &in, c.policy.choose(c, &in)), ""
}

// query is what a policy is asked about q, or why nothing can be asked.
func (c *Core) query(q *request) (query, Why) {
	in := query{
		key: q.Key, home: q.home(), lastSpill: None, lastServer: None,
		extends: c.homeOf(q.Extends), parent: c.homeOf(q.Parent), tried: q.tried,
	}
	if q.conv != nil {
		in.lastSpill, in.lastServer = int(q.conv.lastSpill), int(q.conv.lastServer)
		in.crowds = q.conv.running >= autoSpillThreshold && c.threshold == 0 && c.patient()
	}
	in.tier, in.among = c.candidates(q.tried)
	if len(in.among) == 0 {
		return query{}, NoReplica
	}
	return in, ""
}

// decision is a policy's choice with its reason and receipt.
func (c *Core) decision(q *request, in *query, ch choice) Decision {
	d := c.reasoned(q, in, ch)
	if ch.compared {
		d.Candidates = c.receipt(in, ch)
	}
	c.mark(ch.server, ch.replica)
	return d
}

// reasoned is a policy's choice with its reason.
func (c *Core) reasoned(q *request, in *query, ch choice) Decision {
	home := in.home
	d := Decision{Replica: ch.replica, Server: ch.server, Home: home, From: home}
	switch {
	case ch.toEngine:
		d.Reason = Off
	case q.Key == (Key{}):
		d.Reason = Unbound
		if c.blind(q, d.Server) {
			d.Replica = None
		}
	case c.blind(q, d.Server):
		d.Replica, d.Reason = None, Engine
	case home == None && q.conv != nil && q.conv.bond.removed:
		d.Reason, d.Why, d.Home = Moved, HomeRemoved, d.Replica
	case home == None:
		d.Reason, d.Home = Placed, d.Replica
	case d.Replica == home && q.conv.bond.byOperator:
		d.Reason, d.Why, d.From = Moved, ByOperator, int(q.conv.bond.from)
	case d.Replica == home:
		d.Reason, d.Cold = Stayed, c.cold(q.conv)
	case ch.spill:
		d.Reason, d.Why, d.Cold = Spilled, ch.why, c.cold(q.conv)
	default:
		d.Reason, d.Why, d.Home = Moved, ch.why, d.Replica
	}
	return d
}

// decidePin honours a client's own choice whatever the policy and whatever the
// replica's state, unless it is down, or kept out while another is not. It gives a
// home to a conversation that has none, because that is where its cache is now; it never moves one.
func (c *Core) decidePin(q *request, home int) (Decision, Why) {
	if !c.exists(q.Pin) {
		return Decision{}, NoSuchReplica
	}
	r := c.replicas[q.Pin]
	switch {
	case r.state == Down:
		return Decision{}, PinDown
	case slices.Contains(q.tried, r.server):
		return Decision{}, Failed
	case r.state == Ejected:
		if tier, _ := c.candidates(nil); tier != Ejected {
			return Decision{}, PinDown
		}
	}
	c.mark(r.server, q.Pin)
	d := Decision{Replica: q.Pin, Server: r.server, Reason: Pinned, Home: home, From: home}
	switch {
	case c.blind(q, r.server):
		d.Replica, d.Reason = None, Engine
	case q.Key != (Key{}) && home == None && r.takesNew():
		d.Home = q.Pin
	case home == q.Pin:
		d.Cold = c.cold(q.conv)
	}
	return d, ""
}

// mark makes a server, and its replica unless the engine picks one, the most
// recently chosen.
func (c *Core) mark(server, replica int) {
	c.choices++
	c.servers[server].chosen = c.choices
	if replica != None {
		c.replicas[replica].chosen = c.choices
	}
}

// undo is what a decision changed on its conversation.
type undo struct {
	bond      bond
	gaveHome  bool
	lastSpill int32
}

// dispatch puts a decision into force: the conversation's home, the in-flight
// counts and the counters of the reasons, in one step.
func (c *Core) dispatch(q *request, d Decision) Action {
	q.decision = d
	if v := q.conv; v != nil {
		q.undo = undo{bond: v.bond, lastSpill: v.lastSpill, gaveHome: d.Home != d.From && d.Why != ByOperator}
		if q.undo.gaveHome {
			c.homes.bind(v, bond{replica: int32(d.Home), from: None})
		}
		switch d.Reason {
		case Moved:
			v.moves++
			v.bond.byOperator = false
		case Spilled:
			v.spills++
			v.lastSpill = int32(d.Replica)
		case Engine, Off:
			v.lastServer = int32(d.Server)
		}
	}
	q.at, q.on = nil, c.servers[d.Server]
	if d.Replica != None {
		q.at = c.replicas[d.Replica]
	}
	if q.counted != nil {
		*q.counted-- // by the decision before
	}
	q.counted = c.counter(d)
	*q.counted++
	c.take(q)
	return Action{Kind: Dispatch, ID: q.ID, Decision: d}
}

// revert undoes what q's decision changed on its conversation, since its attempt
// failed. A home stays given when another request has been answered there since,
// or has changed it.
func (c *Core) revert(q *request) {
	v := q.conv
	if v == nil {
		return
	}
	switch q.decision.Reason {
	case Moved:
		v.moves--
		if q.decision.Why == ByOperator && v.home() == q.decision.Home {
			v.bond.byOperator = true
		}
	case Spilled:
		v.spills--
		if int(v.lastSpill) == q.decision.Replica {
			v.lastSpill = q.undo.lastSpill
		}
	}
	if q.undo.gaveHome && v.home() == q.decision.Home && !v.bond.served {
		c.homes.bind(v, q.undo.bond)
	}
}

// take counts q's attempt as in flight where its decision sends it.
func (c *Core) take(q *request) {
	q.open, q.sent, q.begun = true, c.clock.now, 0
	c.charge(q)
	c.addInFlight(q, q.weight())
}

// release ends q's attempt.
func (c *Core) release(q *request) {
	q.open = false
	c.addInFlight(q, -q.weight())
	c.discharge(q)
}

// weight is how much q adds to the requests in flight.
func (q *request) weight() int {
	if q.Light {
		return 0
	}
	return 1
}

func (c *Core) addInFlight(q *request, n int) {
	c.inFlight += n
	q.on.inFlight += n
	if q.at == nil {
		q.on.unplaced += n
	} else {
		q.at.inFlight += n
		q.at.peak = max(q.at.peak, q.at.inFlight)
	}
	c.agents.add(q, n)
}

// counter is where a decision is counted.
func (c *Core) counter(d Decision) *int64 {
	if d.Reason == Off || d.Replica == None {
		return &c.engineChosen
	}
	n := &c.replicas[d.Replica].served
	switch d.Reason {
	case Placed:
		return &n.placed
	case Stayed:
		return &n.sticky
	case Spilled:
		return &n.spilledIn
	case Moved:
		return &n.movedIn
	case Pinned:
		return &n.pinned
	default:
		return &n.unbound
	}
}

// home is where q's conversation lives, None when it makes none or has none.
func (q *request) home() int {
	if q.conv == nil {
		return None
	}
	return q.conv.home()
}

// homeOf is the home of another conversation, None when it is not known.
func (c *Core) homeOf(k Key) int {
	if k == (Key{}) {
		return None
	}
	if v := c.homes.get(k); v != nil {
		return v.home()
	}
	return None
}

// blind tells whether the engine ignores the rank of q on a server. A server of
// one replica leaves its engine no choice.
func (c *Core) blind(q *request, server int) bool {
	return server < len(q.Blind) && q.Blind[server] && len(c.servers[server].replicas) > 1
}

// cold tells whether the home's engine restarted since v's last turn there.
func (c *Core) cold(v *conversation) bool {
	return v.bond.epoch > 0 && c.replicas[v.home()].load.Epoch > int(v.bond.epoch)
}

// receipt copies the numbers that were compared: those of the candidates, and of
// a home that was found full.
func (c *Core) receipt(in *query, ch choice) []Candidate {
	among := in.among
	if ch.why == HomeFull && !c.eligible(in, in.home) {
		at, _ := slices.BinarySearch(among, in.home)
		among = slices.Insert(slices.Clone(among), at, in.home)
	}
	list := make([]Candidate, len(among))
	for n, i := range among {
		r, held := c.replicas[i], &c.homes.held[i]
		// Field by field: a composite literal is built aside and copied, which
		// costs more than all else here.
		to := &list[n]
		to.Replica, to.InFlight, to.KVUsed = int32(i), int32(r.inFlight), float32(r.kvUsed(c.servers[r.server].share()))
		to.LiveConversations, to.LiveTokens = int32(held.live), held.tokens()
	}
	return list
}
