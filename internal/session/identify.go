package session

import (
	"encoding/binary"
	"net/http"
	"strings"
	"time"
	"unique"

	"github.com/cespare/xxhash/v2"

	"lmwarden/internal/llmapi"
)

const (
	// A call without tools for a title, a topic or a warm-up is no longer than
	// this.
	smallBytes    = 5 << 10
	smallMessages = 3
	// bigBytes is the prompt from which on a side call gets a conversation of its
	// own, keyed by its system text: some 4,000 tokens, worth keeping in one place.
	bigBytes = 16 << 10
)

// shape is what kind of request this is, as far as the table is not needed to
// tell.
type shape uint8

const (
	// full requests belong to a conversation.
	full shape = iota
	// bare requests offer no tools. They belong to a conversation, unless that one
	// is known to offer tools and they do not continue it.
	bare
	// side calls (title, topic, summary, warm-up, classifier) belong to a
	// conversation only when they continue it.
	side
)

// Identify tells the conversation of a request and notes the request in the
// table: a new conversation gets its row, and the history becomes known. A
// request that makes no conversation leaves no trace. It must be called in the
// order in which the requests arrive.
func (t *Table) Identify(now time.Time, r Request) Identity {
	id := Identity{Client: client(r.Header), Tenant: r.Tenant}
	f := r.Facts
	if f == nil {
		f = &llmapi.Facts{}
	}
	id.Turn = f.Route.Generates()
	c := read(t.extractors, &r)
	if !id.Turn && !c.own {
		return id
	}
	scope := scopeOf(r.Tenant, r.Model)
	var h history
	if id.Turn {
		h = historyOf(mix(scope, f.SystemHead), f.Messages)
	}
	sh := full
	if !c.own {
		sh = shapeOf(r.Header, f, &h, c.title, id.Client)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	at := place{now: now.UnixMilli(), scope: scope, h: &h}
	if c.source == "" {
		c = t.byContent(at, &r, f)
	}
	known := t.live(at.now, c.key)
	if sh == side || sh == bare && known != nil && known.tools {
		if known == nil || !t.continues(at, known) {
			// Not of this conversation. A large one with a constant system text is worth
			// a place of its own; any other may run anywhere.
			if f.Tools > 0 || h.answered || f.SystemHash == 0 || f.TextBytes < bigBytes {
				return id
			}
			c = claim{source: "classifier", key: keyOf(r.Tenant, r.Model, "classifier", sumString(f.SystemHash))}
			known, h = t.live(at.now, c.key), history{}
		}
	}
	if c.key == (Key{}) {
		return id
	}

	id.Key, id.Name, id.Source, id.Parent = c.key, c.key.Name(), c.source, c.parent
	if known == nil {
		id.New = true
		id.Extends = t.extended(at)
		known = t.add(c.key, scope, at.now)
		known.origin, known.parent = unique.Make(origin{r.Model, c.source, id.Client, r.Tenant}), c.parent
	} else {
		id.Source, id.Parent = known.origin.Value().source, known.parent
	}
	known.tools = known.tools || f.Tools > 0
	t.learn(at, known)
	t.touch(known, at.now)
	return id
}

// shapeOf tells a request's shape from its class header if it has one, else from
// its size and from what it offers.
func shapeOf(header http.Header, f *llmapi.Facts, h *history, title bool, client string) shape {
	switch headerValue(header, "X-Claude-Code-Request-Class") {
	case "auxiliary":
		return side
	case "main", "subagent", "workflow", "compaction":
		return full
	}
	switch {
	case f.Tools > 0:
		return full
	case strings.Contains(headerValue(header, "X-Codex-Turn-Metadata"), `"request_kind":"compaction"`):
		return full
	case title:
		return side
	case h.answered:
		return bare
	case f.TextBytes < smallBytes && h.messages <= smallMessages && (f.FormatAsked || agent(client)):
		return side
	case f.TextBytes >= bigBytes && !f.Stream && client == "claude-cli":
		return side
	}
	return bare
}

// agent reports whether a program offers tools in every turn of its
// conversations, so that what it asks without them is something else.
func agent(client string) bool {
	switch client {
	case "claude-cli", "codex_exec", "codex_cli_rs", "opencode", "qwencode":
		return true
	}
	return false
}

// place is where a request stands: at what time, in whose scope, with which
// history.
type place struct {
	now   int64
	scope uint64
	h     *history
}

// byContent names the conversation of a request without an id: the one that an
// earlier answer or the chain of its history leads to, else the one that its
// opening names.
//
// Two sessions with one opening are one conversation until their answers
// differ. From there on the second to come back is a conversation of its own,
// named by its diverging answer, so that the two do not pull each other about.
func (t *Table) byContent(at place, r *Request, f *llmapi.Facts) claim {
	if response := usable(f.IDs.PreviousResponseID); response != "" {
		if row := t.at(at, responseSum(at.scope, response)); row != nil {
			return claim{source: "previous_response_id", key: row.key}
		}
	}
	if at.h.whole == 0 {
		return claim{}
	}
	const source = "fingerprint"
	for m := range at.h.marks() {
		row := t.at(at, m.sum)
		switch {
		case row == nil:
		case m.after == 0 || row.follows(m):
			return claim{source: source, key: row.key}
		default:
			return claim{source: source, key: keyOf(r.Tenant, r.Model, "branch", sumString(m.after))}
		}
	}
	return claim{source: source, key: keyOf(r.Tenant, r.Model, source, sumString(f.SystemHead), sumString(f.OpenerHash))}
}

// extended is the conversation that the history extends: it has a request we
// know, followed by the answer that we served to it.
func (t *Table) extended(at place) Key {
	for m := range at.h.marks() {
		if row := t.at(at, m.sum); row != nil && row.follows(m) {
			return row.key
		}
	}
	return Key{}
}

// continues reports whether the history extends this very conversation.
func (t *Table) continues(at place, row *row) bool {
	for m := range at.h.marks() {
		if t.at(at, m.sum) == row && row.follows(m) {
			return true
		}
	}
	return false
}

// learn notes the request's own end in the chain, and the answer that the
// conversation's last request was given.
func (t *Table) learn(at place, row *row) {
	if at.h.whole == 0 {
		return
	}
	for m := range at.h.marks() {
		if m.after != 0 && t.at(at, m.sum) == row {
			row.link(m.sum).after = m.after
			break
		}
	}
	t.chain(row, at.h.whole)
}

// scopeOf separates the chains of tenants and of models from each other.
func scopeOf(tenant, model string) uint64 {
	sum := digest(tenant, model)
	return binary.LittleEndian.Uint64(sum[:])
}

// responseSum is the chain's node for an answer that the engine keeps.
func responseSum(scope uint64, response string) uint64 {
	return mix(scope, xxhash.Sum64String(response))
}

func sumString(sum uint64) string {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], sum)
	return string(b[:])
}
