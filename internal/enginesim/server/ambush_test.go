package server

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var allRoutes = []string{"chat", "completions", "responses", "messages"}

func TestResetBeforeHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "reset,for=10s")
		for i, route := range allRoutes {
			for _, stream := range []bool{false, true} {
				expect(t, route, n.ask(probe(route, stream, i), time.Second), "cut")
			}
		}
		expect(t, "a route that generates nothing", n.get("/v1/models"), "200 ")
		time.Sleep(10 * time.Second)
		expect(t, "when it is over", n.ask(probe("chat", false, 1), time.Second), "200 ")
	})
}

func TestFailuresOfOtherPaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "reset,path=/health")
		expect(t, "/health", n.get("/health"), "cut")
		expect(t, "/ping", n.get("/ping"), "200 ")
		expect(t, "chat", n.ask(probe("chat", false, 1), time.Second), "200 ")
		n.fail(t, "slow-headers,path=/,delay=2s")
		expect(t, "/ping", n.get("/ping"), "nothing")
	})
}

func TestResetOfReusedConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "reset,reused")
		for range 2 {
			c := n.dial()
			defer c.Close()
			in := bufio.NewReader(c)
			for request := range 2 {
				go c.Write(probe("chat", false, request))
				r, err := http.ReadResponse(in, nil)
				if request == 1 {
					if err == nil {
						t.Errorf("the second request on a connection: %s", r.Status)
					}
					continue
				}
				if err != nil {
					t.Fatalf("the first request on a connection: %v", err)
				}
				io.Copy(io.Discard, r.Body)
			}
		}
	})
}

// Over TCP, where a reset is another thing than an end.
func TestResetIsAReset(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"reset", "cut,how=reset", "cut,how=close"} {
		o := recorded(t)
		o.Failures = []string{spec}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := s.Serve(ctx, l); err != nil {
				t.Error(err)
			}
		})
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(post("/v1/chat/completions", `{"stream": true, `+longAnswer+`}`)); err != nil {
			t.Error(err)
		}
		_, err = io.Copy(io.Discard, c)
		if reset := errors.Is(err, syscall.ECONNRESET); reset == (spec == "cut,how=close") {
			t.Errorf("%s: %v", spec, err)
		}
		c.Close()
		cancel()
		serving.Wait()
	}
}

func TestStreamsAreCut(t *testing.T) {
	t.Parallel()
	for _, how := range cutWays() {
		for _, route := range allRoutes {
			synctest.Test(t, func(t *testing.T) {
				n := serve(t, recorded(t))
				whole := n.rawStream(t, route)
				n.fail(t, "cut,after=4,how="+how)
				sent := time.Now()
				part := n.rawStream(t, route)
				if took := time.Since(sent); took > 50*time.Millisecond {
					t.Errorf("%s, %s: the end of a cut stream came after %s", route, how, took)
				}
				if len(whole) < 6 || len(part) < 4 {
					t.Fatalf("%s: %d of %d events", route, len(part), len(whole))
				}
				got := part[4:]
				want := []string{"cut"}
				if how == cutByEnd {
					want = []string{"complete"}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s, %s, after 4 events: %s", route, how, diff)
				}
				time.Sleep(5 * time.Millisecond) // one step
				if st := n.server.State(); sum(st, served) != 1 || sum(st, failed) != 1 || n.running() != 0 {
					t.Errorf("%s, %s: %+v, %d still running", route, how, st, n.running())
				}
			})
		}
	}
}

// rawStream returns the events of a stream and then, whether it was complete for HTTP or cut.
func (n *network) rawStream(t *testing.T, route string) []string {
	t.Helper()
	c := n.dial()
	defer c.Close()
	head, body, _ := strings.Cut(string(probe(route, true, 1)), "\r\n\r\n")
	go c.Write(post(strings.Fields(head)[1], strings.Replace(body, `tokens": 2`, `tokens": 99`, 1)))
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(r.Body)
	events := strings.SplitAfter(string(all), "\n\n")
	events = events[:len(events)-1]
	if err != nil {
		return append(events, "cut")
	}
	return append(events, "complete")
}

// sum adds up a count of all ranks and none.
func sum(st State, o outcome) int {
	n := *o(&st.Unrouted)
	for i := range st.Ranks {
		n += *o(&st.Ranks[i])
	}
	return n
}

func TestBodiesAreCutInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, how := range cutWays() {
		for _, route := range allRoutes {
			synctest.Test(t, func(t *testing.T) {
				n := serve(t, recorded(t))
				n.fail(t, "cut,how="+how)
				c := n.dial()
				defer c.Close()
				go c.Write(probe(route, false, 1))
				r, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(r.Body)
				if !errors.Is(err, io.ErrUnexpectedEOF) || int64(len(body)) != r.ContentLength/2 {
					t.Errorf("%s, %s: %d of %d bytes, %v", route, how, len(body), r.ContentLength, err)
				}
				synctest.Wait()
				if st := n.server.State(); sum(st, failed) != 1 || sum(st, served) != 0 {
					t.Errorf("%s, %s: %+v", route, how, st)
				}
			})
		}
	}
}

func TestSlowHeaders(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := serve(t, recorded(t))
			n.fail(t, "slow-headers,delay=7s,count=2")
			expect(t, "at first", n.ask(probe("chat", stream, 1), 6900*time.Millisecond), "nothing")
			synctest.Wait()
			if st := n.server.State(); sum(st, left)+sum(st, served) != 1 {
				// Without a stream the answer was ready when its client left.
				t.Errorf("stream %t: %+v", stream, st)
			}
			expect(t, "then", n.ask(probe("chat", stream, 1), 7100*time.Millisecond), "200 ")
			expect(t, "the third", n.ask(probe("chat", stream, 1), time.Second), "200 ")
		})
	}
}

// As in the recording queue-limit.txt, and with a header that vLLM does not send.
func TestBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "busy,count=8")
		n.fail(t, "busy@1s,retry-after=3s")
		for _, stream := range []bool{false, true} {
			for _, route := range allRoutes {
				want := `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`
				if route == "messages" {
					want = `{"type":"error","error":{"type":"Service Unavailable","message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."}}`
				}
				r, body := n.roundTrip(t, probe(route, stream, 1))
				if r.StatusCode != 503 || string(body) != want || r.Header.Get("Retry-After") != "" {
					t.Errorf("%s, stream %t: %s %v %s", route, stream, r.Status, r.Header, body)
				}
			}
		}
		expect(t, "between the bursts", n.ask(probe("chat", false, 1), 100*time.Millisecond), "200 ")
		time.Sleep(time.Second)
		if r, _ := n.roundTrip(t, probe("chat", false, 1)); r.StatusCode != 503 || r.Header.Get("Retry-After") != "3" {
			t.Errorf("%s, Retry-After %q", r.Status, r.Header.Get("Retry-After"))
		}
		if got := n.page(t, "vllm:admission_rejections_total")[`{model_name="tiny",reason="max_num_queued_reqs"}`]; got != "9.0" {
			t.Errorf("%s rejections are counted, want 9.0", got)
		}
		if st := n.server.State(); st.Unrouted.Refused != 9 || sum(st, served) != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// The seed alone says which requests fail.
func TestShareOfRequests(t *testing.T) {
	t.Parallel()
	hit := func(seed uint64) (hits string) {
		synctest.Test(t, func(t *testing.T) {
			o := recorded(t)
			o.Seed = seed
			n := serve(t, o)
			n.fail(t, "busy,share=0.25")
			for i := range 80 {
				hits += n.ask(probe("chat", false, i), time.Second)[:1]
			}
		})
		return hits
	}
	first := hit(1)
	if again := hit(1); again != first {
		t.Error("one seed gives two patterns")
	}
	if hit(2) == first {
		t.Error("two seeds give one pattern")
	}
	if n := strings.Count(first, "5"); n < 10 || n > 30 {
		t.Errorf("%d of 80 requests failed, want about 20", n)
	}
}

func TestBrokenMetricsPages(t *testing.T) {
	t.Parallel()
	checks := map[string]func(status int, header http.Header, body []byte) error{
		pageError: func(status int, _ http.Header, _ []byte) error { return when(status != 500, "not 500") },
		pageEmpty: func(status int, _ http.Header, body []byte) error {
			return when(status != 200 || len(body) > 0, "not an empty 200")
		},
		pageHTML: func(status int, h http.Header, body []byte) error {
			return when(status != 200 || h.Get("Content-Type") != "text/html" || !bytes.Contains(body, []byte("<html>")), "not HTML")
		},
		pageHuge: func(_ int, _ http.Header, body []byte) error {
			return when(len(body) < 5<<20 || !bytes.Contains(body, []byte("\nvllm:num_requests_running{")), "not huge and whole")
		},
		pageNaN: func(_ int, _ http.Header, body []byte) error {
			return when(!bytes.Contains(body, []byte(`vllm:num_requests_running{engine="0",model_name="tiny"} NaN`+"\n")) ||
				bytes.Contains(body, []byte(" 0.0\n")) || !bytes.Contains(body, []byte("# TYPE vllm:num_requests_running gauge\n")), "not NaN")
		},
		pageGzip: func(_ int, h http.Header, body []byte) error {
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				return err
			}
			text, err := io.ReadAll(z)
			return errors.Join(err, when(h.Get("Content-Encoding") != "gzip" || !bytes.Contains(text, []byte("\nvllm:num_requests_running{")), "not a page"))
		},
		pageRenamed: func(_ int, _ http.Header, body []byte) error {
			return when(bytes.Contains(body, []byte("\nvllm:num_requests_running{")) || !bytes.Contains(body, []byte("\nvllm:engine_num_requests_running{")), "not renamed")
		},
	}
	if len(checks)+1 != len(pageModes()) {
		t.Errorf("%d of %d modes are tested", len(checks)+1, len(pageModes()))
	}
	for mode, check := range checks {
		synctest.Test(t, func(t *testing.T) {
			n := serve(t, recorded(t))
			n.fail(t, "metrics,count=1,mode="+mode)
			r, body := n.roundTrip(t, []byte("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))
			if err := check(r.StatusCode, r.Header, body); err != nil {
				t.Errorf("%s: %v: %s %.100q", mode, err, r.Status, body)
			}
			if len(n.page(t, "vllm:num_requests_running")) != 2 {
				t.Errorf("%s: the page does not recover", mode)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "metrics,for=1m,mode="+pageHang)
		expect(t, "/metrics", n.get("/metrics"), "nothing")
		expect(t, "/health", n.get("/health"), "200 ")
	})
}

func when(wrong bool, what string) error {
	if wrong {
		return errors.New(what)
	}
	return nil
}

// Several failures of one request all have their way, the later one around the earlier.
func TestFailuresCombine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		n.fail(t, "cut,after=2")
		n.fail(t, "slow-headers,delay=3s")
		sent := time.Now()
		got := n.ask(probe("chat", true, 1), 10*time.Second)
		if took := time.Since(sent); got != "200 and then cut" || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("%s after %s", got, took)
		}
		want := []FailureState{{"cut,after=2", 1}, {"slow-headers,delay=3s", 1}}
		if diff := cmp.Diff(want, n.server.State().Failures); diff != "" {
			t.Error(diff)
		}
	})
}
