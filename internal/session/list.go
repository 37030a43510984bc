package session

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Query asks for a page of the table.
type Query struct {
	Model string // empty for all
	// Client is the program, empty for all; Parent is the conversation whose
	// sub-agents are asked for, zero for all conversations.
	Client string
	Parent Key
	// Among asks for these conversations only; nil means all. Few of them are found
	// without a look at the others.
	Among []Key
	// Keep picks among what the other fields take; nil keeps all. It is called
	// without a lock, mostly for the rows only that may be on the page.
	Keep func(Key) bool
	// Sort is a name of Sorts(); empty means "last_seen". The largest or newest
	// come first.
	Sort  string
	Limit int // 1 to 1000; 0 means 100
	// Cursor is where the last page ended, as it said; empty for the first page.
	Cursor string
}

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// sorts maps the orders of a list to what they compare.
func sorts() map[string]func(*row) int64 {
	return map[string]func(*row) int64{
		"last_seen":     func(r *row) int64 { return r.last },
		"first_seen":    func(r *row) int64 { return r.first },
		"turns":         func(r *row) int64 { return r.turns },
		"prompt_tokens": func(r *row) int64 { return r.prompt },
		"cached_tokens": func(r *row) int64 { return r.cached },
		"in_flight":     func(r *row) int64 { return int64(r.open) },
	}
}

// Sorts lists the orders that a Query may ask for.
func Sorts() []string { return slices.Sorted(maps.Keys(sorts())) }

// takes says whether a row is among those that are asked for.
func (q Query) takes(r *row) bool {
	o := r.origin.Value()
	return (q.Model == "" || q.Model == o.model) && (q.Client == "" || q.Client == o.client) &&
		(q.Parent == Key{} || q.Parent == r.parent)
}

// listed is what a list compares of a row.
type listed struct {
	value int64
	key   Key
}

// before is the order of lists: by value, then by key, so that pages neither
// skip nor repeat what did not change between them.
func before(a, b listed) int {
	return cmp.Or(cmp.Compare(b.value, a.value), bytes.Compare(a.key[:], b.key[:]))
}

// Conversations returns a page of the table and the cursor of the next one, empty
// after the last. The error names the field that is wrong.
func (t *Table) Conversations(q Query) (page []Conversation, next string, err error) {
	value, ok := sorts()[cmp.Or(q.Sort, "last_seen")]
	if !ok {
		return nil, "", fmt.Errorf("sort %q: must be one of %s", q.Sort, strings.Join(Sorts(), ", "))
	}
	limit := cmp.Or(q.Limit, defaultLimit)
	if limit < 1 || limit > maxLimit {
		return nil, "", fmt.Errorf("limit %d: must be 1 to %d", limit, maxLimit)
	}
	var after *listed
	if q.Cursor != "" {
		if after, err = parseCursor(q.Cursor); err != nil {
			return nil, "", err
		}
	}

	var top []listed
	kept := 0         // so many of top have passed Keep
	var worst *listed // of a full page; what comes after it need not be looked at
	cut := func(n int) {
		slices.SortFunc(top, before)
		// A row that moved during the walk may have been met twice.
		top = slices.CompactFunc(top, func(a, b listed) bool { return a.key == b.key })
		if len(top) >= n {
			top = top[:n]
			worst = new(top[n-1])
		}
	}
	each := func(r *row) {
		if !q.takes(r) {
			return
		}
		l := listed{value(r), r.key}
		if after != nil && before(l, *after) <= 0 || worst != nil && before(l, *worst) >= 0 {
			return
		}
		top = append(top, l)
	}
	walk := t.walk
	if q.Among != nil {
		walk = func(each func(*row), between func()) { t.pick(q.Among, each, between) }
	}
	walk(each, func() {
		if q.Keep != nil {
			fresh := slices.DeleteFunc(top[kept:], func(l listed) bool { return !q.Keep(l.key) })
			top = top[:kept+len(fresh)]
		}
		if len(top) >= 4*limit {
			cut(limit + 1)
		}
		kept = len(top)
	})
	cut(limit + 1)
	if len(top) > limit {
		top = top[:limit]
		next = cursor(top[limit-1])
	}
	page = make([]Conversation, 0, len(top))
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range top {
		if r := t.rows[l.key]; r != nil { // not gone since the walk
			page = append(page, r.copy())
		}
	}
	return page, next, nil
}

// Get finds a conversation by its key.
func (t *Table) Get(k Key) (Conversation, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rows[k]; r != nil {
		return r.copy(), true
	}
	return Conversation{}, false
}

// Find finds a conversation by its name. It looks at every row: for people, not
// for requests.
func (t *Table) Find(name string) (c Conversation, ok bool) {
	digits, ok := strings.CutPrefix(name, "c-")
	prefix, err := hex.DecodeString(digits)
	if !ok || err != nil || len(digits) != nameDigits {
		return Conversation{}, false
	}
	ok = false
	t.walk(func(r *row) {
		if !ok && bytes.HasPrefix(r.key[:], prefix) {
			c, ok = r.copy(), true
		}
	}, nil)
	return c, ok
}

// walk calls each with every row that is in the table all the time, with mu held
// for some rows at a time, and between, unless it is nil, without mu after those. A
// row that moved meanwhile may be met twice.
func (t *Table) walk(each func(*row), between func()) {
	const batch = 512
	t.mu.Lock()
	i := len(t.list)
	for i > 0 {
		for stop := max(0, i-batch); i > stop; i-- {
			each(t.list[i-1])
		}
		t.mu.Unlock()
		if between != nil {
			between()
		}
		t.mu.Lock()
		i = min(i, len(t.list))
	}
	t.mu.Unlock()
}

// pick is walk for the rows of some keys.
func (t *Table) pick(keys []Key, each func(*row), between func()) {
	const batch = 512
	for some := range slices.Chunk(keys, batch) {
		t.mu.Lock()
		for _, k := range some {
			if r := t.rows[k]; r != nil {
				each(r)
			}
		}
		t.mu.Unlock()
		between()
	}
}

func (r *row) copy() Conversation {
	o := r.origin.Value()
	return Conversation{
		Key: r.key, Name: r.key.Name(), Model: o.model, Source: o.source, Client: o.client, Tenant: o.tenant, Parent: r.parent,
		FirstSeen: time.UnixMilli(r.first).UTC(), LastSeen: time.UnixMilli(r.last).UTC(),
		Turns: r.turns, PromptTokens: r.prompt, CachedTokens: r.cached, CompletionTokens: r.reply, Open: r.open,
	}
}

// cursor writes where a page ends.
func cursor(l listed) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(l.value))
	return hex.EncodeToString(append(b, l.key[:]...))
}

func parseCursor(s string) (*listed, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 8+len(Key{}) {
		return nil, fmt.Errorf("cursor %.40q: not one that this list gave", s)
	}
	return &listed{int64(binary.BigEndian.Uint64(b)), Key(b[8:])}, nil
}
