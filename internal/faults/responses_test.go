package faults

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// storing is an engine that keeps its responses, as no other knows them: a request
// that goes on from one of another engine is refused.
func storing(t *testing.T, n int) *engine {
	var mu sync.Mutex
	kept := map[string]bool{} // guarded by mu
	return newEngine(t, 1, func(c *call) {
		var asked struct {
			Previous string `json:"previous_response_id"`
		}
		if err := json.Unmarshal(c.body, &asked); err != nil {
			t.Error(err)
		}
		mu.Lock()
		known := asked.Previous == "" || kept[asked.Previous]
		id := fmt.Sprintf("resp_%d_%d", n, len(kept)+1)
		kept[id] = true
		mu.Unlock()
		text := fmt.Sprint("answer ", id)
		switch {
		case !known:
			c.answer(404, `{"error":{"message":"Response with id `+asked.Previous+` not found.","type":"invalid_request_error","param":"response_id","code":404}}`)
		case isStream(c.body):
			c.stream(strings.Split(strings.ReplaceAll(strings.Join(responses.events(text), "\x00"), "resp_1", id), "\x00")...)
		default:
			c.answer(200, strings.ReplaceAll(responses.whole(text), "resp_1", id))
		}
	})
}

// A client that leaves its history to the engine sends nothing but the id of the
// last response. Only one engine has that.
func TestAConversationByItsLastResponseAloneStays(t *testing.T) {
	t.Parallel()
	g := start(t, nil, storing(t, 0), storing(t, 1), storing(t, 2))
	turn := func(text, previous string, stream bool) (a answer, id string) {
		t.Helper()
		more := `,"previous_response_id":null`
		if previous != "" {
			more = `,"previous_response_id":` + quoted(previous)
		}
		a = g.post(responses.path, responses.request(text, stream, more))
		if a.status != 200 {
			t.Fatalf("after %q: %d %s", previous, a.status, a.body)
		}
		at := strings.LastIndex(a.body, `"id":"resp_`)
		id, _, _ = strings.Cut(a.body[at+len(`"id":"`):], `"`)
		return a, id
	}
	const conversations, turns = 9, 4
	names, last, homes := map[string]bool{}, make([]string, conversations), make([]string, conversations)
	for n := range turns {
		for i := range conversations {
			text := "go on" // the same for all, which tells nothing
			if n == 0 {
				text = fmt.Sprint("conversation ", i)
			}
			a, id := turn(text, last[i], (n+i)%2 == 0)
			if n == 0 {
				homes[i] = a.replica()
			} else if a.decision() != "stayed" || a.replica() != homes[i] {
				t.Errorf("turn %d of conversation %d: %s on replica %s, its home is %s", n, i, a.decision(), a.replica(), homes[i])
			}
			last[i] = id
			names[a.header.Get("X-Warden-Conversation")] = true
		}
	}
	if len(names) != conversations {
		t.Errorf("%d conversations, want %d", len(names), conversations)
	}
	g.settled(map[string]int{"ok": conversations * turns})
}
