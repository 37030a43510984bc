package server

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// gauge reads the sum of a gauge over the ranks, without going through a connection: that would
// take time.
func (n *network) gauge(of func(running, waiting int) int) int {
	sum := 0
	stats, _ := n.server.process().engine.snapshot()
	for _, s := range stats {
		sum += of(s.Running, s.Waiting)
	}
	return sum
}

func (n *network) running() int { return n.gauge(func(running, _ int) int { return running }) }
func (n *network) waiting() int { return n.gauge(func(_, waiting int) int { return waiting }) }

const longAnswer = `"max_tokens": 4000, "messages": [{"role": "user", "content": "a long answer"}]`

func TestIdleConnectionIsClosedAfterFiveSeconds(t *testing.T) {
	t.Parallel()
	for name, request := range map[string][]byte{
		"a body":   []byte("GET /v1/models HTTP/1.1\r\nHost: vllm.test\r\n\r\n"),
		"a stream": probe("chat", true, 1),
		"an error": post("/v1/chat/completions", "{"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := serve(t, recorded(t))
				c := n.dial()
				defer c.Close()
				go c.Write(request)
				in := bufio.NewReader(c)
				r, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Fatal(err)
				}
				answered := time.Now()
				if _, err := in.ReadByte(); err != io.EOF {
					t.Errorf("read after the answer: %v, want EOF", err)
				}
				if idle := time.Since(answered); idle != 5*time.Second {
					t.Errorf("closed after %s", idle)
				}
			})
		})
	}
}

func TestSilentConnectionStaysOpen(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"nothing sent": "", "half a body": "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := serve(t, recorded(t))
				c := n.dial()
				defer c.Close()
				go c.Write([]byte(sent))
				c.SetReadDeadline(time.Now().Add(30 * time.Second))
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("after 30 s: %v, want a connection that is still open", err)
				}
			})
		})
	}
}

// A stream's status is sent before the request is queued, and each event in an HTTP chunk of its own.
func TestStreamHeadersComeBeforeTheFirstToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		c := n.dial()
		defer c.Close()
		began := time.Now()
		go c.Write(post("/v1/chat/completions", `{"stream": true, "max_tokens": 2, "messages": [{"role": "user", "content": "`+strings.Repeat("p", 7000)+`"}]}`))
		in := bufio.NewReader(c)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == "\r\n" {
				break
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("headers came after %s", waited)
		}
		var events []string
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			size, err := strconv.ParseInt(strings.TrimSpace(line), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			chunk := make([]byte, size+2)
			if _, err := io.ReadFull(in, chunk); err != nil {
				t.Fatal(err)
			}
			if size == 0 {
				break
			}
			if len(events) == 0 && time.Since(began) < 200*time.Millisecond {
				t.Errorf("the first token of 7000 came after %s", time.Since(began))
			}
			events = append(events, string(chunk))
		}
		if len(events) != 4 {
			t.Errorf("%d chunks, want the role, two tokens and the end: %q", len(events), events)
		}
		for _, e := range events {
			if !strings.HasPrefix(e, "data: ") || strings.Index(e, "\n\n") != len(e)-4 {
				t.Errorf("chunk %q is not one event", e)
			}
		}
	})
}

func TestKeepAliveComments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.SSEKeepAlive = time.Second
		o.Speed = .1 // a prompt of 5800 tokens takes three and a half seconds
		n := serve(t, o)
		_, body := n.roundTrip(t, post("/v1/chat/completions", `{"stream": true, "max_tokens": 2, "messages": [{"role": "user", "content": "`+strings.Repeat("p", 5800)+`"}]}`))
		if !bytes.HasPrefix(body, []byte(": keep-alive\n\n: keep-alive\n\n: keep-alive\n\ndata: ")) {
			t.Errorf("stream begins %.80q", body)
		}
	})
}

func TestClientThatLeavesFreesTheEngine(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"} {
		for _, stream := range []string{"true", "false"} {
			t.Run(route+" "+stream, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := serve(t, recorded(t))
					body := `{"model": "tiny", ` + longAnswer + `, "stream": ` + stream + `, "input": "a", "prompt": "a", "max_output_tokens": 4000}`
					c := n.dial()
					go c.Write(post(route, body))
					go io.Copy(io.Discard, c)
					time.Sleep(300 * time.Millisecond)
					if n.running() != 1 {
						t.Fatalf("%d running", n.running())
					}
					c.Close()
					time.Sleep(5 * time.Millisecond) // one step
					synctest.Wait()
					if n.running() != 0 || n.server.process().open.Load() != 0 {
						t.Errorf("%d running and %d open after the client left", n.running(), n.server.process().open.Load())
					}
					stats, counted := n.server.process().engine.snapshot()
					for rank := range stats {
						if len(stats[rank].Finished) != 0 || counted[rank][e2e].sum != 0 {
							t.Errorf("an abandoned request counts as finished: %+v", stats[rank])
						}
					}
				})
			})
		}
	}
}

func TestWaitingClientThatLeavesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.Replicas, o.Params.MaxSequences = 1, 1
		n := serve(t, o)
		var clients []net.Conn
		for range 3 {
			c := n.dial()
			go c.Write(post("/v1/chat/completions", `{`+longAnswer+`}`))
			clients = append(clients, c)
		}
		time.Sleep(100 * time.Millisecond)
		if n.running() != 1 || n.waiting() != 2 {
			t.Fatalf("%d running, %d waiting", n.running(), n.waiting())
		}
		for _, c := range clients {
			c.Close()
		}
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		if n.running() != 0 || n.waiting() != 0 {
			t.Errorf("%d running, %d waiting after all left", n.running(), n.waiting())
		}
	})
}

func TestQueueLimit(t *testing.T) {
	t.Parallel()
	const busyOpenAI = `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`
	anthropic := func(kind string) string {
		return `{"type":"error","error":{"type":"` + kind + `","message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."}}`
	}
	for version, busyAnthropic := range map[string]string{"0.32.0": anthropic("Service Unavailable"), "0.33.0": anthropic("overloaded_error")} {
		synctest.Test(t, func(t *testing.T) {
			o := recorded(t)
			o.MaxQueuedReqs, o.Version = 2, version
			n := serve(t, o)
			for range 2 {
				c := n.dial()
				defer c.Close()
				go c.Write(post("/v1/chat/completions", `{`+longAnswer+`}`))
			}
			synctest.Wait()
			for _, route := range []string{"chat", "completions", "responses", "messages"} {
				want := busyOpenAI
				if route == "messages" {
					want = busyAnthropic
				}
				for _, stream := range []bool{false, true} {
					r, body := n.roundTrip(t, probe(route, stream, 1))
					if r.StatusCode != 503 || string(body) != want || r.Header.Get("Retry-After") != "" {
						t.Errorf("%s, stream %t: %s %s", route, stream, r.Status, body)
					}
				}
			}
			_, page := n.roundTrip(t, []byte("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))
			if line := `vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 8.0`; !bytes.Contains(page, []byte(line+"\n")) {
				t.Errorf("no line %s", line)
			}
		})
	}
}

// When the server goes, clients never see a complete answer.
func TestStopCutsWhatIsOpen(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"true", "false"} {
		synctest.Test(t, func(t *testing.T) {
			n := serve(t, recorded(t))
			c := n.dial()
			defer c.Close()
			go c.Write(post("/v1/chat/completions", `{`+longAnswer+`, "stream": `+stream+`}`))
			reply := make(chan []byte)
			go func() {
				all, _ := io.ReadAll(c)
				reply <- all
			}()
			time.Sleep(100 * time.Millisecond)
			n.stop()
			got := <-reply
			if stream == "true" && (!bytes.HasPrefix(got, []byte("HTTP/1.1 200")) || bytes.Contains(got, []byte("[DONE]")) || bytes.HasSuffix(got, []byte("0\r\n\r\n"))) {
				t.Errorf("the stream ends as if it were complete: %.200q", got)
			}
			if stream == "false" && len(got) > 0 {
				t.Errorf("answer %q", got)
			}
			if _, err := n.tryDial(); err != errRefused {
				t.Errorf("a connection after the end: %v", err)
			}
		})
	}
}
