package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

// model is a pool in the API.
type model struct {
	Name           string         `json:"name"`
	ServedName     string         `json:"served_name"`
	Aliases        []string       `json:"aliases"`
	Affinity       string         `json:"affinity"`
	Policy         string         `json:"policy"`
	Instead        text           `json:"instead"` // the policy that decides in its place
	Shadow         *shadow        `json:"shadow"`
	SpillThreshold spillThreshold `json:"spill_threshold"`
	StickyPercent  percent        `json:"sticky_percent"`
	InFlight       int            `json:"in_flight"`
	Queue          queue          `json:"queue"`
	Learned        learned        `json:"learned"`
	CountersSince  stamp          `json:"counters_since"`
	Conversations  struct {
		Live  int `json:"live"`
		Known int `json:"known"`
	} `json:"conversations"`
	WorkingSet struct {
		Tokens   count `json:"tokens"`
		Capacity count `json:"capacity_tokens"`
		Fits     count `json:"conversations_that_fit"`
	} `json:"working_set"`
	Replicas []replica `json:"replicas"`
	Servers  []server  `json:"servers"`
}

type spillThreshold struct {
	Value int  `json:"value"`
	Auto  bool `json:"auto"`
}

// shadow is what another policy would have done with the requests so far.
type shadow struct {
	Policy   string           `json:"policy"`
	Requests int64            `json:"requests"`
	Same     int64            `json:"same"` // to the same replica, at once
	Held     int64            `json:"held"`
	Refused  int64            `json:"refused"`
	Reasons  map[string]int64 `json:"reasons"` // of the others
}

func shadowOf(v *routing.ShadowView) *shadow {
	if v == nil {
		return nil
	}
	s := &shadow{v.Policy, v.Requests, v.Same, v.Held, v.Refused, map[string]int64{}}
	for reason, n := range v.Reasons {
		s.Reasons[string(reason)] = n
	}
	return s
}

// queue is what waits at the gateway until a replica takes it on. Times are null
// while they are not known.
type queue struct {
	Waiting int    `json:"waiting"`
	Longest number `json:"longest_s"`
	Wait    number `json:"likely_wait_s"` // of a request that came now
	// Patience is how long a request waits until a replica is kept for it; null when
	// the policy holds none.
	Patience number `json:"patience_s"`
}

func queueOf(v pool.View) queue {
	q := v.Routing.Queue
	return queue{v.Waiting, knownTime(q.Longest), knownTime(q.Wait), knownTime(q.Patience)}
}

// knownTime is null for a time that is not known.
func knownTime(d time.Duration) number {
	if d <= 0 {
		return number(math.NaN())
	}
	return number(d.Seconds())
}

// replica is one row of the routing card in the API.
type replica struct {
	Index             int     `json:"index"`
	URL               string  `json:"url"`
	Rank              count   `json:"rank"`
	State             string  `json:"state"`
	InFlight          int     `json:"in_flight"`
	Placed            int64   `json:"placed"`
	Sticky            int64   `json:"sticky"`
	SpilledIn         int64   `json:"spilled_in"`
	MovedIn           int64   `json:"moved_in"`
	ClientPinned      int64   `json:"client_pinned"`
	Unbound           int64   `json:"unbound"`
	Running           count   `json:"running"`
	Waiting           count   `json:"waiting"`
	KVUsed            percent `json:"kv_used_percent"`
	PrefixHit         percent `json:"prefix_hit_percent"`
	LiveConversations int     `json:"live_conversations"`
	Epoch             count   `json:"epoch"`
	ScrapeAge         count   `json:"scrape_age_ms"`
	// CachedEstimate is what is likely cached, KVEvents what the engine says is; nil
	// when nobody listens to its KV events.
	CachedEstimate count     `json:"cached_tokens_estimate"`
	KVEvents       *kvEvents `json:"kv_events"`
}

// server is one engine process in the API.
type server struct {
	URL     string   `json:"url"`
	Kind    text     `json:"kind"`
	Version text     `json:"version"`
	Error   text     `json:"error"`
	Blind   []string `json:"rank_ignored_on"`
}

// learned are the values that the policy learned from traffic; null without a
// sample.
type learned struct {
	Shared      *measured `json:"shared_prefix_tokens"`
	Need        *measured `json:"request_tokens"`
	Output      *measured `json:"answer_tokens"`
	ReadingRate *measured `json:"reading_tokens_per_s"`
	Place       *measured `json:"place_s"`
	Hold        *measured `json:"hold_s"`
	Throughput  *measured `json:"turns_per_s"`
	// Rereading is the share of the replicas' time that goes into reading again what
	// was pushed out of their caches.
	Rereading *measured `json:"rereading_share"`
	// Estimated is the tokens that the gateway estimates of a prompt for each that
	// the engine counts.
	Estimated *measured `json:"estimate_ratio"`
}

type measured struct {
	Value   number `json:"value"`
	Samples int    `json:"samples"`
}

func learnedIn(l routing.Learned) learned {
	of := func(m routing.Measured) *measured {
		if m.Samples == 0 {
			return nil
		}
		return &measured{number(m.Value), m.Samples}
	}
	return learned{of(l.Shared), of(l.Need), of(l.Output), of(l.ReadingRate), of(l.Place), of(l.Hold), of(l.Throughput), of(l.Rereading), of(l.Estimated)}
}

// modelOf is the API's form of a view.
func modelOf(v pool.View) model {
	m := model{
		Name: v.Name, ServedName: v.ServedName, Aliases: append([]string{}, v.Aliases...),
		Affinity: "on", Policy: v.Routing.Policy, Instead: text(v.Routing.Instead), Shadow: shadowOf(v.Routing.Shadow),
		SpillThreshold: spillThreshold{v.Routing.SpillThreshold, v.Routing.SpillAuto},
		StickyPercent:  stickyPercent(v),
		InFlight:       v.Routing.InFlight,
		Queue:          queueOf(v),
		Learned:        learnedIn(v.Routing.Learned),
		CountersSince:  stamp(v.Since),
		Replicas:       []replica{},
		Servers:        []server{},
	}
	if v.Routing.Policy == off {
		m.Affinity = off
	}
	m.Conversations.Live, m.Conversations.Known = v.Routing.Live, v.Routing.Known
	m.WorkingSet.Tokens = count(v.Routing.WorkingSet.Tokens)
	m.WorkingSet.Capacity = count(v.Routing.WorkingSet.Capacity)
	m.WorkingSet.Fits = count(v.Routing.WorkingSet.Fits)
	for i, r := range v.Replicas {
		m.Replicas = append(m.Replicas, replicaOf(i, r))
	}
	for _, s := range v.Servers {
		m.Servers = append(m.Servers, server{s.URL, text(s.Info.Kind), text(s.Info.Version), text(s.Error), append([]string{}, s.Blind...)})
	}
	return m
}

func replicaOf(i int, r pool.ReplicaView) replica {
	out := replica{
		Index: i, URL: r.URL, Rank: count(r.Rank), State: r.State.String(), InFlight: r.InFlight,
		Placed: r.Placed, Sticky: r.Sticky, SpilledIn: r.SpilledIn, MovedIn: r.MovedIn,
		ClientPinned: r.ClientPinned, Unbound: r.Unbound,
		Running: -1, Waiting: -1, KVUsed: percent(math.NaN()),
		PrefixHit: percent(r.PrefixHitPercent), LiveConversations: r.LiveConversations,
		Epoch: -1, ScrapeAge: -1, CachedEstimate: count(r.CachedTokens),
	}
	if !r.Observed.IsZero() {
		out.Running, out.Waiting = count(r.Load.Running), count(r.Load.Waiting)
		out.KVUsed = percent(100 * r.Load.KVUsed)
	}
	if r.Load.Epoch > 0 {
		out.Epoch = count(r.Load.Epoch)
	}
	if r.ScrapeAge >= 0 {
		out.ScrapeAge = count(r.ScrapeAge.Milliseconds())
	}
	return out
}

// off is the policy that leaves the choice to the engine's balancer.
const off = "off"

// stickyPercent is the share of the turns of placed conversations that went
// home.
func stickyPercent(v pool.View) percent {
	c := countRequests(v)
	return share(c.sticky, c.sticky+c.spilled+c.moved)
}

// requests are the finished and open requests of all replicas, by reason.
type requests struct{ placed, sticky, spilled, moved int64 }

func countRequests(v pool.View) requests {
	var c requests
	for _, r := range v.Replicas {
		c.placed += r.Placed
		c.sticky += r.Sticky
		c.spilled += r.SpilledIn
		c.moved += r.MovedIn
	}
	return c
}

func (h *Handler) listModels(w http.ResponseWriter, r *http.Request) {
	body := struct {
		Models []model `json:"models"`
	}{[]model{}}
	for _, p := range h.o.Pools() {
		body.Models = append(body.Models, h.modelOf(p.View()))
	}
	writeJSON(w, body)
}

// replicaAction matches what follows /api/models/ when it is about a replica.
var replicaAction = regexp.MustCompile(`^(.+)/replicas/([^/]+)/(drain|resume)$`)

// oneModel serves all below /api/models/.
func (h *Handler) oneModel(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("rest")
	if m := replicaAction.FindStringSubmatch(name); m != nil {
		only(h.withPool(m[1], func(w http.ResponseWriter, r *http.Request, p Pool) {
			h.drainOrResume(w, p, m[2], m[3] == "drain")
		}), "POST").ServeHTTP(w, r)
		return
	}
	only(h.withPool(name, func(w http.ResponseWriter, r *http.Request, p Pool) {
		if r.Method == http.MethodPatch && !patchModel(w, r, p) {
			return
		}
		writeJSON(w, h.modelOf(p.View()))
	}), "GET", "PATCH").ServeHTTP(w, r)
}

// withPool finds the pool of a name, or answers 404 with those that there are.
func (h *Handler) withPool(name string, serve func(http.ResponseWriter, *http.Request, Pool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, known := h.find(name)
		if p == nil {
			writeUnknownModel(w, name, known)
			return
		}
		serve(w, r, p)
	})
}

func writeUnknownModel(w http.ResponseWriter, name string, known []string) {
	if len(known) == 0 {
		writeError(w, http.StatusNotFound, "no model %q; none is known yet", name)
		return
	}
	writeError(w, http.StatusNotFound, "no model %q; known: %s", name, strings.Join(known, ", "))
}

// patch is what PATCH takes; at least one field is set.
type patch struct {
	Affinity       *string    `json:"affinity"`
	Policy         *string    `json:"policy"`
	SpillThreshold *threshold `json:"spill_threshold"`
}

// threshold is "auto" or a whole number from 1; 0 stands for auto.
type threshold int

func (t *threshold) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil && word == "auto" {
		*t = 0
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 32)
	if err != nil || n < 1 {
		return &fieldError{fmt.Sprintf(`spill_threshold %s: must be "auto" or a whole number from 1`, b)}
	}
	*t = threshold(n)
	return nil
}

// patchModel changes a pool; it answers and returns false when it cannot.
// Everything is checked before anything changes, but for the policy's name,
// which the pool alone knows and which therefore comes first.
func patchModel(w http.ResponseWriter, r *http.Request, p Pool) bool {
	var c patch
	err := readBody(w, r, &c)
	switch {
	case err != nil:
	case c == (patch{}):
		err = &fieldError{`nothing to change; write affinity ("on" or "off"), policy or spill_threshold ("auto" or a number)`}
	case c.Affinity != nil && *c.Affinity != "on" && *c.Affinity != off:
		err = &fieldError{fmt.Sprintf(`affinity %q: must be "on" or "off"`, *c.Affinity)}
	case c.Affinity != nil && c.Policy != nil && (*c.Affinity == off) != (*c.Policy == off):
		err = &fieldError{fmt.Sprintf("affinity %q and policy %q contradict each other; write one of them", *c.Affinity, *c.Policy)}
	}
	if err == nil && c.Policy != nil {
		err = p.SetPolicy(*c.Policy)
	}
	if err == nil && c.Affinity != nil && c.Policy == nil {
		err = p.SetAffinity(*c.Affinity == "on")
	}
	if err == nil && c.SpillThreshold != nil {
		err = p.SetSpillThreshold(int(*c.SpillThreshold))
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return false
	}
	return true
}

func (h *Handler) drainOrResume(w http.ResponseWriter, p Pool, index string, drain bool) {
	replicas := len(p.View().Replicas)
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 || i >= replicas {
		writeError(w, http.StatusNotFound, "no replica %q; there are 0 to %d", index, replicas-1)
		return
	}
	change := p.Resume
	if drain {
		change = p.Drain
	}
	if err := change(i); err != nil {
		writeError(w, http.StatusConflict, "%s", err)
		return
	}
	writeJSON(w, h.modelOf(p.View()))
}
