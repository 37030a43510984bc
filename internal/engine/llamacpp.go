package engine

import (
	"context"
	"encoding/json"
	"net/http"
)

// Names and answers are recorded from llama-server, and the older names are those
// of its documentation. It has no ranks.
var llamacpp = kind{
	name: "llama.cpp", title: "llama.cpp", owner: "llamacpp", prefix: "llamacpp:", health: "/health",
	metric: llamacppMetric, label: func(*series, []byte, []byte) {}, about: llamacppAbout,
}

func llamacppMetric(name []byte) metric {
	switch string(name) {
	case "llamacpp:requests_processing":
		return running
	case "llamacpp:requests_deferred":
		return waiting
	case "llamacpp:kv_cache_usage_ratio": // builds before the middle of 2025
		return kvUsed
	case "llamacpp:prompt_tokens_total": // without what was cached
		return promptComputed
	case "llamacpp:prompt_tokens_cached_total":
		return promptReused
	case "llamacpp:tokens_predicted_total":
		return generationTokens
	}
	return unknown
}

// llamacppAbout asks how many requests it works on at once and how long each may
// be. Its cache is what its slots hold, so far as it tells: with a unified cache,
// which is its choice when it is not told a number of slots, they share that of
// one, and it does not say so.
func llamacppAbout(ctx context.Context, p prober, i *Info) error {
	status, body, err := p.get(ctx, "/props")
	if err != nil {
		return err
	}
	var v struct {
		Slots    int    `json:"total_slots"`
		Build    string `json:"build_info"`
		Defaults struct {
			Context int64 `json:"n_ctx"`
		} `json:"default_generation_settings"`
		Template struct {
			Tools *bool `json:"supports_tools"`
		} `json:"chat_template_caps"`
	}
	if status != http.StatusOK || json.Unmarshal(body, &v) != nil {
		return nil
	}
	i.Version = v.Build
	i.NoToolParser = v.Template.Tools != nil && !*v.Template.Tools
	i.Slots = min(max(v.Slots, 0), maxSlots)
	size := min(max(v.Defaults.Context, 0), 1<<40)
	i.CapacityTokens = int64(i.Slots) * size
	for n := range i.Models {
		if i.Models[n].MaxModelLen == 0 {
			i.Models[n].MaxModelLen = size
		}
	}
	return nil
}

// maxSlots bounds what is believed.
const maxSlots = 1 << 16
