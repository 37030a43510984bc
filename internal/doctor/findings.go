package doctor

import (
	"fmt"
	"net/http"
	"strings"

	"lmwarden/internal/engine"
	"lmwarden/internal/llmapi"
)

// Thresholds of the findings.
const (
	// agentContext is what a coding agent fills before it compacts; with less it
	// compacts all the time or fails.
	agentContext = 32_768
	// spareMemory is what must be available before a host-memory tier is advised,
	// and what is left to the machine.
	spareMemory = 32 << 30
	leftMemory  = 16 << 30
)

// judge turns what was seen into findings, the order being that of a reader who
// sets up an engine.
func judge(i engine.Info, s seen) []Finding {
	all, r := judgements{}, remediesFor(i.Kind)
	all.answers(s)
	all.cache(i, r, s)
	all.ranks(i, r)
	all.slots(i, r)
	all.agents(i, r, s)
	all.memory(i, r, s)
	if s.chat.ok() {
		all.kvEvents(r, s.kv, i.BlockSize)
	}
	return all
}

type judgements []Finding

func (j *judgements) good(format string, args ...any) {
	*j = append(*j, Finding{Level: Good, Says: fmt.Sprintf(format, args...)})
}

func (j *judgements) advise(remedy, format string, args ...any) {
	*j = append(*j, Finding{Level: Advice, Says: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (j *judgements) missing(remedy, format string, args ...any) {
	*j = append(*j, Finding{Level: Missing, Says: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (j *judgements) answers(s seen) {
	if s.chat.ok() {
		j.good("answers on /v1/chat/completions")
		return
	}
	j.missing("look at the engine's log: a request for one token failed", "/v1/chat/completions: %s", s.chat.says())
}

func (j *judgements) cache(i engine.Info, r remedies, s seen) {
	if !i.HasMetrics {
		j.advise(r.metrics, "no metrics page that we know: replicas are compared by the gateway's own counts of requests only")
	} else {
		j.good("a metrics page with load and cache")
	}
	if !i.PrefixCaching {
		j.missing(r.prefixCaching, "prefix caching is off: every turn is read whole, wherever it goes")
		return
	}
	if !s.chat.ok() || !s.cached.Known {
		return
	}
	switch {
	case s.cached.CacheState != llmapi.CacheReported:
		j.missing(r.cachedTokens,
			"answers do not say how much of a prompt was cached: pages count it as computed, and nobody can say why a turn was not cached")
	case s.cached.Cached == 0:
		j.missing(r.forgets, "a prompt that was sent twice in a row was read twice")
	default:
		j.good("cached tokens are told: %d of %d when a prompt is sent again", s.cached.Cached, s.cached.Prompt)
	}
}

func (j *judgements) ranks(i engine.Info, r remedies) {
	if r.ranks == "" || i.Ranks < 2 {
		return
	}
	blind := engine.BlindPaths(i)
	switch {
	case len(blind) == 0:
		j.good("every route goes to the rank that the gateway names")
	case !engine.HonoursRank(i, "/v1/chat/completions"):
		j.missing(r.ranks, "%s %s sends requests where it likes: conversations cannot be kept on a card", engine.Title(i.Kind), i.Version)
	case !engine.HonoursRank(i, "/v1/responses"):
		j.advise(r.ranksOnResponses,
			"conversations on /v1/responses (Codex) cannot be kept on a card: %s %s ignores the rank there", engine.Title(i.Kind), i.Version)
	}
	j.advise(r.dense, "the %d ranks of one server die together", i.Ranks)
}

// slots judges an engine that has them. It does not say whether they share one
// cache; they do when it chose their number itself.
func (j *judgements) slots(i engine.Info, r remedies) {
	const ownChoice = 4
	switch {
	case i.Slots == 1:
		j.advise(r.oneSlot, "one slot: requests wait for each other")
	case i.Slots == ownChoice:
		j.advise(r.sharedSlots,
			"%d slots: if that is because --parallel was not given, they share one context, and the cache is %s tokens instead of %s",
			i.Slots, grouped(i.CapacityTokens/ownChoice), grouped(i.CapacityTokens))
	case i.Slots > 1:
		j.good("%d slots: as many requests at once", i.Slots)
	}
}

func (j *judgements) agents(i engine.Info, r remedies, s seen) {
	switch {
	case s.tools.ok() && i.NoToolParser:
		j.missing(r.tools, "requests with tools are taken, but calls of tools come back as text, which agents do not understand")
	case s.tools.ok():
		j.good("tools are parsed")
	case s.tools.status == http.StatusBadRequest, i.NoToolParser:
		j.missing(r.tools, "requests with tools fail, and agents send nothing else: %s", s.tools.says())
	case s.chat.ok():
		j.missing("look at the engine's log", "a request with a tool failed: %s", s.tools.says())
	}
	switch {
	case s.messages.ok():
		j.good("/v1/messages is served (Claude Code)")
	case s.messages.status == http.StatusNotFound:
		j.missing(r.messages, "no /v1/messages: Claude Code cannot be used")
	case s.chat.ok():
		j.missing("look at the engine's log", "/v1/messages: %s", s.messages.says())
	}
	switch {
	case s.responses.ok():
		j.good("/v1/responses is served (Codex)")
	case s.responses.status == http.StatusNotFound:
		j.advise(r.responses, "no /v1/responses: Codex cannot be used")
	}
	if n := i.Models[0].MaxModelLen; n > 0 && n < agentContext {
		j.missing(fmt.Sprintf(r.context, agentContext), "a context of %s tokens is too small for coding agents", grouped(n))
	}
	if strings.Contains(i.Models[0].ID, "/") {
		j.advise(r.modelName, "Claude Code does not take model names with a slash, as %s; the gateway's alias claude-* helps", i.Models[0].ID)
	}
	if r.attribution != nil && s.messages.ok() {
		if remedy := r.attribution(i.Version); remedy != "" {
			j.missing(remedy, "Claude Code's attribution line, which may change with each request, is part of the prompt in %s %s: nothing after it is found in the cache", engine.Title(i.Kind), i.Version)
		}
	}
}

func (j *judgements) memory(i engine.Info, r remedies, s seen) {
	switch {
	case r.hostTier == nil:
	case i.HostTier:
		j.good("the host-memory KV tier is on")
	case s.hostMemory >= spareMemory:
		each := (s.hostMemory - leftMemory) >> 30 / int64(max(i.Ranks, 1))
		j.advise(r.hostTier(each), "this machine has %d GiB of memory to spare, which could hold what the cards forget", s.hostMemory>>30)
	}
}
