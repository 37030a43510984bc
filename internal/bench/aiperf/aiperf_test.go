package aiperf

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/bench/results"
)

func p[T any](v T) *T { return &v }

// requests are two runs: of the first, a session of two turns with a sub-agent,
// a request without a session, and one that failed; of the second, one that was
// cut.
func requests() []results.Request {
	finished := func(session string, client, turn int, sent, ttft, e2e float64, prompt, cached, output int) results.Request {
		return results.Request{
			Arm: "off", Sessions: 4, Seed: 1, Client: client, Session: &session, Turn: &turn, SentS: sent,
			TTFB: &ttft, TTFT: &ttft, E2E: &e2e, ITL: p(10.0), PromptTokens: &prompt, CachedTokens: &cached, OutputTokens: &output,
			End: results.Finished,
		}
	}
	agent := finished("b", 0, 1, 5, 0.25, 1, 50, 0, 3)
	agent.Parent = p("a")
	alone := results.Request{Arm: "off", Sessions: 4, Seed: 1, Client: 2, SentS: 1, TTFB: p(1.0), TTFT: p(1.0), E2E: p(2.0), End: results.Finished}
	failed := results.Request{Arm: "off", Sessions: 4, Seed: 1, Client: 1, Session: p("c"), Turn: p(1), SentS: 6, End: results.Failed, Error: p("refused: no replica")}
	cut := finished("d", 0, 3, 20, 0.5, 0, 70, 64, 1)
	cut.Arm, cut.End, cut.E2E, cut.ITL = "../x", results.Cut, nil, nil
	second := finished("a", 0, 2, 3, 0.1, 1, 120, 96, 11)
	second.TTFB = p(0.05)
	return []results.Request{finished("a", 0, 1, 0, 0.5, 1.5, 100, 0, 11), alone, second, agent, failed, cut}
}

func records(t *testing.T, path string) []map[string]any {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []map[string]any
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r map[string]any
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, requests()); err != nil {
		t.Fatal(err)
	}
	list := records(t, filepath.Join(dir, "off-4-1", RecordsFile))
	if len(list) != 5 {
		t.Fatalf("%d records, want 5", len(list))
	}
	second := list[2]
	want := map[string]any{
		"metadata": map[string]any{
			"session_num": 0.0, "x_request_id": "off-4-1-2", "x_correlation_id": "a", "conversation_id": "a", "turn_index": 1.0,
			"request_start_ns": 3e9, "request_ack_ns": 3.05e9, "request_end_ns": 4e9,
			"worker_id": "client_0", "record_processor_id": "warden", "benchmark_phase": "profiling",
			"was_cancelled": false, "cancellation_time_ns": nil, "agent_depth": 0.0, "parent_correlation_id": nil,
		},
		"metrics": map[string]any{
			"time_to_first_token": map[string]any{"value": 100.0, "unit": "ms"}, "request_latency": map[string]any{"value": 1000.0, "unit": "ms"},
			"inter_token_latency": map[string]any{"value": 10.0, "unit": "ms"}, "output_token_throughput_per_user": map[string]any{"value": 100.0, "unit": "tokens/sec/user"},
			"input_sequence_length": map[string]any{"value": 120.0, "unit": "tokens"}, "usage_prompt_tokens": map[string]any{"value": 120.0, "unit": "tokens"},
			"usage_prompt_cache_read_tokens": map[string]any{"value": 96.0, "unit": "tokens"},
			"output_sequence_length":         map[string]any{"value": 11.0, "unit": "tokens"}, "output_token_count": map[string]any{"value": 11.0, "unit": "tokens"},
			"usage_completion_tokens": map[string]any{"value": 11.0, "unit": "tokens"},
		},
		"error": nil,
	}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("second turn (-want +got):\n%s", diff)
	}
	meta := func(r map[string]any, key string) any { return r["metadata"].(map[string]any)[key] }
	if n, id := meta(list[1], "session_num"), meta(list[1], "conversation_id"); n != 1.0 || id != nil {
		t.Errorf("request without a session: session %v, %v", n, id)
	}
	if n := len(list[1]["metrics"].(map[string]any)); n != 2 {
		t.Errorf("request without counts has %d metrics, want its two times", n)
	}
	if meta(list[3], "agent_depth") != 1.0 || meta(list[3], "parent_correlation_id") != "a" || meta(list[3], "session_num") != 2.0 {
		t.Errorf("sub-agent: %v", list[3]["metadata"])
	}
	if diff := cmp.Diff(map[string]any{"type": "RequestError", "message": "refused: no replica"}, list[4]["error"]); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestCutRequestIsCancelled(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, requests()); err != nil {
		t.Fatal(err)
	}
	// The arm's name stays one folder, in dir.
	list := records(t, filepath.Join(dir, "..%2Fx-4-1", RecordsFile))
	if len(list) != 1 {
		t.Fatalf("%d records, want 1", len(list))
	}
	meta := list[0]["metadata"].(map[string]any)
	if meta["was_cancelled"] != true || meta["cancellation_time_ns"] != 20.5e9 || meta["request_end_ns"] != 20.5e9 {
		t.Errorf("metadata: %v", meta)
	}
	if code := list[0]["error"].(map[string]any)["code"]; code != 499.0 {
		t.Errorf("code %v, want 499", code)
	}
	if diff := cmp.Diff(map[string]any{"error_isl": map[string]any{"value": 70.0, "unit": "tokens"}}, list[0]["metrics"]); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestSummary(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, requests()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "off-4-1", SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	whole := func(v float64, unit string) map[string]any { return map[string]any{"avg": v, "unit": unit} }
	want := map[string]any{
		"schema_version": "1.4", "benchmark_id": "off-4-1", "was_cancelled": false,
		"start_time": "1970-01-01T00:00:00Z", "end_time": "1970-01-01T00:00:06Z",
		"run_info": map[string]any{
			"random_seed": 1.0, "run_label": "off-4-1", "variation_label": "off",
			"variation_values": map[string]any{"arm": "off", "phases.profiling.concurrency": 4.0},
		},
		"error_summary": []any{map[string]any{"count": 1.0, "error_details": map[string]any{"type": "RequestError", "message": "refused: no replica"}}},
		"request_count": whole(4, "requests"), "error_request_count": whole(1, "requests"),
		"benchmark_duration": whole(6, "sec"), "request_throughput": whole(0.6667, "requests/sec"),
		"output_token_throughput": whole(4.1667, "tokens/sec"),
		"total_isl":               whole(270, "tokens"), "total_osl": whole(25, "tokens"), "total_output_tokens": whole(25, "tokens"),
		"total_usage_prompt_tokens": whole(270, "tokens"), "total_usage_prompt_cache_read_tokens": whole(96, "tokens"),
		"total_usage_completion_tokens": whole(25, "tokens"), "overall_usage_prompt_cache_read_pct": whole(35.5556, "%"),
	}
	for key, block := range want {
		if diff := cmp.Diff(block, got[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
		delete(got, key)
	}
	// What is left are the distributions.
	if len(got) != 10 {
		t.Errorf("%d distributions, want 10: %v", len(got), got)
	}
	// 0.5, 1, 0.1 and 0.25 s, by hand.
	times := map[string]any{
		"unit": "ms", "count": 4.0, "sum": 1850.0, "avg": 462.5, "min": 100.0, "max": 1000.0, "std": 341.6413,
		"p1": 104.5, "p5": 122.5, "p10": 145.0, "p25": 212.5, "p50": 375.0, "p75": 625.0, "p90": 850.0, "p95": 925.0, "p99": 985.0,
	}
	if diff := cmp.Diff(times, got["time_to_first_token"]); diff != "" {
		t.Errorf("time_to_first_token (-want +got):\n%s", diff)
	}
}
