package app

import (
	"context"
	"time"

	"lmwarden/internal/config"
	"lmwarden/internal/kvevents"
	"lmwarden/internal/routing"
)

// kvSources finds where a replica publishes its KV events, by the engine of its URL.
type kvSources map[string]config.Engine

func kvSourcesOf(cfg *config.Config) kvSources {
	s := kvSources{}
	for _, m := range cfg.Models {
		for _, e := range m.Engines {
			if !e.KVEvents.IsZero() {
				s[e.URL.String()] = e
			}
		}
	}
	return s
}

// of is the source of a replica, as pool.ReplicaView names it; false when the
// configuration has none.
func (s kvSources) of(url string, rank int) (from kvevents.Source, ok bool) {
	e, ok := s[url]
	if !ok {
		return from, false
	}
	if rank == routing.None {
		rank = 0
	}
	from.Events = e.KVEvents.Address(rank)
	if !e.KVEventsReplay.IsZero() {
		from.Replay = e.KVEventsReplay.Address(rank)
	}
	return from, true
}

// followKVEvents listens to the replicas that there are, until ctx ends. Replicas
// and configuration change rarely and without a sign, so it looks once a second.
func (g *Gateway) followKVEvents(ctx context.Context) {
	defer g.kv.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		g.kv.Listen(g.kvWanted())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gateway) kvWanted() (all []kvevents.Source) {
	sources := kvSourcesOf(g.current())
	if len(sources) == 0 {
		return nil
	}
	for _, p := range g.models.Pools() {
		for _, r := range p.View().Replicas {
			if from, ok := sources.of(r.URL, r.Rank); ok {
				all = append(all, from)
			}
		}
	}
	return all
}

// kvView is what the events of a replica say; false when nobody listens to them.
func (g *Gateway) kvView(url string, rank int) (kvevents.View, bool) {
	from, ok := kvSourcesOf(g.current()).of(url, rank)
	if !ok {
		return kvevents.View{}, false
	}
	return g.kv.View(from)
}
