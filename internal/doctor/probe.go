package doctor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/llmapi"
)

// seen is what an engine did when it was asked.
type seen struct {
	chat, tools, messages, responses reply
	// cached is what the second of two equal requests told of the cache.
	cached llmapi.Usage
	// hostMemory is what this machine has to spare in bytes, 0 when the engine is
	// on another or it is not known.
	hostMemory int64
	kv         kvSeen
}

// reply is the end of one request: a status, or an error.
type reply struct {
	status int
	body   []byte
	err    error
}

func (r reply) ok() bool { return r.err == nil && r.status == http.StatusOK }

// says is the engine's own message, shortened.
func (r reply) says() string {
	if r.err != nil {
		return r.err.Error()
	}
	var e struct {
		Message string
		Error   struct{ Message string }
	}
	_ = json.Unmarshal(r.body, &e)
	text := strings.TrimSpace(e.Error.Message + e.Message)
	if len(text) > 160 {
		text = text[:160] + "…"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.status, text))
}

// probe asks one engine for a few tokens.
type probe struct {
	client *http.Client
	base   *url.URL
	key    string
	info   engine.Info
	ears   *kvEars // nil when nobody listens to its KV events
}

// patience is how long one small answer may take: an engine that is busy serves
// it after what is queued.
const patience = time.Minute

func (p probe) ask(ctx context.Context) seen {
	var s seen
	model, _ := json.Marshal(p.info.Models[0].ID)
	// Text that no cache has, a few hundred tokens long.
	text := "Tell me which word comes next. " + strings.Repeat(rand.Text()+" ", 40)
	question, _ := json.Marshal(text)
	chat := fmt.Sprintf(`{"model":%s,"max_tokens":1,"messages":[{"role":"user","content":%s}]}`, model, question)
	s.chat = p.post(ctx, "/v1/chat/completions", chat)
	if p.ears != nil {
		s.kv = p.ears.hear(ctx, leaves(llmapi.ReadAnswer(llmapi.RouteChat, s.chat.body).Usage, p.info.BlockSize))
	}
	if s.chat.ok() {
		if again := p.post(ctx, "/v1/chat/completions", chat); again.ok() {
			s.cached = llmapi.ReadAnswer(llmapi.RouteChat, again.body).Usage
		}
	}
	s.tools = p.post(ctx, "/v1/chat/completions", fmt.Sprintf(`{"model":%s,"max_tokens":1,"messages":[{"role":"user","content":"Hello"}],`+
		`"tools":[{"type":"function","function":{"name":"look","description":"Looks.","parameters":{"type":"object","properties":{}}}}],"tool_choice":"auto"}`, model))
	s.messages = p.post(ctx, "/v1/messages", fmt.Sprintf(`{"model":%s,"max_tokens":1,"messages":[{"role":"user","content":"Hello"}]}`, model))
	s.responses = p.post(ctx, "/v1/responses", fmt.Sprintf(`{"model":%s,"max_output_tokens":1,"store":false,"input":"Hello"}`, model))
	return s
}

func (p probe) post(ctx context.Context, path, body string) reply {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base.JoinPath(path).String(), strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	if p.key != "" {
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	if p.info.Ranks > 1 {
		// Both of two equal requests must meet the same cache.
		req.Header.Set("X-Data-Parallel-Rank", "0")
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return reply{status: resp.StatusCode, body: text, err: err}
}

// hostMemory is what the kernel says is available, when the engine is on this
// machine.
func hostMemory(base *url.URL) int64 {
	host := base.Hostname()
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return 0
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kB, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				return kB << 10
			}
		}
	}
	return 0
}
