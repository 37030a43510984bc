package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lmwarden/internal/config"
)

// said is the text that a request gets: nothing but its body decides it.
func said(body []byte) (parts []string) {
	letters := []rune("aé\n\"\\{}[]:, 日\U0001f600z")
	sum := sha256.Sum256(body)
	r := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])))
	for range 1 + r.IntN(30) {
		word := make([]rune, r.IntN(60))
		for i := range word {
			word[i] = letters[r.IntN(len(letters))]
		}
		parts = append(parts, string(word))
	}
	return parts
}

// Requests of all dialects at once, half of them streamed, over engines that cut
// their bytes anywhere: what each client gets is what its engine sent.
func TestEveryAnswerUnderLoadIsTheSameByteForByte(t *testing.T) {
	t.Parallel()
	requests := 5000
	if raced {
		requests = 1000
	}
	expected := func(d dialect, body string, stream bool) string {
		if stream {
			return strings.Join(d.events(said([]byte(body))...), "")
		}
		return d.whole(strings.Join(said([]byte(body)), ""))
	}
	// The gateway asks for the usage of streams if the client does not, and the
	// answer depends on the body as the engine gets it.
	const more = `,"stream_options":{"include_usage":true}`
	list := engines(t, 4, func(c *call) {
		for _, d := range dialects {
			if d.path != c.path() {
				continue
			}
			stream := isStream(c.body)
			text := expected(d, string(c.body), stream)
			if !stream {
				c.answer(200, text)
				return
			}
			c.begin()
			for r := rand.New(rand.NewPCG(uint64(len(text)), 7)); text != ""; {
				n := min(len(text), 1+r.IntN(2000))
				c.chunk(text[:n])
				text = text[n:]
			}
			c.end()
		}
	})
	g := start(t, nil, list...)
	var next atomic.Int64
	var clients sync.WaitGroup
	for range 64 {
		clients.Go(func() {
			for i := int(next.Add(1)); i <= requests; i = int(next.Add(1)) {
				d, stream := dialects[i%4], i/4%2 == 0
				body := d.request(fmt.Sprintf("request %d", i), stream, more)
				a, err := g.ask(t.Context(), d.path, body, "X-Warden-Session", fmt.Sprint(i%40))
				if want := expected(d, body, stream); err != nil || a.status != 200 || a.err != nil || a.body != want {
					t.Errorf("request %d, %s, stream %v: %v %d %v: got %d bytes, want %d: %.300q", i, d.name, stream, err, a.status, a.err, len(a.body), len(want), a.body)
				}
			}
		})
	}
	clients.Wait()
	g.settled(map[string]int{"ok": requests})
}

// zeros is a body of any size in JSON: a request whose one message is long.
func zeros(size int) io.Reader {
	const head, tail = `{"model":"tiny","messages":[{"role":"user","content":"`, `"}]}`
	return io.MultiReader(strings.NewReader(head), io.LimitReader(fill('0'), int64(size-len(head)-len(tail))), strings.NewReader(tail))
}

type fill byte

func (f fill) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(f)
	}
	return len(b), nil
}

// Limits at which others break; ours is the only one that shows.
func TestBodiesOfEverySizeUpToTheLimitPass(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1, reply)
	g := start(t, nil, e)
	sizes := []int{32<<10 - 1, 32 << 10, 32<<10 + 1, 128<<10 - 1, 128 << 10, 128<<10 + 1, 2<<20 - 1, 2 << 20, 2<<20 + 1, 16<<20 - 1, 16 << 20, 16<<20 + 1, 64 << 20}
	if raced {
		sizes = sizes[:6]
	}
	n, refused := 0, 0
	for _, size := range sizes {
		for _, framing := range []string{"length", "chunked", "expect"} {
			if size > 10<<20 && framing == "expect" {
				continue
			}
			if res := g.upload(t, zeros(size), size, framing); res.status != 200 {
				t.Errorf("%d bytes, %s: %d %s", size, framing, res.status, res.body)
			}
			calls := e.seen()
			if got := len(calls[len(calls)-1].body); got != size {
				t.Errorf("%d bytes, %s: %d reached the engine", size, framing, got)
			}
			n++
		}
	}
	for _, framing := range []string{"length", "chunked", "expect"} {
		if res := g.upload(t, zeros(64<<20+1), 64<<20+1, framing); res.status != http.StatusRequestEntityTooLarge || res.fault() != "too-large" || !strings.Contains(res.body, "67108864") {
			t.Errorf("over the limit, %s: %d %s", framing, res.status, res.body)
		}
		refused++
	}
	g.settled(map[string]int{"ok": n, "client_error": refused})
}

// upload sends a body to the chat route, framed in one of three ways.
func (g *gateway) upload(t *testing.T, body io.Reader, size int, framing string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, g.URL()+chat.path, struct{ io.Reader }{body})
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = int64(size)
	switch framing {
	case "chunked":
		req.ContentLength = -1
	case "expect":
		req.Header.Set("Expect", "100-continue")
	}
	transport := &http.Transport{ExpectContinueTimeout: patience}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text), err}
}

// A length is a promise. 64 clients that promise 64 MiB each and send a little
// must not cost 4 GiB.
func TestPromisedBodiesCostNoMemory(t *testing.T) {
	// Not parallel: it measures the process.
	g := start(t, nil, newEngine(t, 1, reply))
	before := heap()
	for range 64 {
		c := g.dial()
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{\"model\":\"tiny\",", 64<<20)
	}
	// They have been read when a later one has.
	if a := g.post(chat.path, chat.request("hello", false, "")); a.status != 200 {
		t.Errorf("got %d", a.status)
	}
	if grown := heap() - before; grown > 100<<20 {
		t.Errorf("64 promises of 64 MiB cost %d MiB", grown>>20)
	}
}

// heap is the memory in use once the collector has run.
func heap() int64 {
	var m runtime.MemStats
	for range 3 { // pools let go at the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// However people write an engine's address, its routes are found.
func TestEngineAddressesAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", "/", "//", "/v1", "/v1/", "/prefix", "/prefix/", "/prefix/v1", "/a%20b/v1/"} {
		t.Run(strings.ReplaceAll(suffix, "/", "_"), func(t *testing.T) {
			t.Parallel()
			prefix := strings.TrimRight(strings.TrimSuffix(strings.TrimRight(suffix, "/"), "/v1"), "/")
			e := newEngine(t, 1, reply)
			for _, path := range []string{"/health", "/v1/models", "/version", "/metrics"} {
				e.probe(prefix+path, e.probes[path])
			}
			g := start(t, func(c *config.Config) {
				if err := c.Models[0].Engines[0].URL.UnmarshalText([]byte(e.url() + suffix)); err != nil {
					t.Fatal(err)
				}
			}, e)
			for _, d := range dialects {
				e.on(func(c *call) { c.answer(200, d.whole("x")) })
				if a := g.post(d.path+"?beta=true", d.request("hello", false, "")); a.status != 200 {
					t.Errorf("got %d %s", a.status, a.body)
				}
			}
			for i, c := range e.seen() {
				if want := prefix + dialects[i].path + "?beta=true"; c.target != want {
					t.Errorf("the engine was asked for %q, want %q", c.target, want)
				}
			}
		})
	}
}

// Counting goes where the model is, makes no conversation and takes no place.
func TestCountingTokensTakesNoPlace(t *testing.T) {
	t.Parallel()
	hold := newGate()
	list := engines(t, 2, hold.hold)
	g := start(t, nil, list...)
	const path = "/v1/messages/count_tokens"
	answers := make(chan answer, 26)
	for i := range 26 {
		go func() {
			a, err := g.ask(t.Context(), path, `{"model":"claude-sonnet-4-5","messages":[{"role":"user","content":"hello"}]}`, "X-Claude-Code-Session-Id", fmt.Sprint("session-", i%2))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for range 26 {
		c := receive(t, "the counts to arrive", hold.arrived)
		if !strings.Contains(string(c.body), `"model":"tiny"`) || c.path() != path {
			t.Errorf("the engine was asked %s for %s", c.target, c.body)
		}
	}
	m := g.model()
	for _, r := range m.Replicas {
		if r.InFlight != 0 || r.LiveConversations != 0 {
			t.Errorf("replica %d: %d in flight, %d conversations", r.Index, r.InFlight, r.LiveConversations)
		}
	}
	close(hold.open)
	for range 26 {
		if a := receive(t, "an answer", answers); a.status != 200 || a.decision() != "unbound" {
			t.Errorf("got %d %s %s", a.status, a.decision(), a.body)
		}
	}
	for _, e := range list {
		e.on(func(c *call) { c.answer(404, `{"detail":"Not Found"}`) })
	}
	if a := g.post(path, `{"model":"tiny","messages":[]}`); a.status != 404 || a.body != `{"detail":"Not Found"}` || a.fault() != "" {
		t.Errorf("from an engine without the route: %d %s", a.status, a.body)
	}
	g.settled(map[string]int{"ok": 26, "client_error": 1})
}

// Each event of a stream reaches the client before the engine sends the next
// one, also through a proxy that buffers by default.
func TestStreamsAreNotHeldBack(t *testing.T) {
	t.Parallel()
	all := chat.events("one ", "two ", "three ", "four ", "five")
	seen := make(chan struct{}, len(all))
	e := newEngine(t, 1, func(c *call) {
		c.begin()
		for _, ev := range all {
			c.chunk(ev)
			if !c.wait(seen) {
				return
			}
		}
		c.end()
	})
	g := start(t, nil, e)
	check := func(t *testing.T, url string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chat.path, strings.NewReader(chat.request("hello", true, `,"stream_options":{"include_usage":true}`)))
		if err != nil {
			t.Fatal(err)
		}
		res, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if url == g.URL() && res.Header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("nothing tells a proxy not to buffer: %v", res.Header)
		}
		for i, ev := range all {
			got := make([]byte, len(ev))
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != ev {
				t.Fatalf("event %d: %v %q", i, err, got)
			}
			seen <- struct{}{}
		}
	}
	t.Run("alone", func(t *testing.T) { check(t, g.URL()) })
	t.Run("behind nginx", func(t *testing.T) {
		nginx, err := exec.LookPath("nginx")
		if err != nil { // Debian puts it where only root looks
			nginx, err = exec.LookPath("/usr/sbin/nginx")
		}
		if err != nil {
			t.Skip("nginx is not installed; Debian has it in nginx-light")
		}
		check(t, behindNginx(t, nginx, g.URL()))
	})
}

// behindNginx starts nginx in front of a URL, as it comes: buffering is on.
func behindNginx(t *testing.T, nginx, target string) (url string) {
	t.Helper()
	dir := t.TempDir()
	address := freeAddress(t)
	conf := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log; events {}
http { access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
server { listen %[2]s; location / { proxy_pass %[3]s; } } }`, dir, address, target)
	path := filepath.Join(dir, "nginx.conf")
	writeFile(t, path, conf)
	cmd := exec.Command(nginx, "-p", dir, "-c", path)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	await(t, "nginx to listen", func() error {
		res, err := http.Get("http://" + address + "/health")
		if err != nil {
			return err
		}
		http.DefaultClient.CloseIdleConnections()
		return res.Body.Close()
	})
	return "http://" + address
}

// The gateway adds nothing of its own to a stream, however long it waits, and
// takes nothing away: an engine's comments pass.
func TestStreamsHoldNothingThatTheEngineDidNotSend(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			all := d.events("one", "two")
			want := strings.Join(all[:1], "") + ": keep-alive\n\n" + strings.Join(all[1:], "")
			e := newEngine(t, 1, func(c *call) {
				if !c.wait(after(300 * time.Millisecond)) {
					return
				}
				c.begin()
				c.chunk(all[0])
				c.chunk(": keep-alive\n\n")
				if !c.wait(after(300 * time.Millisecond)) {
					return
				}
				c.chunk(strings.Join(all[1:], ""))
				c.end()
			})
			g := start(t, nil, e)
			if a := g.post(d.path, d.request("hello", true, `,"stream_options":{"include_usage":true}`)); a.body != want || a.err != nil {
				t.Errorf("got %v %q\nwant %q", a.err, a.body, want)
			}
		})
	}
}

// after is a channel that is closed after a time.
func after(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}
