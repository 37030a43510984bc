package app

import (
	"strconv"
	"time"

	"lmwarden/internal/cause"
	"lmwarden/internal/kvevents"
	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/proxy"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
	"lmwarden/internal/stats"
	"lmwarden/internal/telemetry"
)

// recorder hands finished requests of the data plane to the metrics and, with the
// cause of what was not cached, to the history.
type recorder struct {
	metrics *telemetry.Metrics
	history *stats.Store
	turns   *cause.Desk
	caches  *caches
}

// Record implements proxy.Recorder.
func (r recorder) Record(rec proxy.Record) {
	replica := ""
	if d := rec.Decision; d.Reason != "" {
		if replica = "engine"; d.Replica != routing.None {
			replica = strconv.Itoa(d.Replica)
		}
	}
	u := rec.Usage
	r.metrics.Observe(telemetry.Request{
		Model: rec.Model, Replica: replica, Reason: string(rec.Decision.Reason), Why: string(rec.Decision.Why),
		Outcome: string(rec.Outcome), TTFB: rec.TTFB, Duration: rec.Duration, Waited: rec.Waited,
		Prompt: u.Prompt, Cached: u.Cached, Completion: u.Completion,
		Known: u.Known, CachedKnown: u.CacheState == llmapi.CacheReported,
	})
	now := time.Now()
	r.keep(now, &rec)
}

// keep hands a request to the history, with why it was not cached where the engine
// told what was.
func (r recorder) keep(now time.Time, rec *proxy.Record) {
	h := historyRecord(now, rec)
	if h.Conversation == "" || h.Cached == stats.Unmeasured || rec.Outcome != proxy.OK {
		r.history.Add(h)
	} else {
		r.judge(now, rec, h)
	}
}

// judge has the cause of a turn found, and hands it to the history with that.
func (r recorder) judge(now time.Time, rec *proxy.Record, h stats.Record) {
	sent := cause.PromptOf(rec.Facts)
	sent.Read, _ = rec.Read.(*cause.Reading)
	r.turns.Judge(rec.Identity.Key, cause.Turn{
		End: now, Prompt: h.Prompt, Cached: h.Cached, Completion: h.Completion,
		Replica: h.Replica, Reason: h.Reason, Cold: rec.Decision.Cold, Sent: sent,
	}, r.caches.of(rec.Model, h.Replica), func(v cause.Verdict) {
		h.Cause, h.Reread = string(v.Cause), v.Reread
		h.Changed = stats.Change(v.At)
		r.history.Add(h)
	})
}

// reader has the prompts of turns read where their causes are judged.
type reader struct{ turns *cause.Desk }

// Read implements proxy.Reader.
func (r reader) Read(k session.Key, f *llmapi.Facts, body []byte, done func([]byte)) any {
	return r.turns.Read(k, f, body, done)
}

// poolGauges reads the pools, and what KV events say of a replica, for the metrics
// page.
func poolGauges(models *pool.Set, kv func(url string, rank int) (kvevents.View, bool)) []telemetry.Pool {
	var all []telemetry.Pool
	for _, p := range models.Pools() {
		v := p.View()
		g := telemetry.Pool{Model: v.Name, EngineInFlight: v.Routing.InFlight, Waiting: -1}
		for _, r := range v.Replicas {
			g.EngineInFlight -= r.InFlight
			if !r.Observed.IsZero() && !r.Load.Stale && r.Load.Waiting >= 0 {
				g.Waiting = max(g.Waiting, 0) + r.Load.Waiting
			}
			one := telemetry.Replica{
				InFlight: r.InFlight, Conversations: r.LiveConversations, ScrapeAge: r.ScrapeAge,
				State: r.State.String(), Running: -1, Waiting: -1, KVUsed: -1, KVCached: -1,
			}
			if v, ok := kv(r.URL, r.Rank); ok {
				one.KVCached = v.CachedTokens
			}
			if !r.Observed.IsZero() && !r.Load.Stale {
				one.Running, one.Waiting, one.KVUsed = r.Load.Running, r.Load.Waiting, r.Load.KVUsed
			}
			g.Replicas = append(g.Replicas, one)
		}
		if v.Waiting > 0 {
			g.Waiting = max(g.Waiting, 0) + v.Waiting
		}
		all = append(all, g)
	}
	return all
}
