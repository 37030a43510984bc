package doctor

import (
	"fmt"

	"lmwarden/internal/engine"
)

// remedies are what mends what an engine of one kind lacks. A line that is empty
// stands for a finding that does not arise there.
type remedies struct {
	metrics       string
	prefixCaching string
	cachedTokens  string
	forgets       string // where to look when a prompt is read twice
	tools         string
	context       string
	modelName     string
	messages      string
	responses     string
	// ranks and ranksOnResponses name the versions from which the rank is honoured.
	ranks, ranksOnResponses string
	dense                   string
	oneSlot, sharedSlots    string
	// attribution is what to do where Claude Code's attribution line becomes part
	// of the prompt, by version; empty where it does not.
	attribution func(version string) string
	// kvEvents is the flag for KV events, kvReplay what tells of former ones.
	kvEvents, kvReplay string
	// hostTier is the flag that gives each rank so many GiB of host memory.
	hostTier func(gib int64) string
}

// remediesFor is what helps an engine of this kind.
func remediesFor(kind string) remedies {
	switch kind {
	case "sglang":
		return remedies{
			metrics:          "start it with --enable-metrics",
			prefixCaching:    "start it without --disable-radix-cache",
			cachedTokens:     "start it with --enable-cache-report",
			forgets:          "look whether the cache is so full that it forgets within a second",
			tools:            "start it with --tool-call-parser NAME (qwen25 for Qwen; the engine's documentation lists them)",
			context:          "raise --context-length to %d or more if the model allows it",
			modelName:        "--served-model-name NAME without a slash",
			messages:         "upgrade SGLang to 0.5.9 or newer",
			responses:        "upgrade the engine",
			ranks:            "upgrade SGLang to 0.5.10 or newer, or run one server per card",
			ranksOnResponses: "upgrade SGLang to 0.5.20 or newer, or run one server per card (one --engine each)",
			dense:            "for a dense model: one server per card, one --engine each",
			attribution:      func(string) string { return "set CLAUDE_CODE_ATTRIBUTION_HEADER=0 for Claude Code" },
			hostTier: func(gib int64) string {
				return fmt.Sprintf("--enable-hierarchical-cache --hicache-size %d (GB for each rank)", gib)
			},
		}
	case "llama.cpp":
		return remedies{
			metrics:      "start it with --metrics",
			cachedTokens: "update llama.cpp",
			forgets:      "look whether it runs with --no-cache-prompt",
			tools:        "start it with --jinja and a chat template that knows tools (--chat-template-file)",
			context:      "raise -c so that each slot has %d or more: -c is shared out among the slots of --parallel",
			modelName:    "--alias NAME without a slash",
			messages:     "update llama.cpp",
			responses:    "update llama.cpp",
			oneSlot:      "give it more with --parallel N, and -c N times as large",
			sharedSlots:  "give --parallel and -c, so that each slot has its own part",
			hostTier: func(gib int64) string {
				return fmt.Sprintf("--cache-ram %d (MiB; 8192 unless it is given)", gib<<10)
			},
		}
	}
	r := remedies{
		metrics:          "",
		prefixCaching:    "start it with --enable-prefix-caching (vLLM's default)",
		cachedTokens:     "start it with --enable-prompt-tokens-details",
		forgets:          "look whether prefix caching is on, and whether the cache is so full that it forgets within a second",
		tools:            "start it with --enable-auto-tool-choice --tool-call-parser NAME (hermes for Qwen; the engine's documentation lists them)",
		context:          "raise --max-model-len to %d or more if the model allows it",
		modelName:        "--served-model-name NAME without a slash",
		messages:         "upgrade the engine; vLLM serves it from 0.11.1 on",
		responses:        "upgrade the engine",
		ranks:            "upgrade vLLM to 0.11.1 or newer, or run one server per card",
		ranksOnResponses: "upgrade vLLM to 0.33 or newer, or run one server per card (one --engine each)",
		dense:            "for a dense model: one vllm serve per card, one --engine each",
	}
	if kind == "vllm" {
		r.attribution = func(version string) string {
			if !engine.Older(version, 0, 17, 2) {
				return ""
			}
			return "upgrade vLLM to 0.18 or newer, or set CLAUDE_CODE_ATTRIBUTION_HEADER=0 for Claude Code"
		}
		r.kvEvents = `start it with --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", ` +
			`"replay_endpoint": "tcp://*:5657"}', and put kv_events: tcp://HOST:5557 and kv_events_replay: tcp://HOST:5657 beside its url; the star is part of it`
		r.kvReplay = `give its --kv-events-config a "replay_endpoint", as tcp://*:5657, and put kv_events_replay: tcp://HOST:5657 beside its url`
		r.hostTier = func(gib int64) string {
			return fmt.Sprintf("--kv-offloading-backend native --kv-offloading-size %d (GiB for each rank)", gib)
		}
	}
	return r
}
