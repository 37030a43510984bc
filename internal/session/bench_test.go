package session

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"lmwarden/internal/llmapi"
)

const million = 1_000_000

// A turn of Claude Code with 200 messages of history, and one of a client that
// sends no ids, of any of a million conversations.
func BenchmarkTurn(b *testing.B) {
	tab := filled(b, million, 1)
	words := []string{"u:"}
	for i := range 100 {
		words = append(words, fmt.Sprint("a:", i), fmt.Sprint("u:", i))
	}
	f := chat(words...)
	for name, agent := range map[string]string{
		"with id": "claude-cli/2.1.332 (external, cli)",
		"no id":   "QwenCode/0.24.4 (linux; x64)",
	} {
		headers := make([]http.Header, 10_007) // spread over the table
		for i := range headers {
			headers[i] = head("User-Agent", agent)
			if name == "with id" {
				headers[i].Set("X-Session-Id", fmt.Sprint("session-", i*99))
			}
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				k := i * 31 % len(headers)
				now := start.Add(time.Duration(i) * time.Microsecond)
				f.Messages[0].Hash = uint64(k * 99)
				f.Messages[len(f.Messages)-1].Hash = uint64(i) // another question each time
				id := tab.Identify(now, Request{Model: "qwen3-4b-dp4", Header: headers[k], Facts: f})
				tab.Begin(now, id, "qwen3-4b-dp4").End(now, llmapi.Usage{})
			}
		})
	}
}

// A first turn in a full table: one row comes, one goes.
func BenchmarkNewConversation(b *testing.B) {
	tab := filled(b, 100_000, 8)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		f := chat("u:hello")
		f.Messages[0].Hash, f.OpenerHash = uint64(i), uint64(i)
		tab.Identify(start, Request{Model: "m", Facts: f})
	}
}

// filled is a full table of n conversations with so many turns each.
func filled(b testing.TB, n, turns int) *Table {
	tab := table(b, Options{MaxConversations: n})
	words := []string{"u:"}
	for i := 1; i < turns; i++ {
		words = append(words, fmt.Sprint("a:", i), fmt.Sprint("u:", i))
	}
	f := chat(words...)
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
	tab := filled(b, 100_000, 8)
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
	tab := filled(b, 100_000, 8)
	for b.Loop() {
		if _, _, err := tab.Conversations(Query{}); err != nil {
			b.Fatal(err)
		}
	}
}

type sized struct{ n int64 }

func (s *sized) Write(b []byte) (int, error) { s.n += int64(len(b)); return len(b), nil }

func TestAConversationTakesAtMost400Bytes(t *testing.T) {
	const n = 40_000 // where the maps have just grown
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	tab := filled(t, n, 10)
	if each := (heap() - before) / n; each > 400 {
		t.Errorf("%d bytes per conversation", each)
	} else {
		t.Logf("%d bytes per conversation", each)
	}
	runtime.KeepAlive(tab)
}
