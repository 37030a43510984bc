package web

import (
	"time"

	"lmwarden/internal/kvevents"
	"lmwarden/internal/pool"
)

// kvEvents is what an engine's KV events say of a replica, in the API.
type kvEvents struct {
	Connected        bool   `json:"connected"`
	Complete         bool   `json:"complete"`
	CachedTokens     count  `json:"cached_tokens"`
	Blocks           count  `json:"blocks"`
	StoredPerSecond  number `json:"stored_tokens_per_s"`
	RemovedPerSecond number `json:"removed_tokens_per_s"`
	Sequence         count  `json:"sequence"`
	Gaps             int64  `json:"gaps"`
	Lost             int64  `json:"lost_batches"`
	Age              count  `json:"age_ms"`
	Problem          text   `json:"problem"`
}

func kvEventsOf(v kvevents.View) *kvEvents {
	out := kvEvents{
		Connected: v.Connected, Complete: v.Complete, CachedTokens: count(v.CachedTokens), Blocks: -1,
		StoredPerSecond: number(v.StoredPerSecond), RemovedPerSecond: number(v.RemovedPerSecond),
		Sequence: count(v.Sequence), Gaps: v.Gaps, Lost: v.Lost, Age: -1, Problem: text(v.Problem),
	}
	if v.CachedTokens >= 0 {
		out.Blocks = count(v.Blocks)
	}
	if v.Age >= 0 {
		out.Age = count(v.Age.Milliseconds())
	}
	return &out
}

// modelOf is the function of this name with what KV events say.
func (h *Handler) modelOf(v pool.View) model {
	m := modelOf(v)
	for i, r := range v.Replicas {
		if h.o.KVEvents == nil {
			break
		}
		if heard, ok := h.o.KVEvents(r.URL, r.Rank); ok {
			m.Replicas[i].KVEvents = kvEventsOf(heard)
		}
	}
	return m
}

// cachedRow compares what KV events say is cached at a replica with the estimate.
type cachedRow struct {
	Index            int
	Colour           string
	Cached, Estimate string
	Share            bar // of the capacity
	Stored, Removed  string
	Note             string
}

// cachedRowsOf has a row for each replica whose KV events are heard.
func (h *Handler) cachedRowsOf(v pool.View) (rows []cachedRow) {
	for i, m := range h.modelOf(v).Replicas {
		kv := m.KVEvents
		if kv == nil {
			continue
		}
		row := cachedRow{
			Index: i, Colour: replicaColour(i, len(v.Replicas)), Cached: dash, Estimate: tokens(int64(m.CachedEstimate)),
			Share: barOf("", unknownPercent), Stored: dash, Removed: dash, Note: cachedNote(kv),
		}
		if kv.CachedTokens >= 0 {
			row.Cached = tokens(int64(kv.CachedTokens))
			row.Stored, row.Removed = compact(float64(kv.StoredPerSecond)), compact(float64(kv.RemovedPerSecond))
			if capacity := v.Replicas[i].Load.Capacity; capacity > 0 {
				row.Share = barOf("", share(int64(kv.CachedTokens), capacity))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// cachedNote says how far the number can be trusted.
func cachedNote(kv *kvEvents) string {
	switch {
	case !kv.Connected && kv.Problem != "":
		return string(kv.Problem)
	case !kv.Connected:
		return "connecting"
	case kv.Sequence < 0:
		return "no event yet"
	case kv.Complete:
		return "last event " + span(time.Duration(kv.Age)*time.Millisecond) + " ago"
	case kv.Lost > 0:
		return plural(int(kv.Lost), "1 batch of events was lost", "%d batches of events were lost") +
			": blocks are missing, or counted although they are gone"
	}
	return "older blocks are not in it: nobody listened when they were stored"
}
