package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// box is a gateway in front of a simulated engine of four ranks, with agents that
// talk to it.
type box struct {
	*wardentest.Gateway
	engine string
	*load
}

const model = "sim"

func newBox(t *testing.T, agents int, args ...string) *box {
	t.Helper()
	engine := warden.Sim(t, 1)[0]
	g := warden.Gateway(t, []string{engine}, args...)
	return &box{Gateway: g, engine: engine, load: newLoad(t, g.URL, agents)}
}

// get decodes an answer of the admin API, or of the engine.
func get[T any](t *testing.T, url string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text(t, url)), &v); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return v
}

func text(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v: %.300s", url, res.Status, err, body)
	}
	return string(body)
}

// load is a number of agents in a closed loop: conversations of a few turns, each
// with the history before it.
type load struct {
	t      *testing.T
	url    string
	turns  atomic.Int64 // that were answered
	paused sync.RWMutex // held to read during a turn, to write during a pause
}

const turnsOfConversation = 5

func newLoad(t *testing.T, url string, agents int) *load {
	l := &load{t: t, url: url}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for a := range agents {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				history := []message{{"system", strings.Repeat("You help. ", 200)}}
				for turn := range turnsOfConversation {
					history = append(history, message{"user", fmt.Sprintf("agent %d, conversation %d, turn %d: %s", a, n, turn, strings.Repeat("look at this ", 30))})
					answer, err := l.turn(ctx, fmt.Sprintf("agent-%d-%d", a, n), history)
					if ctx.Err() != nil {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					history = append(history, message{"assistant", answer})
					select {
					case <-time.After(150 * time.Millisecond): // they think
					case <-ctx.Done():
					}
				}
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return l
}

// pause waits until no turn is open; none begins before the returned function is
// called.
func (l *load) pause() (resume func()) {
	l.paused.Lock()
	return l.paused.Unlock
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (l *load) turn(ctx context.Context, session string, history []message) (answer string, err error) {
	l.paused.RLock()
	defer l.paused.RUnlock()
	res, err := l.ask(ctx, session, map[string]any{"model": model, "max_tokens": 12, "messages": history})
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var body struct {
		Choices []struct{ Message message }
	}
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil || len(body.Choices) != 1 {
		return "", fmt.Errorf("a turn of %s: %s, %v", session, res.Status, err)
	}
	l.turns.Add(1)
	return body.Choices[0].Message.Content, nil
}

// ask sends one request.
func (l *load) ask(ctx context.Context, session string, body map[string]any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-Id", session)
	return http.DefaultClient.Do(req)
}

// hold opens streams that go on until the returned function is called.
func (l *load) hold(streams int) (release func()) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range streams {
		res, err := l.ask(ctx, fmt.Sprint("long-", i), map[string]any{
			"model": model, "stream": true, "max_tokens": 200_000, "messages": []message{{"user", "go on [[tokens 200000]]"}},
		})
		if err != nil {
			l.t.Fatal(err)
		}
		all.Go(func() {
			_, _ = io.Copy(io.Discard, res.Body) // ends with ctx
			res.Body.Close()
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// simState is what the simulation knows of itself.
type simState struct {
	Ranks []struct{ Open, Served int }
}

func (b *box) sim(t *testing.T) simState {
	t.Helper()
	return get[simState](t, b.engine+"/sim/state")
}
