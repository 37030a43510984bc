package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The demo's agents do what the published measurement did: a system prompt that
// all share, a first message of their own, then short turns in a closed loop.
// Sizes are in tokens of the simulator's four bytes.
const (
	agentSystemTokens = 3500
	agentFirstTokens  = 7350
	agentTurnTokens   = 400
	agentOutputTokens = 256
	agentTurns        = 6
	agentTokenBytes   = 4
)

// turn is what an agent measured of one answer.
type turn struct {
	ttfb             time.Duration
	prompt, cached   int64
	completion       int64
	completedSession bool
	failed           error
}

// agents runs n closed-loop agents against the gateway at url until ctx ends,
// and hands each finished turn to done, which may be called from all of them at
// once. Equal seeds make equal conversations.
func agents(ctx context.Context, client *http.Client, url string, n int, seed uint64, done func(turn)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil {
				converse(ctx, client, url, rng, done)
			}
		})
	}
	all.Wait()
}

type agentMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// converse is one session of an agent, as Claude Code sends it.
func converse(ctx context.Context, client *http.Client, url string, rng *rand.Rand, done func(turn)) {
	session := fmt.Sprintf("%08x-0000-4000-8000-%012x", rng.Uint32(), rng.Uint64()>>16)
	history := []agentMessage{{"user", filler(rng, agentFirstTokens)}}
	for n := 1; n <= agentTurns; n++ {
		answer, t := ask(ctx, client, url, session, history)
		if ctx.Err() != nil {
			return // cut by the end of the phase, not a measurement
		}
		t.completedSession = n == agentTurns && t.failed == nil
		done(t)
		if t.failed != nil {
			select { // a gateway that is stopping must not be hammered
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return
		}
		history = append(history, agentMessage{"assistant", answer}, agentMessage{"user", filler(rng, agentTurnTokens)})
	}
}

// ask sends one turn and reads its stream.
func ask(ctx context.Context, client *http.Client, url, session string, history []agentMessage) (answer string, t turn) {
	body, err := json.Marshal(map[string]any{
		"model": "claude-demo", "max_tokens": agentOutputTokens, "stream": true,
		"system": sharedSystemPrompt(), "messages": history,
		"tools": []any{map[string]any{"name": "Bash", "input_schema": map[string]any{"type": "object"}}},
	})
	if err != nil {
		return "", turn{failed: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/messages", bytes.NewReader(body))
	if err != nil {
		return "", turn{failed: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	req.Header.Set("X-Claude-Code-Session-Id", session)
	req.Header.Set("User-Agent", "warden-demo/1")
	start := time.Now()
	res, err := client.Do(req)
	if err != nil {
		return "", turn{failed: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return "", turn{failed: fmt.Errorf("status %d: %s", res.StatusCode, text)}
	}

	var text strings.Builder
	var ended bool
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var event struct {
			Type  string
			Delta struct{ Text string }
			Usage struct {
				Input    int64 `json:"input_tokens"`
				Read     int64 `json:"cache_read_input_tokens"`
				Creation int64 `json:"cache_creation_input_tokens"`
				Output   int64 `json:"output_tokens"`
			}
			Error struct{ Message string }
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return "", turn{failed: fmt.Errorf("event %q: %w", data, err)}
		}
		switch event.Type {
		case "content_block_delta":
			if t.ttfb == 0 {
				t.ttfb = time.Since(start)
			}
			text.WriteString(event.Delta.Text)
		case "message_delta":
			u := event.Usage
			t.prompt, t.cached, t.completion = u.Input+u.Read+u.Creation, u.Read, u.Output
		case "message_stop":
			ended = true
		case "error":
			return "", turn{failed: fmt.Errorf("in the stream: %s", event.Error.Message)}
		}
	}
	if err := lines.Err(); err != nil {
		return "", turn{failed: err}
	}
	if !ended {
		return "", turn{failed: io.ErrUnexpectedEOF}
	}
	return text.String(), t
}

// sharedSystemPrompt is the same for every agent.
var sharedSystemPrompt = sync.OnceValue(func() string {
	return filler(rand.New(rand.NewPCG(1, 1)), agentSystemTokens)
})

// filler is text of about n tokens that no other call repeats.
func filler(rng *rand.Rand, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	var b strings.Builder
	b.Grow(n * agentTokenBytes)
	for range n {
		for range agentTokenBytes - 1 {
			b.WriteByte(letters[rng.IntN(len(letters))])
		}
		b.WriteByte(' ')
	}
	return b.String()
}
