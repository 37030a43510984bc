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
	all := judgements{}
	all.answers(s)
	all.cache(i, s)
	all.ranks(i)
	all.agents(i, s)
	all.memory(i, s)
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

func (j *judgements) cache(i engine.Info, s seen) {
	if !i.HasMetrics {
		j.advise("", "no metrics page that we know: replicas are compared by the gateway's own counts of requests only")
	} else {
		j.good("a metrics page with load and cache")
	}
	if !i.PrefixCaching {
		j.missing("start it with --enable-prefix-caching (vLLM's default)", "prefix caching is off: every turn is read whole, wherever it goes")
		return
	}
	if !s.chat.ok() || !s.cached.Known {
		return
	}
	switch {
	case s.cached.CacheState != llmapi.CacheReported:
		j.missing("start it with --enable-prompt-tokens-details",
			"answers do not say how much of a prompt was cached: pages count it as computed, and nobody can say why a turn was not cached")
	case s.cached.Cached == 0:
		j.missing("look whether prefix caching is on, and whether the cache is so full that it forgets within a second",
			"a prompt that was sent twice in a row was read twice")
	default:
		j.good("cached tokens are told: %d of %d when a prompt is sent again", s.cached.Cached, s.cached.Prompt)
	}
}

func (j *judgements) ranks(i engine.Info) {
	if i.Kind != "vllm" || i.Ranks < 2 {
		return
	}
	blind := engine.BlindPaths(i)
	switch {
	case len(blind) == 0:
		j.good("every route goes to the rank that the gateway names")
	case !engine.HonoursRank(i, "/v1/chat/completions"):
		j.missing("upgrade vLLM to 0.11.1 or newer, or run one server per card",
			"vLLM %s sends requests where it likes: conversations cannot be kept on a card", i.Version)
	case !engine.HonoursRank(i, "/v1/responses"):
		j.advise("upgrade vLLM to 0.33 or newer, or run one server per card (one --engine each)",
			"conversations on /v1/responses (Codex) cannot be kept on a card: vLLM %s ignores the rank there", i.Version)
	}
	j.advise("for a dense model: one vllm serve per card, one --engine each",
		"the %d ranks of one server die together", i.Ranks)
}

func (j *judgements) agents(i engine.Info, s seen) {
	switch {
	case s.tools.ok():
		j.good("tools are parsed")
	case s.tools.status == http.StatusBadRequest:
		j.missing("start it with --enable-auto-tool-choice --tool-call-parser NAME (hermes for Qwen; the engine's documentation lists them)",
			"requests with tools fail, and agents send nothing else: %s", s.tools.says())
	case s.chat.ok():
		j.missing("look at the engine's log", "a request with a tool failed: %s", s.tools.says())
	}
	switch {
	case s.messages.ok():
		j.good("/v1/messages is served (Claude Code)")
	case s.messages.status == http.StatusNotFound:
		j.missing("upgrade the engine; vLLM serves it from 0.11.1 on", "no /v1/messages: Claude Code cannot be used")
	case s.chat.ok():
		j.missing("look at the engine's log", "/v1/messages: %s", s.messages.says())
	}
	switch {
	case s.responses.ok():
		j.good("/v1/responses is served (Codex)")
	case s.responses.status == http.StatusNotFound:
		j.advise("upgrade the engine", "no /v1/responses: Codex cannot be used")
	}
	if n := i.Models[0].MaxModelLen; n > 0 && n < agentContext {
		j.missing(fmt.Sprintf("raise --max-model-len to %d or more if the model allows it", agentContext),
			"a context of %s tokens is too small for coding agents", grouped(n))
	}
	if strings.Contains(i.Models[0].ID, "/") {
		j.advise("--served-model-name NAME without a slash", "Claude Code does not take model names with a slash, as %s; the gateway's alias claude-* helps", i.Models[0].ID)
	}
	if i.Kind == "vllm" && engine.Older(i.Version, 0, 17, 2) {
		j.missing("upgrade vLLM to 0.18 or newer, or set CLAUDE_CODE_ATTRIBUTION_HEADER=0 for Claude Code",
			"Claude Code's attribution line, which may change with each request, is part of the prompt in vLLM %s: nothing after it is found in the cache", i.Version)
	}
}

func (j *judgements) memory(i engine.Info, s seen) {
	switch {
	case i.Kind != "vllm":
	case i.HostTier:
		j.good("the host-memory KV tier is on")
	case s.hostMemory >= spareMemory:
		each := (s.hostMemory - leftMemory) >> 30 / int64(max(i.Ranks, 1))
		j.advise(fmt.Sprintf("--kv-offloading-backend native --kv-offloading-size %d (GiB for each rank)", each),
			"this machine has %d GiB of memory to spare, which could hold what the cards forget", s.hostMemory>>30)
	}
}
