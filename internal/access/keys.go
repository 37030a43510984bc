package access

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Key is one API key and what its holder may take.
type Key struct {
	// Name stands in logs, on pages and in the configuration; unique.
	Name string
	Hash KeyHash
	// Models are the model names that it may ask for, with * as in qwen-*; empty
	// means all.
	Models []string
	// InFlight is how many requests it may have open at once; 0 means any number.
	InFlight int
	// PerMinute is how many requests it may begin in a minute, a tenth of them at
	// once; 0 means any number.
	PerMinute int
	// Batch marks requests that wait behind those of other keys.
	Batch bool
}

// Grant is the admission of one request.
type Grant struct {
	// Tenant is the key's name, empty when no keys are set.
	Tenant string
	Batch  bool
	of     *taken
}

// Release gives the grant back, exactly once per Admit that succeeded.
func (g Grant) Release() {
	if g.of != nil {
		g.of.mu.Lock()
		g.of.open--
		g.of.mu.Unlock()
	}
}

// ErrUnauthorized says that a request shows no key or an unknown one.
var ErrUnauthorized = errors.New("no valid API key; send one as Authorization: Bearer KEY or x-api-key: KEY")

// Forbidden says that a key may not ask for a model.
type Forbidden struct{ Key, Model string }

func (e *Forbidden) Error() string {
	return fmt.Sprintf("the key %q may not use the model %q", e.Key, e.Model)
}

// Limited says that a key has taken what it may.
type Limited struct {
	Key, Limit string
	// Retry is when it is worth to come back.
	Retry time.Duration
}

func (e *Limited) Error() string { return fmt.Sprintf("the key %q has %s", e.Key, e.Limit) }

// Keys are the API keys in force. With none set everybody is admitted. Safe for
// concurrent use.
type Keys struct {
	mu      sync.RWMutex
	holders map[KeyHash]*holder // guarded by mu
}

// holder is a key and what was taken under its name.
type holder struct {
	Key
	*taken
}

// taken outlives a change of the key.
type taken struct {
	mu sync.Mutex
	// Guarded by mu.
	open int
	rate *rate.Limiter // nil without a limit
}

// Set puts keys in force. What the holders of equal names have taken goes on to
// count. It fails when two keys share a name or a hash, changing nothing.
func (k *Keys) Set(keys []Key) error {
	holders := make(map[KeyHash]*holder, len(keys))
	names := make(map[string]bool, len(keys))
	k.mu.Lock()
	defer k.mu.Unlock()
	before := make(map[string]*holder, len(k.holders))
	for _, h := range k.holders {
		before[h.Name] = h
	}
	for _, key := range keys {
		if key.Name == "" || names[key.Name] {
			return fmt.Errorf("two keys are named %q; names must be unique and not empty", key.Name)
		}
		if other, taken := holders[key.Hash]; taken {
			return fmt.Errorf("the keys %q and %q have the same hash", other.Name, key.Name)
		}
		names[key.Name] = true
		holders[key.Hash] = &holder{Key: key, taken: &taken{rate: limiter(key.PerMinute)}}
	}
	for _, h := range holders {
		if was := before[h.Name]; was != nil {
			h.taken = was.taken
			h.taken.limit(h.PerMinute)
		}
	}
	k.holders = holders
	return nil
}

// limit changes the rate from now on.
func (t *taken) limit(perMinute int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fresh := limiter(perMinute); fresh == nil || t.rate == nil {
		t.rate = fresh
	} else if t.rate.Limit() != fresh.Limit() {
		t.rate.SetLimit(fresh.Limit())
		t.rate.SetBurst(fresh.Burst())
	}
}

func limiter(perMinute int) *rate.Limiter {
	if perMinute <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(float64(perMinute)/60), max(1, int(math.Ceil(float64(perMinute)/10))))
}

// Required says whether requests need a key.
func (k *Keys) Required() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.holders) > 0
}

// find is the holder of a presented key, nil for none; open says that none is
// needed. Every key takes an equal time: what is compared are hashes.
func (k *Keys) find(presented string) (h *holder, open bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.holders[HashKey(presented)], len(k.holders) == 0
}

// Known says whether a key is in force, or none is needed.
func (k *Keys) Known(presented string) bool {
	h, open := k.find(presented)
	return open || h != nil
}

// May says whether a key may ask for a model.
func (k *Keys) May(presented, model string) bool {
	h, open := k.find(presented)
	return open || h != nil && h.may(model)
}

// Admit looks a presented key up and counts one request. The model is the
// model's own name, not the alias that the client used. The error is ErrUnauthorized, a
// *Forbidden or a *Limited.
func (k *Keys) Admit(now time.Time, presented, model string) (Grant, error) {
	h, open := k.find(presented)
	switch {
	case open:
		return Grant{}, nil
	case h == nil:
		return Grant{}, ErrUnauthorized
	}
	if !h.may(model) {
		return Grant{}, &Forbidden{h.Name, model}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.InFlight > 0 && h.open >= h.InFlight {
		return Grant{}, &Limited{h.Name, fmt.Sprintf("%d requests open, as many as it may", h.open), 2 * time.Second}
	}
	if h.rate != nil {
		switch r := h.rate.ReserveN(now, 1); {
		case !r.OK():
			return Grant{}, &Limited{h.Name, "no requests left", time.Minute}
		case r.DelayFrom(now) > 0:
			wait := r.DelayFrom(now)
			r.CancelAt(now)
			return Grant{}, &Limited{h.Name, fmt.Sprintf("begun %d requests in a minute, as many as it may", h.PerMinute), wait}
		}
	}
	h.open++
	return Grant{Tenant: h.Name, Batch: h.Batch, of: h.taken}, nil
}

// may says whether a model is among those of the key.
func (h *holder) may(model string) bool {
	if len(h.Models) == 0 || model == "" {
		return true
	}
	return slices.ContainsFunc(h.Models, func(pattern string) bool { return matches(pattern, model) })
}

// matches compares a name with a pattern in which * stands for any text.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return name == pattern
	}
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, ok := strings.Cut(name, part)
		if !ok {
			return false
		}
		name = rest
	}
	return true
}

// View is a key for pages: no hash.
type View struct {
	Name      string
	Models    []string
	InFlight  int
	PerMinute int
	Batch     bool
	Open      int // requests now
}

// View lists the keys by name.
func (k *Keys) View() []View {
	k.mu.RLock()
	defer k.mu.RUnlock()
	all := make([]View, 0, len(k.holders))
	for _, h := range k.holders {
		h.mu.Lock()
		all = append(all, View{h.Name, h.Models, h.InFlight, h.PerMinute, h.Batch, h.open})
		h.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b View) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
