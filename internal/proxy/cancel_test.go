package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"lmwarden/internal/session"
)

// An operator ends a conversation's open requests: the engine stops, and the
// client, which is still there, sees that its answer broke off.
func TestCancelEndsTheOpenRequestsOfAConversation(t *testing.T) {
	chat := scripts["/v1/chat/completions"]
	for _, tt := range []struct{ name, body, begin string }{
		{"before the answer", chatBody, ""},
		{"in the middle of a stream", chat.body, chat.events[0]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			arrived, stopped := make(chan bool), make(chan bool)
			g := newGateway(t, Limits{}, fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if tt.begin != "" {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, tt.begin)
					w.(http.Flusher).Flush()
				}
				close(arrived)
				<-r.Context().Done()
				close(stopped)
			}))
			req, err := http.NewRequestWithContext(t.Context(), "POST", g.url+"/v1/chat/completions", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Warden-Session", "one")
			ended := make(chan error)
			go func() {
				res, err := g.client.Do(req)
				if err == nil {
					_, err = io.ReadAll(res.Body)
					res.Body.Close()
				}
				ended <- err
			}()
			<-arrived
			if n := g.Cancel(session.Key{1}); n != 0 {
				t.Errorf("%d requests of a conversation that has none were cancelled", n)
			}
			g.model.mu.Lock()
			key := session.Key(g.model.requests[0].Key)
			g.model.mu.Unlock()
			if n := g.Cancel(key); n != 1 {
				t.Errorf("%d requests were cancelled", n)
			}
			<-stopped
			if err := <-ended; err == nil {
				t.Error("the client saw an answer that looks finished")
			}
			if r := g.record(t); r.Outcome != Cancelled || r.Error != "cancelled by an operator" {
				t.Errorf("recorded as %s: %s", r.Outcome, r.Error)
			}
			g.settled(t)
			if n := g.Cancel(key); n != 0 {
				t.Errorf("%d ended requests were cancelled again", n)
			}
			if len(g.enlisted.of) != 0 {
				t.Errorf("%d conversations are kept", len(g.enlisted.of))
			}
		})
	}
}
