package loadclients

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// The load: some conversations at once, each some turns long.
const (
	model         = "tiny"
	conversations = 6
	turns         = 3
	promptLength  = "200" // tokens of the local tokenizer, which are bytes
	answerTokens  = 30
	atOnce        = "4"
)

// totals are what a load client, the gateway or an engine counted.
type totals struct {
	Requests, Prompt, Cached, Completion int64
}

// box is a gateway in front of two simulated replicas.
type box struct {
	*wardentest.Gateway
	engine string
}

// newBox skips the test when the load clients are not there.
func newBox(t *testing.T) box {
	t.Helper()
	if os.Getenv("LOADCLIENTS_BIN") == "" {
		t.Skip("LOADCLIENTS_BIN is not set: make test-loadclients installs aiperf and guidellm (6 GB) and sets it")
	}
	engine := warden.Sim(t, 1, "--replicas", "2", "--model", model)[0]
	return box{warden.Gateway(t, []string{engine}), engine}
}

func TestAIPerf(t *testing.T) {
	b := newBox(t)
	dir := t.TempDir()
	run(t, "aiperf", "profile",
		"--url", b.URL, "--model", model, "--endpoint-type", "chat", "--streaming", "--tokenizer", writeTokenizer(t),
		"--concurrency", atOnce, "--num-conversations", fmt.Sprint(conversations),
		"--conversation-turn-mean", fmt.Sprint(turns), "--conversation-turn-stddev", "0",
		"--synthetic-input-tokens-mean", promptLength, "--output-tokens-mean", fmt.Sprint(answerTokens),
		"--use-server-token-count", "--ui", "none", "--artifact-dir", dir)

	type total struct {
		Avg float64 `json:"avg"` // of totals, the total
	}
	var report struct {
		Requests   total `json:"request_count"`
		Prompt     total `json:"total_usage_prompt_tokens"`
		Cached     total `json:"total_usage_prompt_cache_read_tokens"`
		Completion total `json:"total_usage_completion_tokens"`
	}
	read(t, filepath.Join(dir, "profile_export_aiperf.json"), &report)
	b.compare(t, totals{
		Requests: int64(report.Requests.Avg), Prompt: int64(report.Prompt.Avg),
		Cached: int64(report.Cached.Avg), Completion: int64(report.Completion.Avg),
	})
	for _, c := range b.Conversations(t) { // AIPerf names them in a header
		if c.Source != "x-session-affinity" || c.Turns != turns {
			t.Errorf("conversation %s: %d turns, known by %s; want %d, by x-session-affinity", c.ID, c.Turns, c.Source, turns)
		}
	}
}

func TestGuideLLM(t *testing.T) {
	b := newBox(t)
	file := filepath.Join(t.TempDir(), "report.json")
	run(t, "guidellm", "run",
		"--backend", "kind=openai_http,target="+b.URL+",model="+model,
		"--tokenizer", "kind=huggingface_auto,model="+writeTokenizer(t),
		"--data", fmt.Sprintf("kind=synthetic_text,prompt_tokens=%s,output_tokens=%d,turns=%d", promptLength, answerTokens, turns),
		"--profile", "kind=concurrent,streams="+atOnce,
		"--constraint", fmt.Sprintf("kind=max_requests,count=%d", conversations*turns),
		"--output", "kind=json,path="+file, "--disable-console-interactive")

	type request struct {
		Prompt     int64 `json:"prompt_tokens"`
		Cached     int64 `json:"cached_tokens"`
		Completion int64 `json:"output_tokens"`
	}
	var report struct {
		Benchmarks []struct {
			Requests struct{ Successful, Errored, Incomplete []request }
		}
	}
	read(t, file, &report)
	if len(report.Benchmarks) != 1 {
		t.Fatalf("%d benchmarks in the report, want 1", len(report.Benchmarks))
	}
	all := report.Benchmarks[0].Requests
	if len(all.Errored)+len(all.Incomplete) > 0 {
		t.Errorf("%d requests failed, %d did not end", len(all.Errored), len(all.Incomplete))
	}
	client := totals{Requests: int64(len(all.Successful))}
	for _, r := range all.Successful {
		client.Prompt += r.Prompt
		client.Cached += r.Cached
		client.Completion += r.Completion
	}
	b.compare(t, client)
}

// compare holds what a client counted against gateway and engine, and all of them
// against what was asked for.
func (b box) compare(t *testing.T, client totals) {
	t.Helper()
	ours, theirs := scrape(t, b.Admin), scrape(t, b.engine)
	gateway := totals{
		Requests:   ours.sum("warden_requests_total", ""),
		Prompt:     ours.sum("warden_prompt_tokens_total", ""),
		Cached:     ours.sum("warden_prompt_tokens_total", `source="cached"`),
		Completion: ours.sum("warden_completion_tokens_total", ""),
	}
	engine := totals{
		Requests:   theirs.sum("vllm:request_success_total", ""),
		Prompt:     theirs.sum("vllm:prompt_tokens_total", ""),
		Cached:     theirs.sum("vllm:prompt_tokens_cached_total", ""),
		Completion: theirs.sum("vllm:generation_tokens_total", ""),
	}
	t.Logf("the client counts %+v", client)
	if gateway != client || engine != client {
		t.Errorf("the client counts %+v, the gateway %+v, the engine %+v", client, gateway, engine)
	}
	if client.Requests != conversations*turns || client.Completion != client.Requests*answerTokens || client.Cached == 0 {
		t.Errorf("the client counts %+v, want %d requests of %d tokens each, and cached ones", client, conversations*turns, answerTokens)
	}
	if n := len(b.Conversations(t)); n != conversations {
		t.Errorf("the gateway saw %d conversations, want %d", n, conversations)
	}
	if m := b.Model(t, model); m.InFlight != 0 || m.Sticky == nil || *m.Sticky != 100 {
		t.Errorf("in flight %d, sticky %v; want 0 and 100 %%", m.InFlight, m.Sticky)
	}
}

// page is a metrics page.
type page struct {
	t    *testing.T
	text string
}

func scrape(t *testing.T, url string) page {
	t.Helper()
	res, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s/metrics: %s, %v", url, res.Status, err)
	}
	return page{t, string(text)}
}

// sum adds a counter's series that have a label. A counter that is not there is
// an error: its sum would look like none.
func (p page) sum(counter, label string) (sum int64) {
	p.t.Helper()
	found := false
	for line := range strings.Lines(p.text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		name, labels, _ := strings.Cut(series, "{")
		if name != counter || !strings.Contains(labels, label) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			p.t.Fatalf("%s: %v", line, err)
		}
		sum, found = sum+int64(n), true
	}
	if !found {
		p.t.Fatalf("no %s{%s}", counter, label)
	}
	return sum
}

// run runs a load client to its end.
func run(t *testing.T, command string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // on a busy machine their start alone takes minutes
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv("LOADCLIENTS_BIN"), command), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TERM=dumb")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("the client's report: %v", err)
	}
}

// writeTokenizer makes a folder with a tokenizer whose tokens are bytes, so that
// no client asks a hub for one.
func writeTokenizer(t *testing.T) string {
	t.Helper()
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	dir := t.TempDir()
	for name, content := range map[string]any{
		"tokenizer.json": map[string]any{
			"version": "1.0", "added_tokens": []any{}, "pre_tokenizer": byteLevel, "decoder": byteLevel,
			"normalizer": nil, "post_processor": nil, "truncation": nil, "padding": nil,
			"model": map[string]any{"type": "BPE", "vocab": wardentest.ByteVocabulary(), "merges": []string{}},
		},
		"tokenizer_config.json": map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 100_000},
	} {
		text, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
