package session

import (
	"fmt"
	"testing"
	"time"

	"lmwarden/internal/llmapi"
)

// A turn of Claude Code with 200 messages of history, and one of a client that
// sends no ids.
func BenchmarkTurn(b *testing.B) {
	headers := map[string][]string{
		"with id": {"X-Claude-Code-Session-Id", uuid1, "User-Agent", "claude-cli/2.1.332 (external, cli)"},
		"no id":   {"User-Agent", "QwenCode/0.24.4 (linux; x64)"},
	}
	for name, pairs := range headers {
		b.Run(name, func(b *testing.B) {
			tab := table(b, Options{})
			words := []string{"u:hello"}
			for i := range 100 {
				words = append(words, fmt.Sprint("a:", i), fmt.Sprint("u:", i))
			}
			h, f := head(pairs...), chat(words...)
			b.ReportAllocs()
			for i := range b.N {
				now := start.Add(time.Duration(i) * time.Millisecond)
				f.Messages[len(f.Messages)-1].Hash = uint64(i) // another question each time
				id := tab.Identify(now, Request{Model: "m", Header: h, Facts: f})
				tab.Begin(now, id, "m").End(now, llmapi.Usage{})
			}
		})
	}
}

// A first turn in a full table: one row comes, one goes.
func BenchmarkNewConversation(b *testing.B) {
	tab := filled(b, 100_000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		f := chat("u:hello")
		f.Messages[0].Hash, f.OpenerHash = uint64(i), uint64(i)
		tab.Identify(start, Request{Model: "m", Facts: f})
	}
}

// filled is a full table of n conversations with 8 turns each.
func filled(b *testing.B, n int) *Table {
	tab := table(b, Options{MaxConversations: n})
	f := chat("u:", "a:1", "u:1", "a:2", "u:2", "a:3", "u:3", "a:4", "u:4", "a:5", "u:5", "a:6", "u:6", "a:7", "u:7")
	for i := range n {
		g := *f
		g.Messages = append([]llmapi.Message(nil), f.Messages...)
		g.Messages[0].Hash = uint64(i)
		h := head("X-Session-Id", fmt.Sprint("session-", i))
		for last := 1; last <= len(f.Messages); last += 2 {
			g.Messages = g.Messages[:last:cap(g.Messages)]
			tab.Identify(start, Request{Model: "qwen3-4b-dp4", Header: h, Facts: &g})
		}
	}
	return tab
}

func BenchmarkSave100k(b *testing.B) {
	tab := filled(b, 100_000)
	var n int64
	for b.Loop() {
		w := &sized{}
		if err := tab.Save(w, nil); err != nil {
			b.Fatal(err)
		}
		n = w.n
	}
	b.ReportMetric(float64(n)/1e6, "MB/file")
}

func BenchmarkList100k(b *testing.B) {
	tab := filled(b, 100_000)
	for b.Loop() {
		if _, _, err := tab.Conversations(Query{}); err != nil {
			b.Fatal(err)
		}
	}
}

type sized struct{ n int64 }

func (s *sized) Write(b []byte) (int, error) { s.n += int64(len(b)); return len(b), nil }
