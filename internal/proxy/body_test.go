package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
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

// What is lent has room, keeps the bytes, wastes little, stays within the total, and
// adds up.
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
				if err == nil && int64(cap(next)) > max(size+size/4, 1<<leastLent) {
					t.Fatalf("asked for %d, got room for %d", size, cap(next))
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

// send writes a raw request and returns the answer to it.
func send(t *testing.T, g *gateway, head string, body func(io.Writer)) *http.Response {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	io.WriteString(c, head+"\r\n\r\n")
	if body != nil {
		go body(c) // ends with the connection
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// spaces is an endless run of white space.
type spaces struct{}

var blank = strings.Repeat(" ", 64<<10)

func (spaces) Read(b []byte) (int, error) { return copy(b, blank), nil }

// sized is a request whose body has exactly so many bytes.
func sized(t *testing.T, g *gateway, size int64, framing string) *http.Request {
	t.Helper()
	const open, end = `{"model":"org/Served"`, "}"
	body := io.MultiReader(strings.NewReader(open), io.LimitReader(spaces{}, size-int64(len(open+end))), strings.NewReader(end))
	req, err := http.NewRequest("POST", g.url+"/v1/messages", io.NopCloser(body))
	if err != nil {
		t.Fatal(err)
	}
	if framing != "chunked" {
		req.ContentLength = size
	}
	if framing == "expect" {
		req.Header.Set("Expect", "100-continue")
	}
	return req
}

func TestBodiesUpToTheLimitPassAndLargerOnesAreRefused(t *testing.T) {
	got := make(chan int64, 1)
	e := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got <- n
		answered(200, messagesAnswer)(w, r)
	})
	for _, limit := range []int64{32 << 10, 128 << 10, 2 << 20} {
		g := newGateway(t, Limits{MaxBody: limit}, e)
		for _, size := range []int64{limit - 1, limit, limit + 1, limit + 100<<10} {
			for _, framing := range []string{"length", "chunked", "expect"} {
				t.Run(fmt.Sprintf("%d/%d/%s", limit, size, framing), func(t *testing.T) {
					res := g.do(t, sized(t, g, size, framing))
					if size <= limit {
						if res.status != 200 || <-got != size {
							t.Errorf("got %d %s", res.status, res.body)
						}
						return
					}
					if res.status != 413 || res.header.Get(headerError) != "too-large" || !strings.Contains(res.body, fmt.Sprint(limit)) || !strings.HasPrefix(res.body, `{"type":"error"`) {
						t.Errorf("got %d %s", res.status, res.body)
					}
				})
			}
		}
	}
}

func TestTheDefaultLimitIs64MiB(t *testing.T) {
	g := newGateway(t, Limits{}, refusing(t))
	for _, framing := range []string{"length", "chunked"} {
		if res := g.do(t, sized(t, g, 64<<20+1, framing)); res.status != 413 || !strings.Contains(res.body, "67108864") {
			t.Errorf("%s: %d %s", framing, res.status, res.body)
		}
	}
}

// A client that reads nothing before it has sent everything gets its answer too.
func TestARefusedBodyMaySendItsRest(t *testing.T) {
	const limit, size = 16 << 20, 24 << 20
	g := newGateway(t, Limits{MaxBody: limit}, refusing(t))
	for _, head := range []string{
		fmt.Sprintf("Content-Length: %d", size),
		fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue", size),
		"Content-Encoding: gzip\r\nContent-Length: 12000000",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"+head+"\r\n\r\n")
		if _, err := io.CopyN(c, spaces{}, 12_000_000); err != nil {
			t.Fatalf("%s: %v", head, err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", head, err)
		}
		res.Body.Close()
		if res.StatusCode/100 != 4 {
			t.Errorf("%s: %d", head, res.StatusCode)
		}
	}
}

func TestATooLargeBodyIsNotAskedFor(t *testing.T) {
	g := newGateway(t, Limits{MaxBody: 1000}, refusing(t))
	res := send(t, g, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 1001\r\nExpect: 100-continue", nil)
	if res.StatusCode != 413 {
		t.Errorf("got %d", res.StatusCode)
	}
	// One that is declared enormous is not read to its end either.
	res = send(t, g, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 999999999999", nil)
	if res.StatusCode != 413 {
		t.Errorf("got %d", res.StatusCode)
	}
}
