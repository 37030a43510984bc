package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fail lets something go wrong now.
func (n *network) fail(t *testing.T, spec string) {
	t.Helper()
	synctest.Wait()
	if err := n.server.Fail(spec); err != nil {
		t.Fatal(err)
	}
}

// ask sends a request on a connection of its own and says in a word what came of it within a time:
// a status and the beginning of the body, refused, cut, or nothing.
func (n *network) ask(raw []byte, within time.Duration) string {
	c, err := n.tryDial()
	if err != nil {
		return "refused"
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(within))
	go c.Write(raw)
	method, _, _ := strings.Cut(string(raw), " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "nothing"
	} else if err != nil {
		return "cut"
	}
	body, err := io.ReadAll(r.Body)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprint(r.StatusCode, " and then nothing")
	case err != nil:
		return fmt.Sprint(r.StatusCode, " and then cut")
	}
	return fmt.Sprint(r.StatusCode, " ", string(body))
}

func (n *network) get(path string) string {
	return n.ask([]byte("GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"), time.Second)
}

// expect compares the beginning of an answer.
func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if !strings.HasPrefix(got, want) {
		t.Errorf("%s: %.200s, want %s", what, got, want)
	}
}

// page returns the samples of a metric by its labels.
func (n *network) page(t *testing.T, metric string) map[string]string {
	t.Helper()
	samples := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(metric)+`(\{.*\})? (\S+)$`).FindAllStringSubmatch(n.get("/metrics"), -1) {
		samples[m[1]] = m[2]
	}
	return samples
}

const dead32 = `500 {"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}`

func pinned(rank int, stream bool, unique int) []byte {
	return probe("chat", stream, unique, fmt.Sprint(rankHeader, ": ", rank))
}

// The recordings engine-death.txt and engine-death-0.33.0.txt of those who come after the death. Their
// table shows when a round of probes ended; here are the times at which its probes were sent.
func TestNewcomersAfterTheDeathOfAnEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "die,rank=1")
		time.Sleep(50 * time.Millisecond)
		expect(t, "the survivor at first", n.ask(pinned(0, false, 1), time.Second), "200 ")
		expect(t, "the dead rank", n.ask(pinned(1, false, 2), 3*time.Second), "nothing")
		for _, path := range []string{"/health", "/metrics", "/v1/models"} {
			expect(t, path, n.get(path), "200 ")
		}
		expect(t, "a stream to the dead rank", n.ask(pinned(1, true, 3), 300*time.Millisecond), "200 and then nothing")
		sent := time.Now()
		expect(t, "the survivor later", n.ask(pinned(0, false, 4), 3*time.Second), dead32)
		if waited := time.Since(sent); waited < 1500*time.Millisecond || waited > 2500*time.Millisecond {
			t.Errorf("the survivor hung for %s, recorded 2.29 s", waited)
		}
		for rank := range 2 {
			expect(t, "a stream when it was noticed", n.ask(pinned(rank, true, 5), time.Second), dead32)
		}
		time.Sleep(500 * time.Millisecond)
		expect(t, "the end", n.get("/health"), "refused")
		time.Sleep(time.Hour)
		expect(t, "an hour later", n.get("/health"), "refused")
	})
}

func TestSurvivorsCanAnswerForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "die,rank=1,answers=3s")
		time.Sleep(2900 * time.Millisecond)
		expect(t, "the survivor", n.ask(pinned(0, false, 1), time.Second), "200 ")
		time.Sleep(100 * time.Millisecond)
		expect(t, "the survivor later", n.ask(pinned(0, false, 1), time.Second), "nothing")
	})
}

func TestDeathIsNoticedWhileSurvivorsAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "die,rank=1,answers=1h")
		time.Sleep(5600 * time.Millisecond)
		expect(t, "the survivor", n.ask(pinned(0, false, 1), time.Second), dead32)
	})
}

func TestFrozenRankAbortsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "freeze,rank=0,for=1h")
		n.fail(t, "die@1s,rank=1")
		sent := time.Now()
		expect(t, "a request on it", n.ask(pinned(0, false, 1), time.Minute), dead32)
		if waited := time.Since(sent); waited != 6500*time.Millisecond {
			t.Errorf("it hung for %s", waited)
		}
	})
}

// What an aborted answer holds is what was generated: here a token is a byte.
func TestAbortedAnswersAreAsLongAsTheyGot(t *testing.T) {
	t.Parallel()
	const call = `{"path": "` + "0123456789012345678901234567890123456789012345678901234567890123456789" + `"}`
	texts := regexp.MustCompile(`"(?:content|text|arguments)":"((?:[^"\\]|\\.)+)"`)
	counts := regexp.MustCompile(`"(?:completion_tokens|output_tokens)":(\d+)`)
	for route, body := range map[string]string{
		"/v1/chat/completions": longAnswer, "/v1/completions": `"prompt": "a", "max_tokens": 4000`,
		"/v1/responses": `"input": "a"`, "/v1/messages": `"model": "tiny", ` + longAnswer,
		"/v1/chat/completions?tool": `"tools": [{"type": "function", "function": {"name": "open"}}], "messages": [{"role": "user", "content": "[[tool open ` +
			strings.ReplaceAll(call, `"`, `\"`) + `]]"}]`,
		"/v1/responses?tool": `"tools": [{"type": "function", "name": "open"}], "input": "[[tool open ` + strings.ReplaceAll(call, `"`, `\"`) + `]]"`,
	} {
		synctest.Test(t, func(t *testing.T) {
			n := serve(t, recorded(t))
			n.fail(t, "stop@70ms")
			got := n.ask(post(route, `{`+body+`}`), time.Minute)
			text, count := texts.FindStringSubmatch(got), counts.FindStringSubmatch(got)
			if text == nil || count == nil {
				t.Fatalf("%s: %s", route, got)
			}
			var said string
			if err := json.Unmarshal([]byte(`"`+text[1]+`"`), &said); err != nil {
				t.Fatal(err)
			}
			tool := strings.HasSuffix(route, "tool")
			if n := strconv.Itoa(len(said)); !strings.HasPrefix(got, "200 ") || n != count[1] && !tool || len(said) < 40 || len(said) > 60 ||
				tool != strings.HasPrefix(said, "<tool_call>") || strings.Contains(got, `"tool_calls":[`) || strings.Contains(got, `"type":"function_call"`) {
				t.Errorf("%s: %d bytes: %s", route, len(said), got)
			}
		})
	}
}

func TestAbortedResponsesStreamEndsWithWhatItSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "stop@70ms")
		got := n.ask(post("/v1/responses", `{"stream": true, "input": "a"}`), time.Minute)
		var said string
		for _, delta := range regexp.MustCompile(`"delta":"([^"]*)"`).FindAllStringSubmatch(got, -1) {
			said += delta[1]
		}
		ends := strings.Count(got, `"text":"`+said+`"`)
		if !strings.Contains(got, `"status":"completed","text":null`) || len(said) < 40 || len(said) > 60 || ends != 4 {
			t.Errorf("%q is said, and repeated in %d of 4 ends: %s", said, ends, got)
		}
	})
}

func TestShellOfADeadEngineAsRecorded(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("testdata", "engine-death.txt"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), "\nafter 25 s: ")
	statuses := regexp.MustCompile(`(?m)^(?:after 25 s: )?(/\S+): (\d+) b'`).FindAllStringSubmatch(after, -1)
	bodies := regexp.MustCompile(`(?ms)^(chat|messages) stream.*?: HTTP/1.1 (500) .*?\n\n(\{.*?\})$`).FindAllStringSubmatch(after, -1)
	if len(statuses) != 5 || len(bodies) != 4 {
		t.Fatalf("%d statuses and %d bodies in the recording", len(statuses), len(bodies))
	}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		for i := range 5 {
			c := n.dial()
			defer c.Close()
			go c.Write(post("/v1/chat/completions", `{`+longAnswer+`, "stream": true}`, rankHeader+": 1"))
			go io.Copy(io.Discard, c)
			c = n.dial()
			defer c.Close()
			go c.Write(post("/v1/completions", fmt.Sprintf(`{"prompt": "%d", "max_tokens": 4000}`, i), rankHeader+": 0"))
			go io.Copy(io.Discard, c)
		}
		time.Sleep(time.Second)
		n.fail(t, "die,rank=1,shell")
		time.Sleep(25 * time.Second)
		for _, s := range statuses {
			expect(t, s[1], n.get(s[1]), s[2]+" ")
		}
		for _, b := range bodies {
			expect(t, b[1], n.ask(probe(b[1], true, 1), time.Second), b[2]+" "+b[3])
		}
		// "gauges {0: 0.0, 1: 5.0} {0: 0.0, 1: 0.6390977443609023}"
		running, kv := n.page(t, "vllm:num_requests_running"), n.page(t, "vllm:kv_cache_usage_perc")
		labels := func(engine int) string { return fmt.Sprintf(`{engine="%d",model_name="tiny"}`, engine) }
		if running[labels(0)] != "0.0" || running[labels(1)] != "5.0" || kv[labels(0)] != "0.0" || kv[labels(1)] == "0.0" {
			t.Errorf("gauges %v %v", running, kv)
		}
	})
}

// The recording engine-stop.txt.
func TestFrozenRank(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.Params.WeightsMS = 30 // fewer tokens in so many seconds
		n := serve(t, o)
		var last [2]atomic.Pointer[time.Time]
		for rank := range last {
			c := n.dial()
			defer c.Close()
			go c.Write(post("/v1/chat/completions", `{"stream": true, "max_tokens": 8000, "messages": [{"role": "user", "content": "longer"}]}`, fmt.Sprint(rankHeader, ": ", rank)))
			go func() {
				for b := make([]byte, 4096); ; {
					if _, err := c.Read(b); err != nil {
						return
					}
					now := time.Now()
					last[rank].Store(&now)
				}
			}()
		}
		time.Sleep(time.Second)
		n.fail(t, "freeze,rank=1")
		frozen := time.Now()
		before := n.page(t, "vllm:generation_tokens_total")

		time.Sleep(500 * time.Millisecond)
		sent := time.Now()
		first := make(chan time.Duration, 1)
		go func() {
			c := n.dial()
			defer c.Close()
			go c.Write(pinned(1, true, 1))
			in := bufio.NewReader(c)
			r, err := http.ReadResponse(in, nil)
			if err != nil || time.Since(sent) > 20*time.Millisecond {
				t.Errorf("headers after %s, %v", time.Since(sent), err)
				return
			}
			r.Body.Read(make([]byte, 1))
			first <- time.Since(sent)
		}()
		expect(t, "a request without a stream", n.ask(pinned(1, false, 2), time.Second), "nothing")
		expect(t, "the other rank", n.ask(pinned(0, false, 3), time.Second), "200 ")
		expect(t, "/health", n.get("/health"), "200 ")
		time.Sleep(time.Until(frozen.Add(19 * time.Second)))
		if silent := time.Since(*last[1].Load()); silent < 18900*time.Millisecond {
			t.Errorf("the frozen rank was silent for %s", silent)
		}
		if silent := time.Since(*last[0].Load()); silent > time.Second {
			t.Errorf("the other rank is silent since %s", silent)
		}
		after, running, waiting := n.page(t, "vllm:generation_tokens_total"), n.page(t, "vllm:num_requests_running"), n.page(t, "vllm:num_requests_waiting")
		labels := func(engine int) string { return fmt.Sprintf(`{engine="%d",model_name="tiny"}`, engine) }
		if before[labels(1)] != after[labels(1)] || before[labels(0)] == after[labels(0)] {
			t.Errorf("tokens generated at first %v, then %v", before, after)
		}
		if running[labels(1)] != "1.0" || waiting[labels(1)] != "0.0" {
			t.Errorf("running %v, waiting %v: the new request must not be seen", running, waiting)
		}
		if came := <-first; came < 19500*time.Millisecond || came > 19700*time.Millisecond {
			t.Errorf("the first chunk came after %s, recorded 19.54 s", came)
		}
		time.Sleep(200 * time.Millisecond)
		if time.Since(*last[1].Load()) > 100*time.Millisecond {
			t.Error("the stream does not go on")
		}
	})
}

func TestTwoFreezesOfARankEndWithTheLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "freeze,for=10s")
		time.Sleep(5 * time.Second)
		n.fail(t, "freeze,for=10s")
		time.Sleep(6 * time.Second)
		expect(t, "after 11 s", n.ask(pinned(0, false, 1), time.Second), "nothing")
		time.Sleep(4 * time.Second)
		expect(t, "after 16 s", n.ask(pinned(0, false, 1), time.Second), "200 ")
	})
}

// A slow rank takes so many times as long, for as long as was said last.
func TestSlowRank(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		unique := 0
		took := func(rank int) time.Duration {
			unique++
			began := time.Now()
			expect(t, "a request", n.ask(pinned(rank, false, unique), time.Minute), "200 ")
			return time.Since(began)
		}
		took(0)
		took(1) // what all of them have in common is cached now
		usual := took(0)
		check := func(when string, rank int, want time.Duration) {
			t.Helper()
			if got := took(rank); got != want {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		n.fail(t, "slow,rank=0,factor=3,for=10s")
		check("while it is slow", 0, 3*usual)
		check("the other rank", 1, usual)
		time.Sleep(10 * time.Second)
		check("after its time", 0, usual)

		n.fail(t, "slow,rank=0,factor=3,for=10s")
		n.fail(t, "slow,rank=0,factor=5")
		time.Sleep(11 * time.Second)
		check("slowed again before the first had ended", 0, 5*usual)
		n.fail(t, "slow,rank=0,factor=1")
		check("when it is told to stop", 0, usual)
	})
}

// The recording sigterm.txt of those who come after the signal.
func TestNewcomersWhileTheServerStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "stop")
		expect(t, "/health", n.get("/health"), "200 ")
		time.Sleep(time.Second)
		for rank := range 2 {
			expect(t, "a request", n.ask(pinned(rank, false, 1), time.Second), dead32)
		}
		time.Sleep(330 * time.Millisecond)
		expect(t, "the end", n.get("/health"), "refused")
	})
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "stop,timeout=8s,down=1m")
		time.Sleep(100 * time.Millisecond)
		for rank := range 2 {
			expect(t, "a request", n.ask(pinned(rank, false, 1), time.Second),
				`500 {"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}`)
		}
		expect(t, "/health", n.get("/health"), "200 ")
		time.Sleep(8220 * time.Millisecond)
		expect(t, "a request after the timeout", n.ask(pinned(0, false, 1), time.Second), dead32)
		expect(t, "/health after the timeout", n.get("/health"), "503 ")
		time.Sleep(700 * time.Millisecond)
		expect(t, "the end", n.get("/health"), "refused")
	})
}

// The process ends, and can come back, only when the clients have left that it let hang.
func TestStoppedServerWaitsForThoseItLetHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		c := n.dial()
		go c.Write(post("/v1/chat/completions", `{"stream": true, `+longAnswer+`}`))
		go io.Copy(io.Discard, c)
		n.fail(t, "stop,timeout=2s,down=10s")
		time.Sleep(time.Hour)
		expect(t, "while a client hangs", n.get("/health"), "refused")
		c.Close()
		time.Sleep(10600 * time.Millisecond) // Shutdown looks every half second
		expect(t, "afterwards", n.get("/health"), "200 ")
		if got := n.server.State(); len(got.Ranks) != 2 || got.Ranks[0].Left+got.Ranks[1].Left != 1 {
			t.Errorf("the client that left does not count: %+v", got)
		}
	})
}

func TestRestartedServerIsAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		warm := post("/v1/chat/completions", `{"messages": [{"role": "user", "content": "`+strings.Repeat("w", 90)+`"}], "max_tokens": 2}`, rankHeader+": 0")
		n.ask(warm, time.Second)
		if again := n.ask(warm, time.Second); !strings.Contains(again, `"cached_tokens":96`) {
			t.Fatalf("nothing cached: %s", again)
		}
		began := n.page(t, "process_start_time_seconds")
		c := n.dial()
		defer c.Close()
		go c.Write(post("/v1/chat/completions", `{"stream": true, `+longAnswer+`}`))
		cut := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(c)
			cut <- all
		}()
		time.Sleep(time.Second)

		n.fail(t, "restart,down=30s,ranks=1")
		if got := <-cut; !bytes.HasPrefix(got, []byte("HTTP/1.1 200")) || bytes.HasSuffix(got, []byte("0\r\n\r\n")) {
			t.Errorf("the stream was not cut: %q", got)
		}
		time.Sleep(29900 * time.Millisecond)
		expect(t, "before its return", n.get("/health"), "refused")
		time.Sleep(200 * time.Millisecond)
		expect(t, "after its return", n.get("/health"), "200 ")
		if again := n.page(t, "process_start_time_seconds"); began[""] == again[""] || again[""] == "" {
			t.Errorf("the process started at %s, then %s", began, again)
		}
		if tokens := n.page(t, "vllm:prompt_tokens_total"); len(tokens) != 1 || tokens[`{engine="0",model_name="tiny"}`] != "0.0" {
			t.Errorf("prompt tokens %v, want one rank and 0", tokens)
		}
		if cold := n.ask(warm, time.Second); !strings.Contains(cold, `"cached_tokens":0`) || strings.Contains(cold, "-dp2-") {
			t.Errorf("the new process is not cold or has two ranks: %s", cold)
		}
		expect(t, "a rank that is no more", n.ask(pinned(1, false, 1), time.Second), `400 {"error":{"message":"data_parallel_rank 1 is out of range [0, 1)."`)
		got, sum := n.server.State(), 0
		for _, c := range append(got.Ranks, got.Unrouted) {
			sum += c.Served + c.Failed + c.Refused
		}
		if sum != 5 || got.Unrouted.Refused != 1 {
			t.Errorf("the counts begin anew: %+v", got)
		}
	})
}

func TestRestartBringsADeadServerBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "die")
		time.Sleep(time.Minute)
		expect(t, "dead", n.get("/health"), "refused")
		n.fail(t, "restart,down=5s")
		n.fail(t, "restart,down=9s") // the earlier one wins, and this one does not wait for the next death
		time.Sleep(5100 * time.Millisecond)
		expect(t, "back", n.get("/health"), "200 ")
		time.Sleep(5 * time.Second)
		n.fail(t, "die")
		time.Sleep(time.Minute)
		expect(t, "dead again", n.get("/health"), "refused")
	})
}

// Somebody's outgoing connection may have taken the port meanwhile.
func TestReturnWaitsForItsPort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		taken := 20
		n.server.listen = func(_, _ string) (net.Listener, error) {
			if taken--; taken >= 0 {
				return nil, errors.New("address already in use")
			}
			return n.listen(), nil
		}
		n.fail(t, "restart,down=1s")
		time.Sleep(2900 * time.Millisecond)
		expect(t, "while it is taken", n.get("/health"), "refused")
		time.Sleep(200 * time.Millisecond)
		expect(t, "when it is free", n.get("/health"), "200 ")
	})
}

func TestFailuresRunWithTheEnginesSpeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.Speed = 10
		o.Failures = []string{"die@10s,rank=1,down=10s"}
		n := serve(t, o)
		time.Sleep(990 * time.Millisecond)
		expect(t, "before", n.ask(pinned(1, false, 1), time.Second), "200 ")
		time.Sleep(100 * time.Millisecond)
		expect(t, "hanging", n.ask(pinned(1, false, 1), 300*time.Millisecond), "nothing")
		expect(t, "noticed", n.ask(pinned(1, false, 1), 300*time.Millisecond), dead32)
		time.Sleep(time.Until(time.Now().Add(100 * time.Millisecond)))
		expect(t, "gone", n.get("/health"), "refused")
		time.Sleep(time.Second)
		expect(t, "back", n.get("/health"), "200 ")
	})
}

func TestFailNeedsARunningServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(recorded(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Fail("die"); err == nil {
			t.Error("a server that does not serve takes a failure")
		}
		n := serve(t, recorded(t))
		if err := n.server.Fail("die,rank=2"); err == nil || !strings.Contains(err.Error(), "no rank 2") {
			t.Errorf("rank 2 of 2: %v", err)
		}
		n.stop()
		if err := n.server.Fail("die"); err == nil {
			t.Error("a server that has ended takes a failure")
		}
	})
}

// Whatever a failure waits for, it ends with the server.
func TestServerEndsInTheMiddleOfFailures(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{
		"die@1h", "die,rank=1", "die,shell,down=1h", "die,down=1h", "stop,timeout=1h", "restart,down=1h", "freeze,for=1h", "slow,for=1h",
		"reset,for=1h", "slow-headers,delay=1h", "metrics,mode=hang",
	} {
		synctest.Test(t, func(t *testing.T) {
			n := serve(t, recorded(t))
			n.fail(t, spec)
			for _, raw := range [][]byte{pinned(0, true, 1), pinned(1, false, 2), []byte("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")} {
				go n.ask(raw, time.Hour)
			}
			time.Sleep(20 * time.Second)
			began := time.Now()
			n.stop()
			if took := time.Since(began); took > 0 {
				t.Errorf("%s: the end took %s", spec, took)
			}
		})
	}
}
