package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"lmwarden/internal/cause"
	"lmwarden/internal/config"
	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/proxy"
	"lmwarden/internal/routing"
	"lmwarden/internal/stats"
)

// historyFile is the history in the data folder.
const historyFile = "history.db"

const (
	// sampleEvery is how often the state of replicas is noted in the history.
	sampleEvery = 10 * time.Second
	// lookEvery is how often it is looked whether their caches are full.
	lookEvery = time.Second
)

// newHistory makes the history of a configuration. Its Run does the work.
func newHistory(cfg *config.Config, log *slog.Logger) (*stats.Store, error) {
	path := stats.MemoryOnly
	if cfg.Data != config.MemoryOnly {
		path = filepath.Join(cfg.Data, historyFile)
	}
	return stats.New(stats.Options{
		Path: path, Logger: log,
		Keep: cfg.History.Keep.D(), KeepTotals: cfg.History.KeepTotals.D(), MaxBytes: int64(cfg.History.MaxSize),
	})
}

// observe notes the state of all replicas until ctx ends.
func observe(ctx context.Context, history *stats.Store, full *caches, models *pool.Set) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var sampled time.Time
	for {
		select {
		case now := <-tick.C:
			full.look(now, models)
			if now.Sub(sampled) >= sampleEvery {
				sampled = now
				history.AddSamples(samples(now, models))
			}
		case <-ctx.Done():
			return
		}
	}
}

// caches remembers when the cache of each replica was last seen full.
type caches struct {
	mu sync.Mutex
	// By model, then by index; guarded by mu.
	seen map[string][]cause.Cache
}

// fullFrom is the part of a cache in use from which on engines evict what running
// requests need, as their batch grows.
const fullFrom = 0.9

// look notes which caches are full: of what runs or, as far as is known, of the
// context of live conversations.
func (c *caches) look(now time.Time, models *pool.Set) {
	for _, p := range models.Pools() {
		v := p.View()
		blocks := map[string]int64{}
		for _, s := range v.Servers {
			blocks[s.URL] = int64(s.Info.BlockSize)
		}
		c.mu.Lock()
		was := c.seen[v.Name]
		is := make([]cause.Cache, len(v.Replicas))
		for i, r := range v.Replicas {
			if i < len(was) {
				is[i] = was[i]
			}
			is[i].Block = blocks[r.URL]
			if r.Load.KVUsed >= fullFrom || r.Load.Capacity > 0 && r.LiveTokens > r.Load.Capacity {
				is[i].Full = now
			}
		}
		if c.seen == nil {
			c.seen = map[string][]cause.Cache{}
		}
		c.seen[v.Name] = is
		c.mu.Unlock()
	}
}

// of is what is known of a replica's cache.
func (c *caches) of(model string, replica int) cause.Cache {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.seen[model]; 0 <= replica && replica < len(all) {
		return all[replica]
	}
	return cause.Cache{}
}

// samples are the replicas of all models at one moment. What an engine said too
// long ago is not known.
func samples(now time.Time, models *pool.Set) []stats.Sample {
	var all []stats.Sample
	for _, p := range models.Pools() {
		v := p.View()
		for i, r := range v.Replicas {
			s := stats.Sample{
				Time: now, Model: v.Name, Replica: i, Running: -1, Waiting: -1, KVUsed: -1,
				InFlight: r.InFlight, Conversations: r.LiveConversations,
			}
			if !r.Observed.IsZero() && !r.Load.Stale {
				s.Running, s.Waiting, s.KVUsed = r.Load.Running, r.Load.Waiting, r.Load.KVUsed
			}
			all = append(all, s)
		}
	}
	return all
}

// historyRecord is a finished request as the history keeps it.
func historyRecord(now time.Time, rec *proxy.Record) stats.Record {
	d, u := &rec.Decision, &rec.Usage
	r := stats.Record{
		Time: now, Model: rec.Model, Replica: stats.NoReplica, From: stats.NoReplica, Client: rec.Client,
		Reason: string(d.Reason), Why: string(d.Why), Outcome: string(rec.Outcome),
		TTFB: rec.TTFB, Duration: rec.Duration, Waited: rec.Waited,
		Prompt: stats.Unmeasured, Cached: stats.Unmeasured, Completion: stats.Unmeasured,
	}
	if d.Reason != "" {
		if r.Replica = d.Replica; d.Replica == routing.None {
			r.Replica = stats.EngineChosen
		}
		if (d.Reason == routing.Moved || d.Reason == routing.Spilled) && d.From != routing.None {
			r.From = d.From
		}
	}
	if id := &rec.Identity; id.Turn {
		r.Conversation, r.Parent = id.Name, id.Parent.Name()
	}
	if u.Known {
		r.Prompt, r.Completion = u.Prompt, u.Completion
		if u.CacheState == llmapi.CacheReported {
			r.Cached = u.Cached
		}
	}
	return r
}
