package routing_test

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	. "lmwarden/internal/routing"
)

const (
	propLiveFor = time.Minute
	propIdleFor = 3 * time.Minute
	propMax     = 8
)

// machine drives two cores with the same calls and keeps, in the plainest way, a
// second account of what must be true of them.
type machine struct {
	core, twin *Core
	replicas   []Replica
	states     []State
	policy     string
	threshold  int
	now        time.Time
	lastID     RequestID
	steps      int
	counted    int64
	open       map[RequestID]*openRequest
	known      map[Key]*knownConversation
}

type openRequest struct {
	Request
	decision Decision
	inForce  bool
	held     bool
	queued   time.Time // when it was last held
	counted  bool      // by a decision
	retried  bool
	tried    map[int]bool
	gone     bool // the replica that it is in flight on is removed
	lost     bool // so is the one that it is counted at, and the count with it
}

type knownConversation struct {
	home   int
	open   int
	seen   time.Time
	order  int // step of the last end
	tokens int64
	exact  bool
	// evicted is set while its home is lost because the replica was removed.
	evicted bool
}

func newMachine(t *rapid.T) *machine {
	m := &machine{
		now:  time.Date(2026, 10, 4, 8, 0, 0, 0, time.UTC),
		open: map[RequestID]*openRequest{}, known: map[Key]*knownConversation{},
		policy:    rapid.SampledFrom(Policies()).Draw(t, "policy"),
		threshold: rapid.IntRange(1, 4).Draw(t, "threshold"),
	}
	for s := range rapid.IntRange(1, 3).Draw(t, "servers") {
		for range rapid.IntRange(1, 3).Draw(t, "ranks") {
			m.replicas = append(m.replicas, Replica{Server: s})
		}
	}
	m.states = make([]State, len(m.replicas))
	o := Options{
		Replicas: m.replicas, Policy: m.policy, SpillThreshold: m.threshold,
		LiveFor: propLiveFor, IdleFor: propIdleFor, MaxConversations: propMax,
	}
	var err error
	if m.core, err = New(o); err != nil {
		t.Fatal(err)
	}
	if m.twin, err = New(o); err != nil {
		t.Fatal(err)
	}
	for i := range m.replicas {
		m.setState(t, i, Ready)
	}
	return m
}

func (m *machine) setState(t *rapid.T, i int, s State) {
	actions := m.core.SetState(m.now, i, s)
	same(t, actions, m.twin.SetState(m.now, i, s))
	m.states[i] = s
	m.carryOut(t, actions)
}

func (m *machine) drawKey(t *rapid.T, label string) Key {
	n := rapid.IntRange(-1, 11).Draw(t, label)
	if n < 0 {
		return Key{}
	}
	return key(n)
}

func (m *machine) drawID(t *rapid.T) RequestID {
	if len(m.open) == 0 {
		t.Skip("nothing open")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m.open))).Draw(t, "id")
}

// same wants both cores to have answered the same.
func same(t *rapid.T, a, b any) {
	t.Helper()
	if diff := cmp.Diff(a, b, cmpopts.EquateNaNs()); diff != "" {
		t.Fatalf("equal calls, different answers:\n%s", diff)
	}
}

func (m *machine) arrive(t *rapid.T) {
	m.lastID++
	r := Request{
		ID: m.lastID, Key: m.drawKey(t, "key"), Parent: m.drawKey(t, "parent"), Extends: m.drawKey(t, "extends"),
		Pin: None, Tokens: int64(rapid.IntRange(0, 3).Draw(t, "tokens")) * 500,
	}
	if rapid.IntRange(0, 9).Draw(t, "pinned") == 0 {
		r.Pin = rapid.IntRange(0, len(m.replicas)).Draw(t, "pin")
	}
	if rapid.IntRange(0, 4).Draw(t, "blind") == 0 {
		r.Blind = rapid.SliceOfN(rapid.Bool(), 3, 3).Draw(t, "blind at")
	}
	r.Class = Class(rapid.IntRange(0, 1).Draw(t, "class"))
	r.Tenant = m.drawKey(t, "tenant")
	actions := m.core.Arrive(m.now, r)
	same(t, actions, m.twin.Arrive(m.now, r))
	a := actions[0]
	if a.Kind == Refuse {
		m.checkRefusal(t, &openRequest{Request: r}, a)
		return
	}
	q := &openRequest{Request: r, tried: map[int]bool{}}
	m.open[r.ID] = q
	if r.Key != (Key{}) {
		v := m.known[r.Key]
		if v == nil {
			v = &knownConversation{home: None}
			m.known[r.Key] = v
		}
		v.open++
		v.seen = m.now
		if !v.exact && r.Tokens > 0 {
			v.tokens = r.Tokens
		}
	}
	m.carryOut(t, actions)
	m.evict()
}

// carryOut does what the core orders, as a driver does.
func (m *machine) carryOut(t *rapid.T, actions []Action) {
	for _, a := range actions {
		q := m.open[a.ID]
		switch {
		case q == nil || q.inForce:
			t.Fatalf("order for a request that is not open, or has an attempt: %+v", a)
		case a.Kind == Hold:
			if q.held || m.policy != "patience" || a.Position < 1 || a.Why == "" {
				t.Fatalf("held under %s: %+v", m.policy, a)
			}
			q.held, q.queued = true, m.now
		case a.Kind == Refuse:
			q.held = false
			m.checkRefusal(t, q, a)
		default:
			if v := m.known[q.Key]; v != nil && v.evicted && a.Decision.Reason == Placed {
				t.Fatalf("placed as a new conversation, though its home was removed: %+v", a.Decision)
			}
			if a.Decision.Waited != 0 && a.Decision.Waited != m.now.Sub(q.queued) {
				t.Fatalf("waited %v: %+v", m.now.Sub(q.queued), a.Decision)
			}
			q.held = false
			if !q.counted || q.lost {
				m.counted++
				q.counted, q.lost = true, false
			}
			if q.tried[a.Decision.Server] {
				t.Fatalf("retried at server %d, where it had failed", a.Decision.Server)
			}
			m.dispatched(t, q, a.Decision)
		}
	}
}

func (m *machine) retry(t *rapid.T) {
	id := m.drawID(t)
	q := m.open[id]
	wasInForce := q.inForce
	q.retried = true
	if q.held {
		t.Skip("no attempt is open")
	}
	if wasInForce && q.decision.Server != None {
		q.tried[q.decision.Server] = true
		if rapid.Bool().Draw(t, "server down") {
			for i, r := range m.replicas {
				if r.Server == q.decision.Server {
					m.setState(t, i, Down)
				}
			}
		}
	}
	q.inForce = false
	actions := m.core.Retry(m.now, id)
	same(t, actions, m.twin.Retry(m.now, id))
	if q.Key != (Key{}) {
		// The failed decision is undone first: the home may be back where it was.
		if h, ok := m.core.Home(q.Key); ok && actions[0].Kind == Refuse {
			m.known[q.Key].home = h.Replica
		}
		m.known[q.Key].evicted = false // or back to before that
	}
	if a := actions[0]; a.Kind == Refuse && !wasInForce {
		actions = actions[1:] // it had no attempt that could have failed
	} else if a.Kind != Dispatch && q.Key != (Key{}) {
		h, _ := m.core.Home(q.Key)
		m.known[q.Key].home = h.Replica
	}
	m.carryOut(t, actions)
}

// checkRefusal wants a refusal to have no alternative.
func (m *machine) checkRefusal(t *rapid.T, q *openRequest, a Action) {
	if a.Why == QueueFull && len(m.core.Waiting(m.now)) > 0 {
		return // the wait would be too long
	}
	allOut := !slices.ContainsFunc(m.states, func(s State) bool { return s < Ejected })
	for i, r := range m.replicas {
		takes := m.states[i] < Ejected || m.states[i] == Ejected && (q.Pin == None || allOut)
		if (q.Pin == None || q.Pin == i) && takes && !q.tried[r.Server] {
			t.Fatalf("request %+v refused (%s) although replica %d is %v", q.Request, a.Why, i, m.states[i])
		}
	}
}

// dispatched checks a decision against the rules and takes it into the account.
func (m *machine) dispatched(t *rapid.T, q *openRequest, d Decision) {
	if d.Replica != None {
		if m.states[d.Replica] == Down {
			t.Fatalf("sent to replica %d, which is down: %+v", d.Replica, d)
		}
		if m.replicas[d.Replica].Server != d.Server {
			t.Fatalf("replica and server disagree: %+v", d)
		}
	}
	v := m.known[q.Key]
	home := d.From
	if d.Why == ByOperator {
		home = d.Home
	}
	// A retry starts from the home before the failed attempt.
	if v != nil && !q.retried && v.home != home {
		t.Fatalf("decided from home %d, it was %d: %+v", home, v.home, d)
	}
	if d.Reason == Placed || d.Reason == Moved && d.Why != ByOperator {
		for i, r := range m.replicas {
			better := m.states[i] == Ready && m.states[d.Replica] != Ready ||
				m.states[i] == Unknown && m.states[d.Replica] > Ready
			if better && !q.tried[r.Server] {
				t.Fatalf("%v at replica %d (%v) although %d is %v", d.Reason, d.Replica, m.states[d.Replica], i, m.states[i])
			}
		}
	}
	if m.policy == "affinity" && q.Pin == None && home != None && d.Reason != Engine {
		server := m.replicas[home].Server
		pressure := float64(m.inFlight(home)) + m.share(server)
		if m.states[home] == Ready && pressure < float64(m.threshold) && !q.tried[server] && d.Replica != home {
			t.Fatalf("left its ready home %d with %v in flight: %+v", home, pressure, d)
		}
		if d.Reason == Spilled && d.Why == HomeFull {
			if there := float64(m.inFlight(d.Replica)) + m.share(d.Server); pressure < float64(m.threshold) || there >= pressure {
				t.Fatalf("spilled with %v at home to %v: %+v", pressure, there, d)
			}
		}
	}
	q.decision, q.inForce, q.gone = d, true, false
	if v != nil {
		v.home = d.Home
		v.evicted = v.evicted && d.Home == None
	}
}

func (m *machine) inFlight(replica int) (n int) {
	for _, q := range m.open {
		if q.inForce && q.decision.Replica == replica {
			n++
		}
	}
	return n
}

// share is what the requests of unknown rank weigh on each replica of a server.
func (m *machine) share(server int) float64 {
	var unplaced, size float64
	for _, q := range m.open {
		if q.inForce && !q.gone && q.decision.Replica == None && q.decision.Server == server {
			unplaced++
		}
	}
	for _, r := range m.replicas {
		if r.Server == server {
			size++
		}
	}
	return unplaced / size
}

func (m *machine) finish(t *rapid.T) {
	id := m.drawID(t)
	q := m.open[id]
	o := Outcome{
		OK: rapid.Bool().Draw(t, "ok"), Known: rapid.Bool().Draw(t, "counted"),
		Prompt: int64(rapid.IntRange(1, 5000).Draw(t, "prompt")), Completion: 10,
	}
	actions := m.core.Finish(m.now, id, o)
	same(t, actions, m.twin.Finish(m.now, id, o))
	delete(m.open, id)
	if v := m.known[q.Key]; v != nil {
		if q.inForce && o.OK && o.Known {
			v.tokens, v.exact = o.Prompt+o.Completion, true
		}
		v.open--
		v.seen, v.order = m.now, m.steps
	}
	m.carryOut(t, actions)
	m.evict()
}

// evict forgets the longest idle while the account holds too many.
func (m *machine) evict() {
	for len(m.known) > propMax {
		var oldest Key
		for k, v := range m.known {
			if v.open == 0 && (oldest == Key{} || v.order < m.known[oldest].order) {
				oldest = k
			}
		}
		if oldest == (Key{}) {
			return
		}
		delete(m.known, oldest)
	}
}

func (m *machine) pass(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
	actions := m.core.Tick(m.now)
	same(t, actions, m.twin.Tick(m.now))
	m.carryOut(t, actions)
	for k, v := range m.known {
		if v.open == 0 && m.now.Sub(v.seen) >= propIdleFor {
			delete(m.known, k)
		}
	}
}

func (m *machine) observe(t *rapid.T) {
	i := rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")
	l := Load{
		Capacity: rapid.SampledFrom([]int64{0, 2000, 9000}).Draw(t, "capacity"),
		Running:  rapid.IntRange(0, 3).Draw(t, "running"),
		KVUsed:   rapid.SampledFrom([]float64{0, 0.5, 0.95, math.NaN()}).Draw(t, "kv"),
		Epoch:    rapid.IntRange(0, 3).Draw(t, "epoch"), Stale: rapid.Bool().Draw(t, "stale"),
	}
	m.core.Observe(m.now, i, l)
	m.twin.Observe(m.now, i, l)
}

func (m *machine) operate(t *rapid.T) {
	k := key(rapid.IntRange(0, 11).Draw(t, "key"))
	if rapid.Bool().Draw(t, "release") {
		m.twin.Release(k)
		if m.core.Release(k) != (m.known[k] != nil) {
			t.Fatalf("Release of %x: known %v", k[:], m.known[k] != nil)
		}
		if v := m.known[k]; v != nil {
			v.home, v.evicted = None, false
		}
		return
	}
	i := rapid.IntRange(0, len(m.replicas)-1).Draw(t, "to")
	_ = m.twin.Rehome(m.now, k, i)
	if m.core.Rehome(m.now, k, i) == nil {
		m.known[k].home, m.known[k].evicted = i, false
	}
}

// reshape draws another list of replicas, in any order, of servers that stay, go,
// come, lose ranks and gain some.
func (m *machine) reshape(t *rapid.T) {
	var order []int // of the old servers that stay, None for new ones
	for s := range slices.MaxFunc(m.replicas, func(a, b Replica) int { return a.Server - b.Server }).Server + 1 {
		if rapid.IntRange(0, 3).Draw(t, "stays") > 0 {
			order = append(order, s)
		}
	}
	for range rapid.IntRange(0, 1).Draw(t, "come") {
		order = append(order, None)
	}
	if len(order) == 0 {
		order = append(order, None)
	}
	order = rapid.Permutation(order).Draw(t, "order")
	moved, servers := map[int]int{None: None}, map[int]int{None: None}
	var replicas []Replica
	var was []int
	var states []State
	for now, before := range order {
		size := 0
		for i, r := range m.replicas {
			if before != None && r.Server == before && rapid.IntRange(0, 4).Draw(t, "rank stays") > 0 {
				moved[i], servers[before] = len(was), now
				replicas, was, states = append(replicas, Replica{Server: now}), append(was, i), append(states, m.states[i])
				size++
			}
		}
		more := rapid.IntRange(0, 1).Draw(t, "more ranks")
		if size == 0 {
			more = 1 // no server is without a replica
		}
		for range more {
			replicas, was, states = append(replicas, Replica{Server: now}), append(was, None), append(states, Unknown)
		}
	}
	for i, r := range m.core.View(m.now).Replicas {
		if _, stays := moved[i]; !stays {
			m.counted -= r.Placed + r.Sticky + r.SpilledIn + r.MovedIn + r.ClientPinned + r.Unbound
		}
	}
	if err := m.core.Reshape(m.now, replicas, was); err != nil {
		t.Fatal(err)
	}
	if err := m.twin.Reshape(m.now, replicas, was); err != nil {
		t.Fatal(err)
	}
	to := func(by map[int]int, old int) int {
		if i, stays := by[old]; stays {
			return i
		}
		return None
	}
	for _, q := range m.open {
		d := &q.decision
		placed := d.Replica != None
		d.Replica, d.Server = to(moved, d.Replica), to(servers, d.Server)
		if placed && d.Replica == None {
			q.gone, q.lost = true, q.lost || d.Reason != Off
		}
		tried := map[int]bool{}
		for s := range q.tried {
			if now := to(servers, s); now != None {
				tried[now] = true
			}
		}
		q.tried = tried
	}
	for _, v := range m.known {
		if v.home != None {
			v.home = to(moved, v.home)
			v.evicted = v.home == None
		}
	}
	m.replicas, m.states = replicas, states
}

func (m *machine) switchPolicy(t *rapid.T) {
	m.policy = rapid.SampledFrom(Policies()).Draw(t, "policy")
	m.threshold = rapid.IntRange(1, 4).Draw(t, "threshold")
	for _, c := range []*Core{m.core, m.twin} {
		if c.SetPolicy(m.policy) != nil || c.SetSpillThreshold(m.threshold) != nil {
			t.Fatal("a policy of the list is refused")
		}
	}
	actions := m.core.Tick(m.now)
	same(t, actions, m.twin.Tick(m.now))
	m.carryOut(t, actions)
}

// restore fills another core from the snapshot and compares.
func (m *machine) restore(t *rapid.T) {
	fresh, err := New(Options{Replicas: m.replicas, Policy: m.policy, IdleFor: propIdleFor, LiveFor: propLiveFor})
	if err != nil {
		t.Fatal(err)
	}
	rows := m.core.Snapshot()
	if dropped := fresh.Restore(m.now, rows); dropped != 0 {
		t.Fatalf("dropped %d rows", dropped)
	}
	for _, h := range rows {
		h.InFlight = 0
		got, ok := fresh.Home(h.Key)
		if !ok && m.now.Sub(h.LastSeen) < propIdleFor {
			t.Fatalf("conversation %x lost", h.Key[:])
		}
		if diff := cmp.Diff(h, got); ok && diff != "" {
			t.Fatalf("restored row (-before +after):\n%s", diff)
		}
	}
}

// drain makes everything ready, and wants every request that waits to be sent
// once those before it have ended.
func (m *machine) drain(t *rapid.T) {
	for i := range m.replicas {
		m.setState(t, i, Ready)
	}
	for len(m.open) > 0 {
		before := len(m.open)
		for _, id := range slices.Sorted(maps.Keys(m.open)) {
			if q := m.open[id]; !q.held {
				delete(m.open, id)
				m.carryOut(t, m.core.Finish(m.now, id, Outcome{OK: true}))
				if len(m.core.Finish(m.now, id, Outcome{OK: true})) > 0 {
					t.Fatal("a request ends twice")
				}
			}
		}
		m.now = m.now.Add(time.Second)
		m.carryOut(t, m.core.Tick(m.now))
		if len(m.open) == before && !slices.ContainsFunc(slices.Collect(maps.Values(m.open)), func(q *openRequest) bool { return !q.held }) {
			t.Fatalf("%d requests wait for ever", before)
		}
	}
}

// check compares everything that can be seen with the account.
func (m *machine) check(t *rapid.T) {
	m.steps++
	v := m.core.View(m.now)
	same(t, v, m.twin.View(m.now))
	inFlight, counted, held := 0, v.EngineChosen, 0
	for _, q := range m.open {
		if q.inForce {
			inFlight++
		}
		if q.held {
			held++
		}
	}
	if n := len(m.core.Waiting(m.now)); n != held || v.Queue.Waiting != held || held > 0 && m.policy != "patience" {
		t.Fatalf("%d wait, the list has %d, want %d", v.Queue.Waiting, n, held)
	}
	if v.InFlight != inFlight {
		t.Fatalf("in flight %d, want %d", v.InFlight, inFlight)
	}
	live, tokens := make([]int, len(m.replicas)), make([]int64, len(m.replicas))
	homed := 0
	for i := range m.replicas {
		keys, all := m.core.HomedAt(i, len(m.known))
		for _, k := range keys {
			if c := m.known[k]; c == nil || c.home != i {
				t.Fatalf("conversation %x is listed at replica %d, it is %+v", k[:], i, c)
			}
		}
		if homed += len(keys); !all {
			t.Fatalf("replica %d has more than %d conversations", i, len(m.known))
		}
	}
	allLive := 0
	for k, c := range m.known {
		h, ok := m.core.Home(k)
		if !ok || h.Replica != c.home || h.InFlight != c.open {
			t.Fatalf("conversation %x: %+v (known %v), want home %d with %d in flight", k[:], h, ok, c.home, c.open)
		}
		if c.home != None {
			homed--
		}
		if c.open == 0 && m.now.Sub(c.seen) >= propLiveFor {
			continue
		}
		allLive++
		if c.home != None {
			live[c.home]++
			tokens[c.home] += c.tokens
		}
	}
	if homed != 0 {
		t.Fatalf("%d conversations too many are listed at homes", homed)
	}
	if v.Known != len(m.known) || v.Live != allLive {
		t.Fatalf("known %d, live %d; want %d, %d", v.Known, v.Live, len(m.known), allLive)
	}
	for i, r := range v.Replicas {
		counted += r.Placed + r.Sticky + r.SpilledIn + r.MovedIn + r.ClientPinned + r.Unbound
		if r.InFlight != m.inFlight(i) || r.LiveConversations != live[i] || r.LiveTokens != tokens[i] {
			t.Fatalf("replica %d: in flight %d, live %d with %d tokens; want %d, %d, %d",
				i, r.InFlight, r.LiveConversations, r.LiveTokens, m.inFlight(i), live[i], tokens[i])
		}
	}
	if counted != m.counted {
		t.Fatalf("counted %d requests, want %d", counted, m.counted)
	}
}

func TestCoreProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"arrive":  m.arrive,
			"arrive2": m.arrive,
			"retry":   m.retry,
			"finish":  m.finish,
			"pass":    m.pass,
			"observe": m.observe,
			"operate": m.operate,
			"restore": m.restore,
			"policy":  m.switchPolicy,
			"reshape": m.reshape,
			"state": func(t *rapid.T) {
				m.setState(t, rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica"),
					State(rapid.IntRange(0, int(Down)).Draw(t, "state")))
			},
			"": m.check,
		})
		m.drain(t)
		v := m.core.View(m.now)
		if v.Queue.Waiting != 0 {
			t.Fatalf("%d wait when all is done", v.Queue.Waiting)
		}
		if v.InFlight != 0 {
			t.Fatalf("in flight %d when all is done", v.InFlight)
		}
		for i, r := range v.Replicas {
			if r.InFlight != 0 {
				t.Fatalf("replica %d: in flight %d when all is done", i, r.InFlight)
			}
		}
	})
}

// Whatever the number of replicas, the size of the burst and the load before it,
// first turns level the requests in flight as far as they reach.
func TestBurstsLevelTheLoad(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		replicas := rapid.IntRange(1, 16).Draw(rt, "replicas")
		b := newBox(t, "affinity", separate(replicas))
		load := make([]int, replicas)
		for i := range load {
			load[i] = rapid.IntRange(0, 6).Draw(rt, "load")
			b.fill(i, load[i])
		}
		for n := range rapid.IntRange(0, 64).Draw(rt, "burst") {
			_, d := b.open(turn(n))
			if least := slices.Min(load); load[d.Replica] != least {
				rt.Fatalf("placed where %d were in flight, the least was %d", load[d.Replica], least)
			}
			load[d.Replica]++
		}
		if got := b.inFlight(); !slices.Equal(got, load) {
			rt.Fatalf("in flight %v, want %v", got, load)
		}
	})
}
