package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Memory of bodies goes from request to request; none may see another's bytes.
func TestBodiesAreNotMixedUp(t *testing.T) {
	g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Write(b)
	}))
	g.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 8
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 20 {
				mark := fmt.Sprintf("%d-%d ", i, k)
				body := fmt.Sprintf(`{"model":"org/Served","input":%q}`, strings.Repeat(mark, 1+(i*977+k*4001)%9000))
				got := g.post(t, "/v1/embeddings", body)
				if got.body != body {
					t.Errorf("%s: %d bytes came back, %d were sent", mark, len(got.body), len(body))
				}
			}
		})
	}
	wg.Wait()
	if n := g.bodies.lent.Load(); n != 0 {
		t.Errorf("%d bytes are lent after the end", n)
	}
}

func TestBodiesBeyondTheTotalAreRefused(t *testing.T) {
	arrived, next := make(chan bool), make(chan bool)
	g := newGateway(t, Limits{MaxBuffered: 1 << 20}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		arrived <- true
		<-next
		answered(200, chatAnswer)(w, r)
	}))
	large := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 600<<10) + `"}]}`
	first := make(chan answer)
	go func() { first <- g.post(t, "/v1/chat/completions", large) }()
	<-arrived
	for range 3 {
		got := g.post(t, "/v1/chat/completions", large)
		if got.status != 503 || got.header.Get(headerError) != "overloaded" || got.header.Get("Retry-After") != "2" {
			t.Errorf("got %d %v %s", got.status, got.header, got.body)
		}
		if rec := g.record(t); rec.Outcome != GatewayError || rec.Attempts != 0 {
			t.Errorf("record: %+v", rec)
		}
	}
	close(next)
	if got := <-first; got.status != 200 {
		t.Errorf("the first: %d %s", got.status, got.body)
	}
	go func() { <-arrived }()
	if got := g.post(t, "/v1/chat/completions", large); got.status != 200 {
		t.Errorf("after the first: %d %s", got.status, got.body)
	}
}

// What is lent has room, keeps the bytes, stays within the total, and adds up.
func TestLentMemoryAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := bodies{limit: 4 << 20}
		held := make([][]byte, 3)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
			if rapid.Bool().Draw(t, "give back") {
				b.giveBack(held[i])
				held[i] = nil
			} else {
				size := rapid.Int64Range(int64(len(held[i])), 3<<20).Draw(t, "size")
				next, err := b.lend(held[i], size)
				if err == nil && int64(cap(next)) < size || string(next) != string(held[i]) {
					t.Fatalf("asked for %d: %d with room for %d, %v", size, len(next), cap(next), err)
				}
				held[i] = append(next[:0], strings.Repeat(string(rune('a'+i)), rapid.IntRange(0, cap(next)).Draw(t, "fill"))...)
			}
			sum := 0
			for k, h := range held {
				sum += cap(h)
				if strings.Trim(string(h), string(rune('a'+k))) != "" {
					t.Fatalf("buffer %d was overwritten", k)
				}
			}
			if n := b.lent.Load(); n != int64(sum) || n > b.limit {
				t.Fatalf("%d lent, %d held, at most %d", n, sum, b.limit)
			}
		}
	})
}
