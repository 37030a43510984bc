package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func (n *network) state(t *testing.T) State {
	t.Helper()
	status, body, _ := strings.Cut(n.get("/sim/state"), " ")
	var st State
	if err := json.Unmarshal([]byte(body), &st); err != nil || status != "200" {
		t.Fatalf("%s %s: %v", status, body, err)
	}
	return st
}

// Every request for an answer ends in exactly one count.
func TestEveryRequestHasOneOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		const second = time.Second
		for _, stream := range []bool{false, true} {
			for i, route := range allRoutes {
				n.ask(probe(route, stream, i, rankHeader+": 1"), second) // responses goes where the balancer likes
			}
			n.ask(post("/v1/chat/completions", `{"messages": 1}`), second)
			n.ask(post("/v1/chat/completions", fmt.Sprintf(`{"stream": %t, %s}`, stream, longAnswer), rankHeader+": 0"), second)
		}
		n.get("/v1/models")
		n.ask(post("/v1/messages/count_tokens", `{"model": "tiny", "messages": [{"role": "user", "content": "a"}]}`), second)
		for range 3 {
			go n.ask(post("/v1/chat/completions", `{`+longAnswer+`}`, rankHeader+": 0"), time.Minute)
		}
		go n.ask(post("/v1/messages", `{"model": "tiny", "stream": true, `+longAnswer+`}`, rankHeader+": 1"), time.Minute)
		time.Sleep(second)
		st := n.state(t)
		if st.Ranks[0].Served+st.Ranks[1].Served != 8 || st.Ranks[1].Served < 6 {
			t.Errorf("served: %+v", st)
		}
		st.Ranks[0].Served, st.Ranks[1].Served = 0, 0
		clear(st.CachedTokens) // which block is pushed out when depends on the moment
		want := State{Ranks: []Counts{{Open: 3, Left: 2}, {Open: 1}}, Unrouted: Counts{Refused: 2}, CachedTokens: []int{0, 0}, Failures: []FailureState{}}
		if diff := cmp.Diff(want, st); diff != "" {
			t.Error(diff)
		}
		n.fail(t, "die,rank=1")
		time.Sleep(second)
		go n.ask(pinned(0, false, 1), time.Minute) // hangs
		time.Sleep(10 * time.Second)
		st = n.server.State()
		st.Ranks[0].Served, st.Ranks[1].Served = 0, 0
		clear(st.CachedTokens)
		want.Ranks = []Counts{{Left: 2, Aborted: 3, Failed: 1}, {Failed: 1}}
		if diff := cmp.Diff(want, st); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAbortedRequestsAreInTheMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		go n.ask(post("/v1/chat/completions", `{`+longAnswer+`}`, rankHeader+": 0"), time.Minute)
		time.Sleep(time.Second)
		n.fail(t, "die,rank=1")
		time.Sleep(time.Second)
		got := n.page(t, "vllm:request_success_total")
		if label := `{engine="0",finished_reason="abort",model_name="tiny"}`; got[label] != "1.0" {
			t.Errorf("%s is %s", label, got[label])
		}
	})
}

// Who asks for a failure that cuts all connections is told so first.
func TestAFailureThatCutsItsOwnConnectionIsAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		for range 20 {
			expect(t, "restart", n.ask(post("/sim/fail", `{"kind":"restart","down":"1s"}`), time.Second), `202 {"failure":"restart,down=1s"}`)
			synctest.Wait()
			if got := n.get("/health"); strings.HasPrefix(got, "200") {
				t.Errorf("still there: %s", got)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

func TestFailuresByRoute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.APIKey = "secret" // no concern of the simulation's
		n := serve(t, o)
		for body, want := range map[string]string{
			`{"kind": "reset", "count": 2, "share": 0.5, "reused": true, "path": "/v1/"}`: `202 {"failure":"reset,count=2,path=/v1/,reused=true,share=0.5"}`,
			`{"kind": "freeze", "at": "2s", "rank": 1, "for": "5s"}`:                      `202 {"failure":"freeze,at=2s,for=5s,rank=1"}`,
			`{"kind": "freeze", "rank": 2}`:                                               `400 {"error":"failure \"freeze,rank=2\": there is no rank 2: choose one of 0 to 1"}`,
			`{"kind": "freeze", "for": 5}`:                                                `400 {"error":"failure \"freeze,for=5\": for is \"5\": give a time with its unit`,
			`{"kind": "freeze", "until": 5}`:                                              `400 {"error":"failure \"freeze,until=5\": freeze has no key \"until\": choose from at, rank, for"}`,
			`{"rank": 1}`:                                                                 `400 {"error":"failure \",rank=1\": the kind \"\" does not exist`,
			`["die"]`:                                                                     `400 {"error":"the body is no JSON object like`,
			``:                                                                            `400 {"error":"the body is no JSON object like`,
		} {
			expect(t, body, n.ask(post("/sim/fail", body), time.Second), want)
		}
		synctest.Wait()
		want := []FailureState{{"reset,count=2,path=/v1/,reused=true,share=0.5", 0}}
		if diff := cmp.Diff(want, n.state(t).Failures); diff != "" {
			t.Error(diff)
		}
		time.Sleep(3 * time.Second)
		expect(t, "the frozen rank", n.ask(append([]byte(nil), probe("chat", false, 1, rankHeader+": 1", "Authorization: Bearer secret")...), time.Second), "nothing")
		for _, path := range []string{"/sim", "/sim/", "/sim/fail", "/sim/else"} {
			expect(t, path, n.get(path), "404 ")
		}
	})
}
