package server

import (
	"net/http"
	"strconv"

	"lmwarden/internal/enginesim"
)

// metrics is GET /metrics.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	writePage(w, []byte(s.metricsPage()))
}

func writePage(w http.ResponseWriter, page []byte) {
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	write(w, page)
}

// metricsPage is the page of a vLLM with one API server. It leaves out the families of
// the Python runtime, of the web framework and of the process (but for its start time), and those
// of which the model knows nothing.
func (s *Server) metricsPage() string {
	process := s.process()
	started := process.engine.epoch
	p := &page{model: s.models[0], created: started}
	p.family("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge")
	p.sample("process_start_time_seconds", unixSeconds(started))
	stats, figures := process.engine.snapshot()
	writeStats(p, stats)
	s.writeFigures(p, figures)
	writeAdmission(p, process.refused.Load())
	s.writeCacheConfig(p, len(stats))
	return p.text.String()
}

func writeStats(p *page, stats []enginesim.Stats) {
	of := func(value func(enginesim.Stats) float64) series {
		s := series{}
		for _, rank := range stats {
			s.ranks = append(s.ranks, value(rank))
		}
		return s
	}
	with := func(name, value string, s series) series {
		s.label = label{name, value}
		return s
	}
	zero := of(func(enginesim.Stats) float64 { return 0 })
	one := of(func(enginesim.Stats) float64 { return 1 })
	waiting := of(func(s enginesim.Stats) float64 { return float64(s.Waiting) })
	cached := of(func(s enginesim.Stats) float64 { return float64(s.CachedTokens) })
	hits := of(func(s enginesim.Stats) float64 { return float64(s.PrefixHits) })

	p.counter("vllm:estimated_flops_per_gpu",
		"Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).", zero)
	p.counter("vllm:estimated_read_bytes_per_gpu",
		"Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).", zero)
	p.counter("vllm:estimated_write_bytes_per_gpu",
		"Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).", zero)
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
		of(func(s enginesim.Stats) float64 { return float64(s.Running) }))
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
	p.gauge("vllm:num_requests_waiting_by_reason",
		"Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "+
			"'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "+
			"Sum of all reasons equals vllm:num_requests_waiting.",
		with("reason", "capacity", waiting), with("reason", "deferred", zero))
	p.gauge("vllm:engine_sleep_state",
		"Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "+
			"weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
		with("sleep_state", "awake", one), with("sleep_state", "weights_offloaded", zero), with("sleep_state", "discard_all", zero))
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
		of(func(s enginesim.Stats) float64 { return s.KVUsed }))
	p.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
		of(func(s enginesim.Stats) float64 { return float64(s.PrefixQueries) }))
	p.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", hits)
	p.counter("vllm:external_prefix_cache_queries",
		"External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.", zero)
	p.counter("vllm:external_prefix_cache_hits",
		"External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.", zero)
	p.counter("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", zero)
	p.counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", zero)
	p.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.",
		of(func(s enginesim.Stats) float64 { return float64(s.Preemptions) }))
	p.counter("vllm:prompt_tokens", "Number of prefill tokens processed.",
		of(func(s enginesim.Stats) float64 { return float64(s.PromptTokens) }))
	p.counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.",
		with("source", "local_compute", of(func(s enginesim.Stats) float64 { return float64(s.PromptTokens - s.CachedTokens) })),
		with("source", "local_cache_hit", cached), with("source", "external_kv_transfer", zero))
	p.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached)
	p.counter("vllm:prompt_tokens_cached_by_source",
		"Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, "+
			"p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; "+
			"sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
		with("source", "device", hits), with("source", "host", zero), with("source", "p2p", zero),
		with("source", "disk", zero), with("source", "external_unspecified", zero))
	p.counter("vllm:generation_tokens", "Number of generation tokens processed.",
		of(func(s enginesim.Stats) float64 { return float64(s.GenerationTokens) }))
	var finished []series
	for _, reason := range []string{enginesim.ReasonStop, enginesim.ReasonLength, reasonAbort, "error", "repetition"} {
		finished = append(finished, with("finished_reason", reason,
			of(func(s enginesim.Stats) float64 { return float64(s.Finished[reason]) })))
	}
	p.counter("vllm:request_success", "Count of successfully processed requests.", finished...)
}

func (s *Server) writeFigures(p *page, all []figures) {
	for i, d := range declarations(s.params.ModelLen()) {
		ranks := make([]histogram, len(all))
		for rank := range all {
			ranks[rank] = all[rank][i]
		}
		p.histogram(d.name, d.help, ranks)
	}
}

// writeAdmission writes the counter of the API server's queue limit, which has no engine label.
func writeAdmission(p *page, refused int64) {
	const name, help = "vllm:admission_rejections", "Number of admission attempts rejected by a queue limit, by reason."
	model := label{"model_name", p.model}
	requests, tokens := label{"reason", "max_num_queued_reqs"}, label{"reason", "max_num_queued_tokens"}
	p.family(name+"_total", help, "counter")
	p.sample(name+"_total", float64(refused), model, requests)
	p.sample(name+"_total", 0, model, tokens)
	p.family(name+"_created", help, "gauge")
	p.sample(name+"_created", unixSeconds(p.created), model, requests)
	p.sample(name+"_created", unixSeconds(p.created), model, tokens)
}

// writeCacheConfig writes the cache's configuration. As in the original num_gpu_blocks is the sum
// over all ranks on the series of each of them, while kv_cache_size_tokens is one rank's.
func (s *Server) writeCacheConfig(p *page, ranks int) {
	const name = "vllm:cache_config_info"
	blocks, size := s.params.Blocks(), strconv.Itoa(s.params.BlockTokens)
	tokens := blocks * s.params.BlockTokens
	p.family(name, "Information of the LLMEngine CacheConfig", "gauge")
	for rank := range ranks {
		p.sample(name, 1,
			label{"_block_size_resolved", "True"},
			label{"block_size", size},
			label{"cache_dtype", "auto"},
			label{"cache_hit_alignment_tokens", "None"},
			label{"effective_attention_block_size", size},
			label{"enable_mamba_shared_prefix_checkpoint", "False"},
			label{"enable_prefix_caching", "True"},
			label{"engine", strconv.Itoa(rank)},
			label{"gpu_memory_utilization", "0.92"},
			label{"hash_block_size", "None"},
			label{"is_attention_free", "False"},
			label{"kv_cache_dtype_skip_layers", "[]"},
			label{"kv_cache_layout", "None"},
			label{"kv_cache_max_concurrency", pythonFloat(float64(tokens) / float64(s.params.ModelLen()))},
			label{"kv_cache_memory_bytes", "None"},
			label{"kv_cache_size_tokens", strconv.Itoa(tokens)},
			label{"kv_offloading_backend", "native"},
			label{"kv_offloading_size", "None"},
			label{"kv_sharing_fast_prefill", "False"},
			label{"mamba_block_size", "None"},
			label{"mamba_cache_dtype", "auto"},
			label{"mamba_cache_mode", "none"},
			label{"mamba_page_size_padded", "None"},
			label{"mamba_ssm_cache_dtype", "float32"},
			label{"num_cpu_blocks", "None"},
			label{"num_gpu_blocks", strconv.Itoa(blocks * ranks)},
			label{"num_gpu_blocks_override", strconv.Itoa(blocks)},
			label{"prefix_cache_retention_interval", "0"},
			label{"prefix_caching_hash_algo", "sha256"},
			label{"prefix_match_unit", "None"},
			label{"replayssm_buffer_len", "16"},
			label{"skip_page_size_padded", "None"},
			label{"sliding_window", "None"},
			label{"swa_bounded_replay", "True"},
			label{"use_kda_recoverssm", "False"},
			label{"use_replayssm", "False"},
			label{"user_specified_block_size", "True"},
		)
	}
}
