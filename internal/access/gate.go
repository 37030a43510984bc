package access

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Grant is the admission of one request.
type Grant struct {
	// Tenant is the key's name, empty when no keys are set.
	Tenant     string
	Batch      bool
	key, model *account // nil where nothing is counted
}

// Release gives the grant back, exactly once per Admit that succeeded.
func (g Grant) Release() {
	g.key.end()
	g.model.end()
}

// ErrUnauthorized says that a request shows no key or an unknown one.
var ErrUnauthorized = errors.New("no valid API key; send one as Authorization: Bearer KEY or x-api-key: KEY")

// Forbidden says that a key may not ask for a model.
type Forbidden struct{ Key, Model string }

func (e *Forbidden) Error() string {
	return fmt.Sprintf("the key %q may not use the model %q", e.Key, e.Model)
}

// Gate admits requests: by the API keys in force, and as far as the limits of the
// models allow. The zero Gate admits everybody. Safe for concurrent use.
type Gate struct {
	mu sync.RWMutex
	// Guarded by mu.
	holders map[KeyHash]*holder
	limits  map[string]Limits   // by model, as SetModels got them
	models  map[string]*account // that were asked for since the start
}

// holder is a key and what was taken with it.
type holder struct {
	Key
	taken *account
}

// SetKeys puts keys in force; with none everybody is let in. What the holders of
// equal names have taken goes on to count. It fails when two keys share a name or a
// hash, changing nothing.
func (g *Gate) SetKeys(keys []Key) error {
	holders := make(map[KeyHash]*holder, len(keys))
	names := make(map[string]bool, len(keys))
	for _, key := range keys {
		if key.Name == "" || names[key.Name] {
			return fmt.Errorf("two keys are named %q; names must be unique and not empty", key.Name)
		}
		if other, taken := holders[key.Hash]; taken {
			return fmt.Errorf("the keys %q and %q have the same hash", other.Name, key.Name)
		}
		names[key.Name] = true
		holders[key.Hash] = &holder{Key: key, taken: &account{limits: key.Limits}}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	before := make(map[string]*account, len(g.holders))
	for _, h := range g.holders {
		before[h.Name] = h.taken
	}
	for _, h := range holders {
		if was := before[h.Name]; was != nil {
			h.taken = was
			was.limit(h.Limits)
		}
	}
	g.holders = holders
	return nil
}

// SetModels puts the limits of models in force, by name; those of the empty name
// hold for each model that has no entry. What was taken goes on to count.
func (g *Gate) SetModels(limits map[string]Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits = maps.Clone(limits)
	for name, a := range g.models {
		a.limit(g.limitsOf(name))
	}
}

// limitsOf a model. Callers hold mu.
func (g *Gate) limitsOf(model string) Limits {
	if l, ok := g.limits[model]; ok {
		return l
	}
	return g.limits[""]
}

// Required says whether requests need a key.
func (g *Gate) Required() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return len(g.holders) > 0
}

// find is the holder of a presented key, nil for none; open says that none is
// needed. Every key takes an equal time: what is compared are hashes.
func (g *Gate) find(presented string) (h *holder, open bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.holders[HashKey(presented)], len(g.holders) == 0
}

// Known says whether a key is in force, or none is needed.
func (g *Gate) Known(presented string) bool {
	h, open := g.find(presented)
	return open || h != nil
}

// May says whether a key may ask for a model.
func (g *Gate) May(presented, model string) bool {
	h, open := g.find(presented)
	return open || h != nil && h.may(model)
}

// Admit looks a presented key up and counts one request to it and to its model. The
// model is the model's own name, not the alias that the client used; empty where the
// request does not tell. The error is ErrUnauthorized, a *Forbidden or a *Limited;
// nothing is counted then.
func (g *Gate) Admit(now time.Time, presented, model string) (Grant, error) {
	h, open := g.find(presented)
	var grant Grant
	switch {
	case open:
	case h == nil:
		return Grant{}, ErrUnauthorized
	case !h.may(model):
		return Grant{}, &Forbidden{h.Name, model}
	default:
		grant = Grant{Tenant: h.Name, Batch: h.Batch, key: h.taken}
	}
	if model != "" {
		grant.model = g.account(model)
	}
	if err := grant.take(now, model); err != nil {
		return Grant{}, err
	}
	return grant, nil
}

// take counts the request to key and model, or to neither.
func (g *Grant) take(now time.Time, model string) error {
	// Always in this order, so that nobody waits for somebody who waits for him.
	if g.key != nil {
		g.key.mu.Lock()
		defer g.key.mu.Unlock()
		if err := g.key.full(now, "key", g.Tenant); err != nil {
			return err
		}
	}
	if g.model != nil {
		g.model.mu.Lock()
		defer g.model.mu.Unlock()
		if err := g.model.full(now, "model", model); err != nil {
			return err
		}
		g.model.begin(now)
	}
	if g.key != nil {
		g.key.begin(now)
	}
	return nil
}

// account is that of a model.
func (g *Gate) account(model string) *account {
	g.mu.RLock()
	a := g.models[model]
	g.mu.RUnlock()
	if a != nil {
		return a
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if a = g.models[model]; a == nil {
		if g.models == nil {
			g.models = map[string]*account{}
		}
		a = &account{limits: g.limitsOf(model)}
		g.models[model] = a
	}
	return a
}

// View is a key for pages: no hash.
type View struct {
	Name   string
	Models []string
	Limits
	Batch bool
	Open  int // requests now
}

// View lists the keys by name.
func (g *Gate) View() []View {
	g.mu.RLock()
	defer g.mu.RUnlock()
	all := make([]View, 0, len(g.holders))
	for _, h := range g.holders {
		all = append(all, View{h.Name, h.Models, h.Limits, h.Batch, h.taken.count()})
	}
	slices.SortFunc(all, func(a, b View) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Model is what is in force for a model, and how many of its requests are open.
func (g *Gate) Model(name string) (l Limits, open int) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if a := g.models[name]; a != nil {
		open = a.count()
	}
	return g.limitsOf(name), open
}
