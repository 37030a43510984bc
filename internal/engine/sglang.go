package engine

import (
	"context"
	"encoding/json"
	"net/http"
)

// Names and answers are those of the source of SGLang 0.5.4 to 0.5.23.
var sglang = kind{
	name: "sglang", title: "SGLang", owner: "sglang", prefix: "sglang:",
	// /health generates a token, which takes a second at least. /ready, from
	// 0.5.20 on, does not; before, its absence says that the server is up.
	health: "/ready",
	metric: sglangMetric, label: sglangLabel, about: sglangAbout,
	ranks: []rankPath{
		{"/v1/chat/completions", 0, 5, 10, true},
		{"/v1/completions", 0, 5, 10, true},
		{"/v1/messages", 0, 5, 10, true},
		{"/v1/responses", 0, 5, 20, false},
	},
}

func sglangMetric(name []byte) metric {
	switch string(name) {
	case "sglang:num_running_reqs":
		return running
	case "sglang:num_queue_reqs":
		return waiting
	case "sglang:token_usage":
		return kvUsed
	case "sglang:max_total_num_tokens":
		return capacityTokens
	case "sglang:page_size":
		return pageSize
	// The process that tokenises counts these when a request has ended, for all
	// ranks together and so without a rank.
	case "sglang:prompt_tokens_total":
		return promptTokens
	case "sglang:cached_tokens_total":
		return cachedTokens
	case "sglang:generation_tokens_total":
		return generationTokens
	// The schedulers count these, each its own rank's.
	case "sglang:realtime_tokens_total":
		return byMode
	case "sglang:num_retracted_requests_total":
		return preemptions
	}
	return unknown
}

func sglangLabel(s *series, label, value []byte) {
	switch string(label) {
	case "dp_rank":
		s.engine = value
	case "model_name":
		s.model = value
	case "priority":
		// With priorities on, gauges have the sum under the empty priority and
		// its parts beside it. Counters have parts only.
		if len(value) > 0 && (s.what == running || s.what == waiting) {
			s.what = unknown
		}
	case "mode":
		if s.what != byMode {
			return
		}
		switch string(value) {
		case "prefill_compute":
			s.what = promptComputed
		case "prefill_cache":
			s.what = promptReused
		case "decode":
			s.what = generationTokens
		}
	}
}

// sglangAbout asks for the settings in force.
func sglangAbout(ctx context.Context, p prober, i *Info) error {
	var v struct {
		Version           string `json:"version"`
		DisableRadixCache bool   `json:"disable_radix_cache"`
		Hierarchical      bool   `json:"enable_hierarchical_cache"`
		ToolCallParser    string `json:"tool_call_parser"`
		PageSize          int    `json:"page_size"`
		MaxTotalTokens    int64  `json:"max_total_num_tokens"`
	}
	// The second is its name before 0.5.6.
	for _, path := range []string{"/server_info", "/get_server_info"} {
		status, body, err := p.get(ctx, path)
		if err != nil {
			return err
		}
		if status == http.StatusNotFound {
			continue
		}
		if status != http.StatusOK || json.Unmarshal(body, &v) != nil {
			return nil
		}
		i.Version = v.Version
		i.PrefixCaching = !v.DisableRadixCache
		i.HostTier = v.Hierarchical
		i.NoToolParser = v.ToolCallParser == ""
		if i.BlockSize == 0 {
			i.BlockSize = min(max(v.PageSize, 0), 1<<20)
		}
		if i.CapacityTokens == 0 {
			i.CapacityTokens = min(max(v.MaxTotalTokens, 0), 1<<40)
		}
		return nil
	}
	return nil
}
