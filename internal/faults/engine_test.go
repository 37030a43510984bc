package faults

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// modelName is what every engine of these tests serves.
const modelName = "tiny"

// A script answers one request to an engine, on the connection itself. When it
// returns, the engine reads the next request unless the connection is closed.
type script func(c *call)

// engine is a scripted engine: it answers probes as vLLM does, everything else
// as its script says, and keeps every request byte for byte.
type engine struct {
	t       testing.TB
	address string
	ranks   int
	serving sync.WaitGroup
	over    chan struct{} // closed when the test ends

	mu       sync.Mutex // guards everything below
	listener net.Listener
	open     map[*net.TCPConn]bool // whether a request is being answered there
	closed   bool
	idle     time.Duration
	script   script
	probes   map[string]script
	forgets  bool // calls are not kept
	calls    []*call
}

// newEngine starts an engine with this many ranks.
func newEngine(t testing.TB, ranks int, s script) *engine {
	t.Helper()
	e := &engine{t: t, address: "127.0.0.1:0", ranks: ranks, over: make(chan struct{}), open: map[*net.TCPConn]bool{}, script: s}
	e.probes = map[string]script{
		"/health":    func(c *call) { c.answer(200, "") },
		"/v1/models": func(c *call) { c.answer(200, modelList(modelName)) },
		"/version":   func(c *call) { c.answer(200, `{"version":"0.32.0"}`) },
		"/metrics":   func(c *call) { c.answer(200, metricsPage(ranks), "Content-Type", "text/plain; version=0.0.4") },
	}
	e.listen()
	t.Cleanup(func() {
		close(e.over)
		e.die()
		e.serving.Wait()
	})
	return e
}

// engines starts n engines of one rank with one script.
func engines(t testing.TB, n int, s script) []*engine {
	t.Helper()
	all := make([]*engine, n)
	for i := range all {
		all[i] = newEngine(t, 1, s)
	}
	return all
}

func modelList(names ...string) string {
	var list []string
	for _, n := range names {
		list = append(list, fmt.Sprintf(`{"id":%q,"object":"model","created":1,"owned_by":"vllm","root":%q,"parent":null,"max_model_len":8192}`, n, names[0]))
	}
	return `{"object":"list","data":[` + strings.Join(list, ",") + `]}`
}

// metricsPage is a page of an idle engine; extra lines come last.
func metricsPage(ranks int, extra ...string) string {
	var b strings.Builder
	for r := range ranks {
		for _, m := range []struct {
			name  string
			value float64
		}{
			{"vllm:num_requests_running", 0}, {"vllm:num_requests_waiting", 0}, {"vllm:kv_cache_usage_perc", 0},
			{"vllm:prompt_tokens_total", 1000}, {"vllm:prompt_tokens_cached_total", 0}, {"vllm:generation_tokens_total", 1000},
		} {
			fmt.Fprintf(&b, "%s{engine=\"%d\",model_name=%q} %v\n", m.name, r, modelName, m.value)
		}
	}
	return b.String() + strings.Join(extra, "\n") + "\n"
}

func (e *engine) url() string { return "http://" + e.address }

// listen takes connections, after die too, on the same address.
func (e *engine) listen() {
	e.t.Helper()
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		e.t.Fatal(err)
	}
	e.address = l.Addr().String()
	e.mu.Lock()
	e.listener, e.closed = l, false
	e.mu.Unlock()
	e.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			tcp := conn.(*net.TCPConn)
			e.mu.Lock()
			if e.closed {
				e.mu.Unlock()
				tcp.Close()
				continue
			}
			e.open[tcp] = false
			e.mu.Unlock()
			e.serving.Go(func() { e.converse(tcp) })
		}
	})
}

// die stops listening and resets every connection.
func (e *engine) die() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.listener.Close()
	for c := range e.open {
		c.SetLinger(0)
		c.Close()
	}
}

// stop stops listening and closes idle connections, as a server does that is asked
// to end. What it has begun to answer is left as it is.
func (e *engine) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.listener.Close()
	for c, busy := range e.open {
		if !busy {
			c.Close()
		}
	}
}

// on changes the script, answers changes the script of a probe's path.
func (e *engine) on(s script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = s
}

func (e *engine) probe(path string, s script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.probes[path] = s
}

// idleFor makes the engine close a connection on which it has answered after so
// long without a request, as uvicorn does after 5 s.
func (e *engine) idleFor(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = d
}

// forget keeps no request, for runs in which they would add up.
func (e *engine) forget() *engine {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgets = true
	return e
}

// seen are the requests so far, probes left out.
func (e *engine) seen() []*call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// converse serves one connection.
func (e *engine) converse(conn *net.TCPConn) {
	defer func() {
		conn.Close()
		e.mu.Lock()
		delete(e.open, conn)
		e.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	for served := 0; ; served++ {
		e.mu.Lock()
		idle := e.idle
		e.mu.Unlock()
		if idle > 0 && served > 0 {
			conn.SetReadDeadline(time.Now().Add(idle))
		}
		if _, err := in.Peek(1); err != nil {
			return
		}
		conn.SetReadDeadline(time.Time{})
		c, err := readCall(in)
		if err != nil {
			return
		}
		c.engine, c.conn = e, conn
		e.mu.Lock()
		s, probe := e.probes[c.path()]
		if !probe {
			s = e.script
			if !e.forgets {
				e.calls = append(e.calls, c)
			}
		}
		e.open[conn] = true
		e.mu.Unlock()
		s(c)
		e.mu.Lock()
		e.open[conn] = false
		over := c.closed || e.closed
		e.mu.Unlock()
		if over {
			return
		}
	}
}

// call is one request as it reached an engine.
type call struct {
	engine *engine
	conn   *net.TCPConn
	in     *bufio.Reader
	closed bool // by the script

	head   string // request line and headers, as sent
	target string
	header http.Header
	body   []byte
}

func (c *call) path() string {
	path, _, _ := strings.Cut(c.target, "?")
	return path
}

func (c *call) id() string { return c.header.Get("X-Request-Id") }

// readCall reads one request.
func readCall(in *bufio.Reader) (*call, error) {
	var head []byte
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		line, err := in.ReadSlice('\n')
		head = append(head, line...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return nil, err
	}
	c := &call{in: in, head: string(head), target: r.RequestURI, header: r.Header}
	if r.ContentLength >= 0 {
		c.body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(in, c.body)
		return c, err
	}
	c.body, err = io.ReadAll(httputil.NewChunkedReader(in))
	return c, err
}

// write sends bytes as they are.
func (c *call) write(s string) { io.WriteString(c.conn, s) }

// answer sends a whole answer. Headers are pairs; Content-Type is JSON unless
// they say another.
func (c *call) answer(status int, body string, headers ...string) {
	c.write(head(status, append([]string{"Content-Length", fmt.Sprint(len(body))}, headers...)...) + body)
}

// head is the head of an answer.
func head(status int, headers ...string) string {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i+1 < len(headers); i += 2 {
		h[headers[i]] = []string{headers[i+1]}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	h.Write(&b)
	return b.String() + "\r\n"
}

// stream sends a whole stream, each event in a chunk of its own.
func (c *call) stream(events ...string) {
	c.begin()
	for _, e := range events {
		c.chunk(e)
	}
	c.end()
}

// begin sends the head of a stream; chunk and end send what follows.
func (c *call) begin(headers ...string) {
	c.write(head(200, append([]string{"Content-Type", "text/event-stream; charset=utf-8", "Transfer-Encoding", "chunked"}, headers...)...))
}

func (c *call) chunk(s string) { c.write(fmt.Sprintf("%x\r\n%s\r\n", len(s), s)) }
func (c *call) end()           { c.write("0\r\n\r\n") }

// close ends the connection, reset does so the hard way.
func (c *call) close() {
	c.closed = true
	c.conn.Close()
}

func (c *call) reset() {
	c.conn.SetLinger(0)
	c.close()
}

// wait reports whether the channel was ready before the test ended.
func (c *call) wait(ready <-chan struct{}) bool {
	select {
	case <-ready:
		return true
	case <-c.engine.over:
		c.closed = true
		return false
	}
}

// gate holds calls until it is opened.
type gate struct {
	arrived chan *call
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan *call, 1000), make(chan struct{})} }

func (g *gate) hold(c *call) {
	g.arrived <- c
	if c.wait(g.open) {
		reply(c)
	}
}

// left waits until the other side closes the connection, or the engine dies.
func (c *call) left() {
	c.closed = true
	io.Copy(io.Discard, c.in)
}
