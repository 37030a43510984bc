package doctor

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"

	"lmwarden/internal/kvevents"
	"lmwarden/internal/llmapi"
)

const (
	// usualKVPort is what vLLM's documentation and ours use for the first rank.
	usualKVPort = 5557
	// An engine on the same network greets at once, looks for a question about former
	// events every 100 ms, and tells of a block within a step.
	kvPatience = 3 * time.Second
	// kvReplay is how long an engine may take to say what happened before; one that
	// has nothing to say cannot be told from one that is slow.
	kvReplay = time.Second
	kvLook   = 20 * time.Millisecond
)

// kvSeen is what was heard of an engine's KV events.
type kvSeen struct {
	// configured says that somebody listens to them; offered is where the engine
	// publishes them nevertheless, empty when that is not known.
	configured bool
	offered    string
	ranks      []kvevents.View // at the end
	// stored is by how many tokens the first rank's cache grew while a new prompt was
	// read, and left how many that prompt leaves by the arithmetic of blocks; -1 when
	// not known.
	stored, left int64
}

// kvEars listen to an engine while it is examined.
type kvEars struct {
	on      *kvevents.Listeners
	sources []kvevents.Source // by rank
	before  int64             // tokens in the first rank's cache
}

func listenKV(ctx context.Context, sources []kvevents.Source) *kvEars {
	on, _ := kvevents.New(kvevents.Options{Log: slog.New(slog.DiscardHandler)}) // fails without a log only
	e := &kvEars{on: on, sources: sources}
	on.Listen(sources)
	began := time.Now()
	await(ctx, kvPatience, func() bool {
		return !slices.ContainsFunc(e.views(), func(v kvevents.View) bool {
			// What happened before comes after the greeting, and is no growth.
			return !v.Connected || v.Sequence < 0 && time.Since(began) < kvReplay
		})
	})
	e.before = e.cached()
	return e
}

func (e *kvEars) views() []kvevents.View {
	all := make([]kvevents.View, len(e.sources))
	for i, from := range e.sources {
		all[i], _ = e.on.View(from)
	}
	return all
}

// cached is what the first rank has, 0 before it told.
func (e *kvEars) cached() int64 { return max(e.views()[0].CachedTokens, 0) }

// hear waits for what a prompt left on the first rank.
func (e *kvEars) hear(ctx context.Context, left int64) kvSeen {
	if e.views()[0].Connected {
		await(ctx, kvPatience, func() bool { return e.cached()-e.before >= max(left, 1) })
	}
	return kvSeen{configured: true, ranks: e.views(), stored: e.cached() - e.before, left: left}
}

// leaves is how many tokens a prompt adds to the cache: full blocks, without those
// that were there; -1 when not known.
func leaves(u llmapi.Usage, block int) int64 {
	if !u.Known || u.CacheState != llmapi.CacheReported || block <= 0 {
		return -1
	}
	size := int64(block)
	return u.Prompt/size*size - u.Cached
}

// offersKV finds an engine that publishes at the usual place.
func offersKV(ctx context.Context, base *url.URL, port int) kvSeen {
	address := net.JoinHostPort(base.Hostname(), strconv.Itoa(port))
	on, _ := kvevents.New(kvevents.Options{Log: slog.New(slog.DiscardHandler)})
	defer on.Stop()
	from := kvevents.Source{Events: address}
	on.Listen([]kvevents.Source{from})
	var v kvevents.View
	await(ctx, kvPatience, func() bool {
		v, _ = on.View(from)
		return v.Connected || v.Problem != ""
	})
	if !v.Connected {
		return kvSeen{}
	}
	return kvSeen{offered: "tcp://" + address}
}

// await looks until something is true, for at most so long.
func await(ctx context.Context, most time.Duration, is func() bool) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	look := time.NewTicker(kvLook)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// kvEvents judges whether what is really cached can be known.
func (j *judgements) kvEvents(r remedies, k kvSeen, block int) {
	switch {
	case r.kvEvents == "":
	case k.offered != "":
		j.advise("kv_events: "+k.offered+" beside the engine's url in the configuration", "publishes KV events, which say what is really cached, and nobody listens")
	case !k.configured:
		j.advise(r.kvEvents, "no KV events, as far as can be seen: pages show what is likely cached, not what is")
	default:
		j.heardKV(r, k, block)
	}
}

func (j *judgements) heardKV(r remedies, k kvSeen, block int) {
	for rank, v := range k.ranks {
		if !v.Connected {
			j.missing(r.kvEvents, "KV events of rank %d do not come: %s", rank, v.Problem)
			return
		}
	}
	switch {
	case k.stored <= 0:
		j.missing(r.kvEvents, "KV events are connected, but a prompt that was read brought none")
	case k.left < 0:
		j.good("KV events come: %d tokens more are cached since this began", k.stored)
	case k.stored < k.left:
		j.advise("look at the gateway's log for events that were lost, and whether the cache is so full that it forgets within a second",
			"KV events tell of %d tokens in the cache from a prompt that leaves %d, in blocks of %d", k.stored, k.left, block)
	case k.stored > k.left:
		j.good("KV events come: a prompt leaves %d tokens in blocks of %d, and with those of others %d came", k.left, block, k.stored)
	default:
		j.good("KV events fit: a prompt leaves %d tokens in blocks of %d, and so many came", k.left, block)
	}
	if v := k.ranks[0]; v.Lost > 0 || !v.Complete {
		j.advise(r.kvReplay, "what was cached before somebody listened is not known")
	}
}
