package aiperf

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// stats is a block of profile_export_aiperf.json: of single values over the
// requests, or with nothing but Avg of a whole run.
type stats struct {
	Unit string   `json:"unit"`
	Avg  *float64 `json:"avg,omitempty"`
	P1   *float64 `json:"p1,omitempty"`
	P5   *float64 `json:"p5,omitempty"`
	P10  *float64 `json:"p10,omitempty"`
	P25  *float64 `json:"p25,omitempty"`
	P50  *float64 `json:"p50,omitempty"`
	P75  *float64 `json:"p75,omitempty"`
	P90  *float64 `json:"p90,omitempty"`
	P95  *float64 `json:"p95,omitempty"`
	P99  *float64 `json:"p99,omitempty"`
	Min  *float64 `json:"min,omitempty"`
	Max  *float64 `json:"max,omitempty"`
	Std  *float64 `json:"std,omitempty"`
	N    *int     `json:"count,omitempty"`
	Sum  *float64 `json:"sum,omitempty"`
}

type errorCount struct {
	Details problem `json:"error_details"`
	Count   int     `json:"count"`
}

type runInfo struct {
	Seed      uint64         `json:"random_seed"`
	Label     string         `json:"run_label"`
	Variation string         `json:"variation_label"`
	Values    map[string]any `json:"variation_values"`
}

// summaryOf is the content of profile_export_aiperf.json: a block for each metric
// beside what describes the run.
func summaryOf(r run, records []record) map[string]any {
	values := map[metric][]float64{}
	units := map[metric]string{}
	problems := map[problem]int{}
	finished, failed := 0, 0
	first, last := int64(math.MaxInt64), int64(0)
	for _, one := range records {
		for m, v := range one.Metrics {
			values[m], units[m] = append(values[m], v.Value), v.Unit
		}
		first, last = min(first, one.Metadata.StartNS), max(last, one.Metadata.EndNS)
		if one.Error == nil {
			finished++
			continue
		}
		failed++
		problems[*one.Error]++
	}

	s := map[string]any{
		"schema_version": "1.4",
		"benchmark_id":   r.name(),
		"run_info":       runInfo{r.seed, r.name(), r.arm, map[string]any{"arm": r.arm, "phases.profiling.concurrency": r.sessions}},
		"was_cancelled":  false,
		"start_time":     time.Unix(0, first).UTC().Format(time.RFC3339Nano),
		"end_time":       time.Unix(0, last).UTC().Format(time.RFC3339Nano),
		"error_summary":  errorCounts(problems),
	}
	whole := func(name string, v float64, unit string) {
		v = round(v)
		s[name] = stats{Unit: unit, Avg: &v}
	}
	for m, list := range values {
		s[string(m)] = distribution(list, units[m])
	}
	for name, of := range map[string]metric{
		"total_isl": inputLength, "total_osl": outputLength, "total_output_tokens": outputTokens, "total_error_isl": errorInput,
		"total_usage_prompt_tokens": usagePrompt, "total_usage_prompt_cache_read_tokens": usageCached, "total_usage_completion_tokens": usageComplete,
	} {
		if len(values[of]) > 0 {
			whole(name, sum(values[of]), "tokens")
		}
	}
	if prompt := sum(values[usagePrompt]); prompt > 0 && len(values[usageCached]) > 0 {
		whole("overall_usage_prompt_cache_read_pct", 100*sum(values[usageCached])/prompt, "%")
	}
	whole("request_count", float64(finished), "requests")
	if failed > 0 {
		whole("error_request_count", float64(failed), "requests")
	}
	if seconds := float64(last-first) / 1e9; seconds > 0 {
		whole("benchmark_duration", seconds, "sec")
		whole("request_throughput", float64(finished)/seconds, "requests/sec")
		if tokens := values[outputLength]; len(tokens) > 0 {
			whole("output_token_throughput", sum(tokens)/seconds, "tokens/sec")
		}
	}
	return s
}

func errorCounts(problems map[problem]int) []errorCount {
	list := []errorCount{}
	for _, p := range slices.SortedFunc(maps.Keys(problems), func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Message, b.Message))
	}) {
		list = append(list, errorCount{p, problems[p]})
	}
	return list
}

// distribution sorts values, of which there is at least one. Percentiles are
// interpolated, as AIPerf does, and the deviation is that of the whole.
func distribution(values []float64, unit string) stats {
	slices.Sort(values)
	n, total := len(values), sum(values)
	figure := func(v float64) *float64 { v = round(v); return &v }
	quantile := func(percent float64) *float64 {
		at := percent / 100 * float64(n-1)
		low := int(at)
		high := min(low+1, n-1)
		return figure(values[low] + float64((at-float64(low))*(values[high]-values[low])))
	}
	squares := 0.0
	for _, v := range values {
		d := v - total/float64(n)
		squares += float64(d * d)
	}
	return stats{
		Unit: unit, Avg: figure(total / float64(n)), N: &n, Sum: figure(total),
		P1: quantile(1), P5: quantile(5), P10: quantile(10), P25: quantile(25), P50: quantile(50),
		P75: quantile(75), P90: quantile(90), P95: quantile(95), P99: quantile(99),
		Min: figure(values[0]), Max: figure(values[n-1]), Std: figure(math.Sqrt(squares / float64(n))),
	}
}

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}
