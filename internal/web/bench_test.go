package web

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/session"
)

// A page of a table with a million conversations, as at its bound: the first byte is
// sent when the page is made. Budget: 200 ms.
func BenchmarkAMillionConversations(b *testing.B) {
	const million = 1_000_000
	table, err := session.New(session.Options{MaxConversations: million})
	if err != nil {
		b.Fatal(err)
	}
	p := box()
	p.view.Routing.Known = million
	p.homes, p.homed = make(map[session.Key]Home, million), map[int][]session.Key{}
	facts := llmapi.Facts{Route: llmapi.RouteChat, Tools: 1, TextBytes: 9000, Messages: []llmapi.Message{{Role: llmapi.RoleUser}}}
	var name string
	for i := range million {
		facts.Messages[0].Hash = uint64(i)
		id := table.Identify(now.Add(time.Duration(i-million)*time.Millisecond), session.Request{
			Model: p.view.Name, Header: http.Header{"X-Session-Id": {fmt.Sprint("session-", i)}}, Facts: &facts,
		})
		// A replica that few live on is the hardest to list.
		home := Home{Replica: i % 3}
		if i%10_000 == 0 {
			home.Replica = 3
		}
		p.homes[id.Key], name = home, id.Key.Name()
		p.homed[home.Replica] = append(p.homed[home.Replica], id.Key)
	}
	h := newHandler(b, nil, []Pool{p}, func(o *Options) { o.Conversations = table })
	_, next, err := table.Conversations(session.Query{Limit: 1000})
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []string{
		"/", "/models/" + p.view.Name, "/conversations", "/conversations?cursor=" + next, "/conversations?sort=turns",
		"/conversations?replica=1", "/conversations?replica=3", "/conversations/" + name, "/api/conversations?limit=1000",
	} {
		b.Run(path, func(b *testing.B) {
			for b.Loop() {
				if w := call(h, "GET", path, ""); w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
