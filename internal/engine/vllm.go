package engine

import (
	"context"
	"encoding/json"
	"net/http"
)

var vllm = kind{
	name: "vllm", title: "vLLM", owner: "vllm", prefix: "vllm:", health: "/health",
	metric: vllmMetric, label: vllmLabel, about: vllmAbout,
	// Pooling, embeddings, scoring and audio never read X-Data-Parallel-Rank, nor
	// does anything that is not a generation.
	ranks: []rankPath{
		{"/v1/chat/completions", 0, 11, 1, true},
		{"/v1/chat/completions/batch", 0, 11, 1, true},
		{"/v1/completions", 0, 11, 1, true},
		{"/v1/messages", 0, 11, 1, true},
		{"/inference/v1/generate", 0, 23, 0, true},
		{"/v1/responses", 0, 33, 0, false},
	},
}

// vllmMetric: counters end in _total on every page of vLLM; exporters between us
// and it may drop the ending.
func vllmMetric(name []byte) metric {
	switch string(name) {
	case "vllm:num_requests_running":
		return running
	case "vllm:num_requests_waiting":
		return waiting
	case "vllm:kv_cache_usage_perc":
		return kvUsed
	case "vllm:gpu_cache_usage_perc":
		return kvUsedOld
	case "vllm:prompt_tokens_total", "vllm:prompt_tokens":
		return promptTokens
	case "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_cached":
		return cachedTokens
	case "vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries":
		return prefixQueries
	case "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries":
		return prefixQueriesOld
	case "vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits":
		return prefixHits
	case "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits":
		return prefixHitsOld
	case "vllm:generation_tokens_total", "vllm:generation_tokens":
		return generationTokens
	case "vllm:num_preemptions_total", "vllm:num_preemptions":
		return preemptions
	case "vllm:cache_config_info":
		return cacheConfig
	}
	return unknown
}

func vllmLabel(s *series, label, value []byte) {
	switch string(label) {
	case "engine":
		s.engine = value
	case "model_name":
		s.model = value
	}
	if s.what == cacheConfig {
		s.config.set(label, value)
	}
}

// set takes a label of cache_config_info, whose labels are the information.
func (c *config) set(label, value []byte) {
	switch string(label) {
	case "block_size":
		c.blockSize = positive(value)
	case "num_gpu_blocks":
		c.totalBlocks = positive(value)
	case "kv_cache_size_tokens":
		c.perRankToken = positive(value)
	case "enable_prefix_caching":
		c.prefixCachingOff = string(value) == "False"
	case "kv_offloading_size":
		// The back end's label says "native" even when the tier is off.
		c.hostTier = string(value) != "None"
	}
}

// vllmAbout asks for the version. That there is no answer at all is an error: a
// version that is taken for unknown costs the rank header on some routes until
// the engine restarts.
func vllmAbout(ctx context.Context, p prober, i *Info) error {
	status, body, err := p.get(ctx, "/version")
	if err != nil {
		return err
	}
	var v struct {
		Version string `json:"version"`
	}
	if status == http.StatusOK && json.Unmarshal(body, &v) == nil {
		i.Version = v.Version
	}
	return nil
}
