package vllm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// fromCache is how many tokens of a prompt vLLM takes from its cache when common
// of them were computed before: whole blocks, and never all, since the last token
// has to be computed for the answer to begin.
func fromCache(common, prompt int) int { return min(common, prompt-1) / blockSize * blockSize }

// The turns of a conversation cost what the block arithmetic says, and the gateway
// shows the engine's own numbers.
func TestCachedTokens(t *testing.T) {
	e := running(t)
	for _, r := range []route{{chatPath, false}, {chatPath, true}, {messagesPath, false}, {messagesPath, true}} {
		t.Run(strings.TrimPrefix(r.String(), "/v1/"), func(t *testing.T) {
			e.emptyCache(t)
			g := warden.Gateway(t, []string{e.url})
			texts := []string{strings.Repeat("The system speaks. ", 10)}
			common := 0
			for turn := range 8 {
				messages := talk(texts...)
				want := opening
				for _, m := range messages {
					want += rendered(m.Role, m.Content)
				}
				// With an answer of one token, nothing but the prompt is computed.
				tokens, got := ask(t, g.URL, r, r.body(messages, 1), session("one")).prompt()
				if tokens != want {
					t.Fatalf("turn %d: the engine counts %d prompt tokens, the template makes %d", turn, tokens, want)
				}
				if want := fromCache(common, tokens); got != want {
					t.Errorf("turn %d: %d of %d tokens were cached, want %d", turn, got, tokens, want)
				}
				expectShown(t, g, turn+1, tokens, got)
				common = tokens
				texts = append(texts, "an answer", strings.Repeat("More. ", turn+3))
			}
		})
	}
}

// What was generated is in the cache as well, but for the last token, which
// nothing was computed from.
func TestGeneratedTokensAreCached(t *testing.T) {
	e := running(t)
	e.emptyCache(t)
	g := warden.Gateway(t, []string{e.url})
	r := route{path: completionsPath}
	var prompt []int
	common := 0
	for turn, add := range []int{70, 41, 1, 64, 33} {
		for i := range add {
			prompt = append(prompt, (turn*71+i)%250)
		}
		body := r.body(nil, 40)
		body["prompt"], body["return_token_ids"] = prompt, true
		a := ask(t, g.URL, r, body, session("one"))
		tokens, got := a.prompt()
		if want := fromCache(common, len(prompt)); tokens != len(prompt) || got != want {
			t.Errorf("turn %d: %d of %d tokens were cached, want %d of %d", turn, got, tokens, want, len(prompt))
		}
		expectShown(t, g, turn+1, tokens, got)
		ids := a.events[0].Choices[0].TokenIDs
		if len(ids) != 40 {
			t.Fatalf("turn %d: %d token ids in the answer, want 40", turn, len(ids))
		}
		prompt = append(prompt, ids...)
		common = len(prompt) - 1
	}
}

// expectShown asserts what the gateway knows of its only conversation.
func expectShown(t *testing.T, g *wardentest.Gateway, turns, tokens, cached int) {
	t.Helper()
	wardentest.WaitFor(t, 2*time.Second, "the conversation's numbers", func() error {
		all := g.Conversations(t)
		if len(all) != 1 {
			return fmt.Errorf("%d conversations, want 1", len(all))
		}
		if c := all[0]; c.Turns != turns || c.PromptTokens != int64(tokens) || c.CachedTokens != int64(cached) {
			return fmt.Errorf("%d of %d tokens cached in %d turns, want %d of %d in %d", c.CachedTokens, c.PromptTokens, c.Turns, cached, tokens, turns)
		}
		return nil
	})
}
