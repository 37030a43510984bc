package wardentest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"
)

// Gateway is a running warden serve.
type Gateway struct {
	*Process
	URL   string // for clients
	Admin string
}

// Gateway runs a gateway in front of engines and waits until it is ready.
func (b Binary) Gateway(t *testing.T, engines []string, args ...string) *Gateway {
	t.Helper()
	all := []string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"}
	for _, e := range engines {
		all = append(all, "--engine", e)
	}
	p, addresses := b.Start(t, 2, append(all, args...)...)
	g := &Gateway{Process: p, URL: addresses["clients"], Admin: addresses["admin"]}
	WaitFor(t, 20*time.Second, "the gateway to be ready", g.Ready)
	return g
}

// Ready is an error as long as a model has no replica that is up.
func (g *Gateway) Ready() error {
	_, err := fetch(http.MethodGet, g.Admin+"/readyz", nil)
	return err
}

// Conversation is a row of GET /api/conversations.
type Conversation struct {
	ID           string `json:"id"`
	Home         *int   `json:"home"`
	Turns        int    `json:"turns"`
	PromptTokens int64  `json:"prompt_tokens"`
	CachedTokens int64  `json:"cached_tokens"`
	Source       string `json:"source"`
	Client       string `json:"client"`
	Parent       string `json:"parent"`
	InFlight     int    `json:"in_flight"`
	Spills       int    `json:"spills"`
	Moves        int    `json:"moves"`
}

// Decision is a receipt of GET /api/decisions.
type Decision struct {
	Time         time.Time `json:"time"`
	RequestID    string    `json:"request_id"`
	Conversation string    `json:"conversation"`
	Replica      *int      `json:"replica"`
	Reason       string    `json:"reason"`
}

// Model is the answer of GET /api/models/{name}.
type Model struct {
	Name       string   `json:"name"`
	Affinity   string   `json:"affinity"`
	Sticky     *float64 `json:"sticky_percent"`
	InFlight   int      `json:"in_flight"`
	WorkingSet struct {
		Capacity *int64 `json:"capacity_tokens"`
	} `json:"working_set"`
	Replicas []Replica `json:"replicas"`
	Servers  []struct {
		Kind    string   `json:"kind"`
		Version string   `json:"version"`
		Error   string   `json:"error"`
		Blind   []string `json:"rank_ignored_on"`
	} `json:"servers"`
}

// Replica is a replica of a Model.
type Replica struct {
	Index    int    `json:"index"`
	Rank     *int   `json:"rank"`
	State    string `json:"state"`
	InFlight int    `json:"in_flight"`
	Placed   int    `json:"placed"`
	Sticky   int    `json:"sticky"`
	Live     int    `json:"live_conversations"`
	Epoch    *int   `json:"epoch"`
}

// Conversations returns all of them.
func (g *Gateway) Conversations(t *testing.T) []Conversation {
	t.Helper()
	var page struct{ Conversations []Conversation }
	g.call(t, http.MethodGet, "/api/conversations?limit=1000", nil, &page)
	return page.Conversations
}

// Decisions returns the receipts, oldest first.
func (g *Gateway) Decisions(t *testing.T) []Decision {
	t.Helper()
	var page struct{ Decisions []Decision }
	g.call(t, http.MethodGet, "/api/decisions?limit=1000", nil, &page)
	slices.Reverse(page.Decisions)
	return page.Decisions
}

// Model returns a model as the admin API shows it.
func (g *Gateway) Model(t *testing.T, name string) Model {
	t.Helper()
	var m Model
	g.call(t, http.MethodGet, "/api/models/"+name, nil, &m)
	return m
}

// Page returns a page of the console.
func (g *Gateway) Page(t *testing.T, path string) string {
	t.Helper()
	body, err := fetch(http.MethodGet, g.Admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// SetAffinity switches a model's affinity "on" or "off".
func (g *Gateway) SetAffinity(t *testing.T, model, affinity string) {
	t.Helper()
	var m Model
	g.call(t, http.MethodPatch, "/api/models/"+model, map[string]string{"affinity": affinity}, &m)
	if m.Affinity != affinity {
		t.Fatalf("affinity of %s is %q after it was set to %q", model, m.Affinity, affinity)
	}
}

// call is a request to the admin API.
func (g *Gateway) call(t *testing.T, method, path string, in, into any) {
	t.Helper()
	body, err := fetch(method, g.Admin+path, in)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, body)
	}
}

// fetch returns the body of an answer that has to be 200. A request body is sent
// as JSON unless it is nil.
func fetch(method, url string, in any) ([]byte, error) {
	var send io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		send = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, url, send)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: status %d: %s", method, url, res.StatusCode, body)
	}
	return body, nil
}
