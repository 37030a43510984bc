package web

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"

	"lmwarden/internal/pool"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
)

// conversation is a row of the conversation table in the API.
type conversation struct {
	ID           string `json:"id"`
	Model        string `json:"model"`
	Home         count  `json:"home"`
	Turns        int64  `json:"turns"`
	PromptTokens count  `json:"prompt_tokens"`
	CachedTokens count  `json:"cached_tokens"`
	Source       string `json:"source"`
	Client       text   `json:"client"`
	APIKey       text   `json:"key"`
	Parent       text   `json:"parent"`
	FirstSeen    stamp  `json:"first_seen"`
	LastSeen     stamp  `json:"last_seen"`
	InFlight     int    `json:"in_flight"`
	Spills       int64  `json:"spills"`
	Moves        int64  `json:"moves"`
}

// conversationOf joins a row with its home, which the pool knows; p may be nil.
func conversationOf(c session.Conversation, p Pool) conversation {
	out := conversation{
		ID: c.Name, Model: c.Model, Home: -1, Turns: c.Turns,
		PromptTokens: count(c.PromptTokens), CachedTokens: count(c.CachedTokens),
		Source: c.Source, Client: text(c.Client), APIKey: text(c.Tenant), Parent: text(c.Parent.Name()),
		FirstSeen: stamp(c.FirstSeen), LastSeen: stamp(c.LastSeen), InFlight: c.Open,
	}
	if p != nil {
		if home, ok := p.Home(c.Key); ok {
			out.Home, out.Spills, out.Moves = count(home.Replica), home.Spills, home.Moves
		}
	}
	return out
}

func (h *Handler) listConversations(w http.ResponseWriter, r *http.Request) {
	const most = 1000
	q := r.URL.Query()
	limit, err := limitOf(q, 100, most)
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	pools, known := h.poolsByName()
	if name := q.Get("model"); name != "" && pools[name] == nil {
		writeUnknownModel(w, name, known)
		return
	}
	query := session.Query{Model: q.Get("model"), Client: q.Get("client"), Sort: q.Get("sort"), Limit: limit, Cursor: q.Get("cursor")}
	if err := atReplica(&query, q.Get("replica"), poolOf(q.Get("model"), pools)); err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	page, next, err := h.o.Conversations.Conversations(query)
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	body := struct {
		Conversations []conversation `json:"conversations"`
		Next          text           `json:"next"`
	}{[]conversation{}, text(next)}
	for _, c := range page {
		body.Conversations = append(body.Conversations, conversationOf(c, pools[c.Model]))
	}
	writeJSON(w, body)
}

// poolOf is the pool of a model, or the only one when none is named; nil when
// there is no such.
func poolOf(model string, pools map[string]Pool) Pool {
	if model == "" && len(pools) == 1 {
		for model = range pools {
		}
	}
	return pools[model]
}

// fewHomed is so few conversations at a replica that they are listed one by one: it
// keeps the pool's lock for less than a millisecond. Where more live, a page is soon
// full of them.
const fewHomed = 4096

// atReplica asks for the conversations whose home is the replica that a parameter
// names; for all of them when it is empty. Replicas are numbered within a model.
func atReplica(q *session.Query, parameter string, p Pool) error {
	if parameter == "" {
		return nil
	}
	if p == nil {
		return fmt.Errorf("replica %q: needs a model beside it, since each counts its own replicas", parameter)
	}
	replicas := len(p.View().Replicas)
	n, err := strconv.Atoi(parameter)
	if err != nil || n < 0 || n >= replicas {
		return fmt.Errorf("replica %q: must be 0 to %d", parameter, replicas-1)
	}
	if keys, few := p.HomedAt(n, fewHomed); few {
		q.Among = append([]session.Key{}, keys...) // not nil
		return nil
	}
	q.Keep = func(k session.Key) bool {
		home, ok := p.Home(k)
		return ok && home.Replica == n
	}
	return nil
}

// withConversation finds the conversation of a request's path and its pool, or
// answers.
func (h *Handler) withConversation(w http.ResponseWriter, r *http.Request) (session.Conversation, Pool, bool) {
	id := r.PathValue("id")
	c, ok := h.o.Conversations.Find(id)
	if !ok {
		writeError(w, http.StatusNotFound, "no conversation %q; GET /api/conversations lists those that are known", id)
		return c, nil, false
	}
	p, _ := h.find(c.Model)
	return c, p, true
}

// turn is one request of a conversation: as the history keeps it, or as its
// receipt says where no history is kept. RequestID is of receipts only.
type turn struct {
	Time       stamp  `json:"time"`
	RequestID  text   `json:"request_id"`
	Replica    count  `json:"replica"`
	From       count  `json:"from"`
	Reason     string `json:"reason"`
	Why        text   `json:"why"`
	Outcome    text   `json:"outcome"`
	Prompt     count  `json:"prompt_tokens"`
	Cached     count  `json:"cached_tokens"`
	Completion count  `json:"completion_tokens"`
	TTFB       number `json:"ttfb_s"`
	Duration   number `json:"duration_s"`
	Waited     number `json:"waited_s"`
	Cause      text   `json:"cause"`
	Reread     int64  `json:"reread_tokens"`
	Changed    *place `json:"changed"`
}

// place is where a client changed its own prompt.
type place struct {
	Part    string `json:"part"`
	Message count  `json:"message"` // from 0, of the part "message" only
	Byte    count  `json:"byte"`
	Offset  count  `json:"offset"`
	Within  count  `json:"within"`
}

// placeOf is nil when nothing was changed.
func placeOf(c stats.Change) *place {
	if c.Part == "" {
		return nil
	}
	p := place{Part: c.Part, Message: -1, Byte: count(c.Byte), Offset: count(c.Offset), Within: count(c.Within)}
	if c.Part == "message" {
		p.Message = count(c.Message)
	}
	if c.Offset < 0 {
		p.Within = -1
	}
	return &p
}

func turnOf(t stats.Turn) turn {
	out := turn{
		Time: stamp(t.Time), Replica: count(t.Replica), From: count(t.From), Reason: t.Reason, Why: text(t.Why), Outcome: text(t.Outcome),
		Prompt: count(t.Prompt), Cached: count(t.Cached), Completion: count(t.Completion),
		TTFB: number(math.NaN()), Duration: number(t.Duration.Seconds()), Waited: number(t.Waited.Seconds()), Cause: text(t.Cause), Reread: t.Reread,
		Changed: placeOf(t.Changed),
	}
	if t.TTFB > 0 {
		out.TTFB = number(t.TTFB.Seconds())
	}
	return out
}

// getConversation answers with the latest turns, or those before a place in the
// list, oldest first.
func (h *Handler) getConversation(w http.ResponseWriter, r *http.Request) {
	c, p, ok := h.withConversation(w, r)
	if !ok {
		return
	}
	before, err := cursorOf(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	limit, err := limitOf(r.URL.Query(), 100, 1000)
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	body := struct {
		conversation
		History []turn `json:"history"`
		Before  count  `json:"before"` // of the page of earlier turns
	}{conversationOf(c, p), []turn{}, -1}
	turns, next, err := h.history.Turns(r.Context(), c.Name, limit, before)
	switch {
	case err == nil:
		for _, t := range turns {
			body.History = append(body.History, turnOf(t))
		}
		if next > 0 {
			body.Before = count(next)
		}
	case p != nil:
		for _, e := range p.Receipts(maxDecisions) {
			if e.Conversation == c.Name {
				d := e.Decision
				body.History = append(body.History, turn{
					Time: stamp(e.Time), RequestID: text(e.RequestID), Replica: count(d.Replica), From: count(d.From), Reason: string(d.Reason), Why: text(d.Why),
					Prompt: -1, Cached: -1, Completion: -1, TTFB: number(math.NaN()), Duration: number(math.NaN()), Waited: number(d.Waited.Seconds()),
				})
			}
		}
	}
	slices.Reverse(body.History)
	writeJSON(w, body)
}

// withHome is withConversation for requests that concern the home.
func (h *Handler) withHome(w http.ResponseWriter, r *http.Request) (session.Conversation, Pool, bool) {
	c, p, ok := h.withConversation(w, r)
	if ok && p == nil {
		writeError(w, http.StatusConflict, "the conversation's model %q is not served any more", c.Model)
		return c, nil, false
	}
	return c, p, ok
}

// releaseConversation forgets the home; a conversation without one is released
// already.
func (h *Handler) releaseConversation(w http.ResponseWriter, r *http.Request) {
	if c, p, ok := h.withHome(w, r); ok {
		p.Release(c.Key)
		writeJSON(w, conversationOf(c, p))
	}
}

func (h *Handler) moveConversation(w http.ResponseWriter, r *http.Request) {
	c, p, ok := h.withHome(w, r)
	if !ok {
		return
	}
	var to struct {
		Replica *int `json:"replica"`
	}
	if err := readBody(w, r, &to); err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	if replicas := len(p.View().Replicas); to.Replica == nil || *to.Replica < 0 || *to.Replica >= replicas {
		writeError(w, http.StatusBadRequest, `the body must name a replica, 0 to %d: {"replica": 0}`, replicas-1)
		return
	}
	if err := p.Move(c.Key, *to.Replica); err != nil {
		writeError(w, http.StatusConflict, "%s", err)
		return
	}
	writeJSON(w, conversationOf(c, p))
}

func (h *Handler) cancelConversation(w http.ResponseWriter, r *http.Request) {
	c, _, ok := h.withConversation(w, r)
	if !ok {
		return
	}
	if h.o.Cancel == nil {
		writeError(w, http.StatusNotImplemented, "this gateway cannot cancel requests; end the client instead, its request ends with it")
		return
	}
	writeJSON(w, struct {
		Cancelled int `json:"cancelled"`
	}{h.o.Cancel(c.Key)})
}

// maxDecisions is how many receipts one request may ask for.
const maxDecisions = 1000

// decision is a receipt in the API.
type decision struct {
	Time         stamp       `json:"time"`
	RequestID    string      `json:"request_id"`
	Model        string      `json:"model"`
	Conversation text        `json:"conversation"`
	Replica      count       `json:"replica"`
	Reason       string      `json:"reason"`
	Why          text        `json:"why"`
	Home         count       `json:"home"`
	From         count       `json:"from"`
	Waited       int64       `json:"waited_ms"` // at the gateway; 0 when it did not
	Held         text        `json:"held"`      // why
	Position     count       `json:"position"`  // in the queue at first, from 1
	LikelyWait   number      `json:"likely_wait_s"`
	Candidates   []candidate `json:"candidates"`
}

// candidate is a replica as it was compared.
type candidate struct {
	Index             int     `json:"index"`
	InFlight          int     `json:"in_flight"`
	KVUsed            percent `json:"kv_used_percent"`
	LiveConversations int     `json:"live_conversations"`
}

func decisionOf(model string, e pool.Receipt) decision {
	d := decision{
		Time: stamp(e.Time), RequestID: e.RequestID, Model: model, Conversation: text(e.Conversation),
		Replica: count(e.Decision.Replica), Reason: string(e.Decision.Reason), Why: text(e.Decision.Why),
		Home: count(e.Decision.Home), From: count(e.Decision.From), Candidates: []candidate{},
		Waited: e.Decision.Waited.Milliseconds(), Held: text(e.Decision.Held), Position: -1, LikelyWait: knownTime(e.Predicted),
	}
	if e.Position > 0 {
		d.Position = count(e.Position)
	}
	for _, c := range e.Decision.Candidates {
		d.Candidates = append(d.Candidates, candidate{int(c.Replica), int(c.InFlight), percent(100 * c.KVUsed), int(c.LiveConversations)})
	}
	return d
}

func (h *Handler) listDecisions(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := limitOf(q, 50, maxDecisions)
	if err != nil {
		writeError(w, http.StatusBadRequest, "%s", err)
		return
	}
	pools := h.o.Pools()
	if name := q.Get("model"); name != "" {
		p, known := h.find(name)
		if p == nil {
			writeUnknownModel(w, name, known)
			return
		}
		pools = []Pool{p}
	}
	body := struct {
		Decisions []decision `json:"decisions"`
	}{[]decision{}}
	for _, p := range pools {
		name := p.View().Name
		for _, e := range p.Receipts(limit) {
			body.Decisions = append(body.Decisions, decisionOf(name, e))
		}
	}
	slices.SortStableFunc(body.Decisions, newestFirst)
	body.Decisions = body.Decisions[:min(limit, len(body.Decisions))]
	writeJSON(w, body)
}

func newestFirst(a, b decision) int { return b.Time.time().Compare(a.Time.time()) }
