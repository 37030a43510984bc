package doctor

import (
	"net"
	"strings"
	"testing"

	"lmwarden/internal/engine"
	"lmwarden/internal/enginesim/server"
	"lmwarden/internal/kvevents"
	"lmwarden/internal/llmapi"
)

// publishing listens for the KV events of so many ranks.
func publishing(t *testing.T, ranks int) (ports []server.KVPort, of func(rank int) kvevents.Source) {
	t.Helper()
	for range ranks {
		var port server.KVPort
		for _, l := range []*net.Listener{&port.Events, &port.Replay} {
			var err error
			if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
				t.Fatal(err)
			}
		}
		ports = append(ports, port)
	}
	return ports, func(rank int) kvevents.Source {
		return kvevents.Source{Events: ports[rank].Events.Addr().String(), Replay: ports[rank].Replay.Addr().String()}
	}
}

func TestKVEventsAreHeldAgainstWhatAPromptLeaves(t *testing.T) {
	ports, of := publishing(t, 2)
	base := simulated(t, server.Options{Replicas: 2, KVEvents: ports})
	client := engine.NewClient()
	defer client.CloseIdleConnections()
	for range 2 { // also when there is something to replay
		r, err := Examine(t.Context(), client, Engine{Base: base, KVEvents: of})
		if err != nil {
			t.Fatal(err)
		}
		if !has(r.Findings, Good, "KV events fit") {
			t.Errorf("%+v", r.Findings)
		}
	}
	gone := func(rank int) kvevents.Source {
		if from := of(rank); rank == 0 {
			return from
		}
		return kvevents.Source{Events: "127.0.0.1:1"}
	}
	r, err := Examine(t.Context(), client, Engine{Base: base, KVEvents: gone})
	if err != nil || !has(r.Findings, Missing, "KV events of rank 1 do not come") {
		t.Errorf("%v: %+v", err, r.Findings)
	}
	_, port, _ := strings.Cut(of(0).Events, ":")
	if n, err := net.LookupPort("tcp", port); err != nil || offersKV(t.Context(), base, n).offered != "tcp://"+of(0).Events {
		t.Errorf("that %s publishes is not seen", of(0).Events)
	}
	if k := offersKV(t.Context(), base, 1); k.offered != "" {
		t.Errorf("%+v", k)
	}
}

func TestJudgementOfKVEvents(t *testing.T) {
	heard := func(stored, left int64) kvSeen {
		return kvSeen{configured: true, ranks: []kvevents.View{{Connected: true, Complete: true}}, stored: stored, left: left}
	}
	incomplete := heard(272, 272)
	incomplete.ranks[0].Complete = false
	for _, test := range []struct {
		name  string
		seen  kvSeen
		level Level
		says  string
	}{
		{"off", kvSeen{}, Advice, "no KV events"},
		{"nobody listens", kvSeen{offered: "tcp://gpu:5557"}, Advice, "nobody listens"},
		{"fits", heard(272, 272), Good, "leaves 272 tokens in blocks of 16"},
		{"others as well", heard(900, 272), Good, "with those of others 900 came"},
		{"too little", heard(16, 272), Advice, "tell of 16 tokens"},
		{"none", heard(0, 272), Missing, "brought none"},
		{"not measured", heard(272, -1), Good, "272 tokens more"},
		{"no replay", incomplete, Advice, "before somebody listened"},
	} {
		var j judgements
		j.kvEvents(remediesFor("vllm"), test.seen, 16)
		if !has(j, test.level, test.says) {
			t.Errorf("%s: no %v that %q in %+v", test.name, test.level, test.says, j)
		}
		for _, f := range j {
			if f.Level != Good && f.Remedy == "" {
				t.Errorf("%s: no remedy for: %s", test.name, f.Says)
			}
		}
		j = nil
		if j.kvEvents(remediesFor("llama.cpp"), test.seen, 16); len(j) > 0 {
			t.Errorf("%s: llama.cpp has no KV events: %+v", test.name, j)
		}
	}
}

func TestWhatAPromptLeaves(t *testing.T) {
	told := llmapi.Usage{Known: true, Prompt: 287, Cached: 32, CacheState: llmapi.CacheReported}
	for _, test := range []struct {
		usage llmapi.Usage
		block int
		want  int64
	}{{told, 16, 240}, {told, 0, -1}, {llmapi.Usage{Known: true, Prompt: 287}, 16, -1}, {llmapi.Usage{}, 16, -1}} {
		if got := leaves(test.usage, test.block); got != test.want {
			t.Errorf("%+v in blocks of %d: %d, want %d", test.usage, test.block, got, test.want)
		}
	}
}
