package proxy

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
)

// poolModels serves the handler from a *pool.Set.
type poolModels struct{ Models }

func (m poolModels) lookup(name string) (backend, bool) {
	p, ok := m.Lookup(name)
	return poolBackend{p}, ok
}

func (m poolModels) all() []backend {
	pools := m.Pools()
	all := make([]backend, len(pools))
	for i, p := range pools {
		all[i] = poolBackend{p}
	}
	return all
}

type poolBackend struct{ *pool.Pool }

func (b poolBackend) acquire(ctx context.Context, r pool.Request) (lease, error) {
	l, err := b.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return poolLease{l}, nil
}

type poolLease struct{ *pool.Lease }

func (l poolLease) target(asked string) (pool.Target, string) {
	t := l.Target()
	return t, t.Model(asked)
}

// serveLocal answers what needs no engine.
func (h *Handler) serveLocal(w http.ResponseWriter, r *http.Request, rt route, allow string) {
	var f *failure
	switch rt.kind {
	case kindAlive:
		if h.open.stopped() {
			f = stopping()
		}
	case kindModels, kindModel:
		key := presentedKey(r.Header)
		switch {
		case !h.access.Known(key):
			f = unauthorized()
		case rt.kind == kindModels:
			h.listModels(w, r, key)
		default:
			f = h.oneModel(w, r, rt.tail, key)
		}
	case kindUpgrade:
		f = badRequest("this gateway speaks no WebSocket; send the request as POST %s", rt.path)
		f.Code = http.StatusUpgradeRequired
	default:
		f = notHere(r, allow)
	}
	if f == nil {
		return
	}
	_ = f.write(w, dialectOf(r, rt)) // an error is the client's end
	h.logger.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String(keyRequestID, w.Header().Get(headerRequestID)),
		slog.String(keyPath, clip(r.URL.Path)),
		slog.Int(keyStatus, f.Status()),
		slog.String(keyOutcome, string(f.outcome)),
		slog.String(keyError, f.reason()))
}

// modelCard is a model as lists show it.
type modelCard struct {
	id, root  string
	created   time.Time
	maxLength int64 // tokens, 0 when not known
}

// cards lists the models that a key may ask for and their exact aliases; a
// pattern is no name.
func (h *Handler) cards(key string) []modelCard {
	var cards []modelCard
	for _, b := range h.models.all() {
		if !h.access.May(key, b.Name()) {
			continue
		}
		v := b.View()
		for _, id := range append([]string{v.Name}, v.Aliases...) {
			if !strings.ContainsAny(id, "*?[") {
				cards = append(cards, card(v, id))
			}
		}
	}
	return cards
}

func card(v pool.View, id string) modelCard {
	c := modelCard{id: id, root: v.ServedName, created: v.Since}
	for _, s := range v.Servers {
		for _, m := range s.Info.Models {
			if m.ID == v.ServedName && m.MaxModelLen > 0 {
				c.maxLength = m.MaxModelLen
			}
		}
	}
	return c
}

// names lists what a client may ask for with a key.
func (h *Handler) names(key string) []string {
	var names []string
	for _, b := range h.models.all() {
		if !h.access.May(key, b.Name()) {
			continue
		}
		v := b.View()
		names = append(append(names, v.Name), v.Aliases...)
	}
	return names
}

type openAIModel struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root,omitempty"`
	MaxModelLen int64  `json:"max_model_len,omitempty"`
}

type anthropicModel struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

func (c modelCard) openAI() openAIModel {
	return openAIModel{c.id, "model", c.created.Unix(), "lm-warden", c.root, c.maxLength}
}

func (c modelCard) anthropic() anthropicModel {
	return anthropicModel{"model", c.id, c.id, c.created.UTC().Format(time.RFC3339)}
}

func (h *Handler) listModels(w http.ResponseWriter, r *http.Request, key string) {
	cards := h.cards(key)
	if dialectOf(r, route{}) == llmapi.Anthropic {
		list := struct {
			Data    []anthropicModel `json:"data"`
			HasMore bool             `json:"has_more"`
			FirstID *string          `json:"first_id"`
			LastID  *string          `json:"last_id"`
		}{Data: []anthropicModel{}}
		for _, c := range cards {
			list.Data = append(list.Data, c.anthropic())
		}
		if n := len(list.Data); n > 0 {
			list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
		}
		writeJSON(w, list)
		return
	}
	list := struct {
		Object string        `json:"object"`
		Data   []openAIModel `json:"data"`
	}{"list", []openAIModel{}}
	for _, c := range cards {
		list.Data = append(list.Data, c.openAI())
	}
	writeJSON(w, list)
}

func (h *Handler) oneModel(w http.ResponseWriter, r *http.Request, name, key string) *failure {
	b, ok := h.models.lookup(name)
	if !ok || name == "" || !h.access.May(key, b.Name()) {
		return unknownModel(name, h.names(key))
	}
	c := card(b.View(), name)
	if dialectOf(r, route{}) == llmapi.Anthropic {
		writeJSON(w, c.anthropic())
	} else {
		writeJSON(w, c.openAI())
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error is the client's end
}
