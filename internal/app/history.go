package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/proxy"
	"lmwarden/internal/routing"
	"lmwarden/internal/stats"
)

// historyFile is the history in the data folder.
const historyFile = "history.db"

// sampleEvery is how often the state of replicas is noted in the history.
const sampleEvery = 10 * time.Second

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

// sample notes the state of all replicas until ctx ends.
func sample(ctx context.Context, history *stats.Store, models *pool.Set) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			history.AddSamples(samples(now, models))
		case <-ctx.Done():
			return
		}
	}
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
		TTFB: rec.TTFB, Duration: rec.Duration,
		Prompt: stats.Unmeasured, Cached: stats.Unmeasured, Completion: stats.Unmeasured,
	}
	if d.Reason != "" {
		if r.Replica = d.Replica; d.Replica == routing.None {
			r.Replica = stats.EngineChosen
		}
		if d.From != routing.None {
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
