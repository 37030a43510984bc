package top

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The library lets a timer run out that a program which ended had set.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("charm.land/bubbletea/v2.Tick.func1"),
		goleak.IgnoreAnyFunction("charm.land/bubbletea/v2.(*Program).execBatchMsg"))
}

var noon = time.Date(2026, 10, 4, 12, 0, 0, 0, time.UTC)

// fake is a gateway that writes down what it is asked.
type fake struct {
	data   Snapshot
	err    error // of reading
	refuse error // of acting
	told   []string
}

func (f *fake) Read(_ context.Context, q Query) (Snapshot, error) {
	f.told = append(f.told, fmt.Sprintf("read %+v", q))
	s := f.data
	if !q.Conversations {
		s.Conversations = nil
	}
	return s, f.err
}

func (f *fake) Drain(_ context.Context, model string, replica int) error {
	f.told = append(f.told, fmt.Sprintf("drain %s %d", model, replica))
	return f.refuse
}

func (f *fake) Resume(_ context.Context, model string, replica int) error {
	f.told = append(f.told, fmt.Sprintf("resume %s %d", model, replica))
	return f.refuse
}

// some is a gateway's answer with two models, in the API's own form.
func some(t testing.TB) Snapshot {
	t.Helper()
	model := func(name string) string {
		replica := `{"index": %d, "url": "http://gpu-1:8000", "state": "%s", "in_flight": %d, "sticky": 1038, "spilled_in": 4, "moved_in": 2,
			"client_pinned": 0, "running": %s, "waiting": %s, "kv_used_percent": %s, "prefix_hit_percent": 82.2, "live_conversations": 3, "scrape_age_ms": %d,
			"cached_tokens_estimate": 41000, "kv_events": %s}`
		return fmt.Sprintf(`{"name": %q, "affinity": "on", "policy": "affinity", "spill_threshold": {"value": 8, "auto": true},
			"sticky_percent": 98.7, "in_flight": 5, "queue": {"waiting": 0}, "conversations": {"live": 12, "known": 40},
			"working_set": {"tokens": 118000, "capacity_tokens": 160000, "conversations_that_fit": 16}, "replicas": [%s]}`, name,
			strings.Join([]string{
				fmt.Sprintf(replica, 0, "ready", 2, "2", "0", "61.2", 412, `{"cached_tokens": 39488}`),
				fmt.Sprintf(replica, 1, "draining", 3, "3", "1", "97.5", 412, `{"cached_tokens": null}`),
				fmt.Sprintf(replica, 2, "down", 0, "null", "null", "null", 14000, "null"),
			}, ","))
	}
	var s Snapshot
	for into, text := range map[any]string{
		&s.Overview: `{"state": "6 replicas: 2 draining, 2 down, 2 ready.", "version": "1.2", "warnings": ["The client listener is open."],
			"tiles": {"requests": {"value": 51.1}, "output": {"value": 144.06}, "cached": {"value": 44.17}, "ttfb": {"value": null}},
			"events": [{"time": "2026-10-04T11:58:00Z", "model": "qwen", "level": "warn", "text": "Replica 1 drains."}]}`,
		&s.Models: "[" + model("qwen") + "," + model("org/llama") + "]",
		&s.Moves:  `[{"from": 1, "to": 2, "reason": "spilled", "why": "home full", "requests": 5}]`,
	} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		home, prompt, cached, client := i%3, int64(12000+i), int64(6000), "claude-code"
		s.Conversations = append(s.Conversations, Conversation{
			ID: fmt.Sprintf("c-%02d", i), Model: []string{"qwen", "org/llama"}[i%2], Home: &home, Turns: int64(i), PromptTokens: &prompt, CachedTokens: &cached,
			Source: "x-claude-code-session-id", Client: &client, LastSeen: noon.Add(-time.Duration(i) * time.Minute), InFlight: i % 2,
		})
	}
	s.More = true
	return s
}

// user is somebody before a screen.
type user struct {
	t testing.TB
	screen
	quit bool
}

// sit begins to look at a gateway.
func sit(t testing.TB, g *fake) *user {
	t.Helper()
	u := &user{t: t, screen: screen{gateway: g, address: "http://127.0.0.1:8101", width: 80, height: 24}}
	u.see(tick(noon))
	return u
}

// see gives the screen a message and carries out what it asks for, but for the
// waiting for the next tick.
func (u *user) see(m tea.Msg) {
	u.t.Helper()
	next, cmd := u.Update(m)
	u.screen = next.(screen)
	u.do(cmd)
}

func (u *user) do(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	done := make(chan tea.Msg, 1)
	go func() { done <- cmd() }()
	select {
	case m := <-done:
		switch m := m.(type) {
		case tea.BatchMsg:
			for _, one := range m[1:] { // the first is the next tick
				u.do(one)
			}
		case tea.QuitMsg:
			u.quit = true
		case read:
			m.at = u.now
			u.see(m)
		case nil:
		default:
			u.see(m)
		}
	case <-time.After(5 * time.Second):
		u.t.Fatal("a command did not end")
	}
}

// press gives the screen keys: names as down, or letters.
func (u *user) press(keys ...string) {
	u.t.Helper()
	codes := map[string]rune{
		"down": tea.KeyDown, "up": tea.KeyUp, "left": tea.KeyLeft, "right": tea.KeyRight, "tab": tea.KeyTab,
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "backspace": tea.KeyBackspace, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp,
	}
	for _, k := range keys {
		if code, ok := codes[k]; ok {
			u.see(tea.KeyPressMsg{Code: code})
			continue
		}
		u.see(tea.KeyPressMsg{Code: []rune(k)[0], Text: k})
	}
}

// text is the screen without styles.
func (u *user) text() string { return strings.Join(u.lines(), "\n") }

func (u *user) shows(parts ...string) {
	u.t.Helper()
	for _, p := range parts {
		if !strings.Contains(u.text(), p) {
			u.t.Errorf("the screen does not show %q:\n%s", p, u.text())
		}
	}
}

func (u *user) hides(parts ...string) {
	u.t.Helper()
	for _, p := range parts {
		if strings.Contains(u.text(), p) {
			u.t.Errorf("the screen shows %q:\n%s", p, u.text())
		}
	}
}

// acts are the actions that the gateway was told.
func (f *fake) acts() []string {
	return slices.DeleteFunc(slices.Clone(f.told), func(s string) bool { return strings.HasPrefix(s, "read") })
}
