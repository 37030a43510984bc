package live

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// adminWithin bounds a call of an admin API.
const adminWithin = 10 * time.Second

// gateway is the gateway's admin API, as far as a measurement needs it. It is for
// one goroutine.
type gateway struct {
	client *http.Client
	admin  *url.URL
	found  modelView // as it was before the measurement
	policy string    // in force
}

// modelView is what GET /api/models/NAME answers.
type modelView struct {
	Name     string
	Policy   string
	Replicas []replicaView
}

type replicaView struct {
	URL   string
	Rank  *int
	State string
}

// find takes note of a model as it is; an empty name is the only one that there is.
func (g *gateway) find(ctx context.Context, name string) (modelView, error) {
	var err error
	g.found, err = g.look(ctx, name)
	g.policy = g.found.Policy
	return g.found, err
}

// look asks for a model, as find does.
func (g *gateway) look(ctx context.Context, name string) (modelView, error) {
	var m modelView
	if name != "" {
		if err := g.call(ctx, "GET", g.at(name), nil, &m); err != nil {
			return modelView{}, err
		}
	} else {
		var all struct{ Models []modelView }
		if err := g.call(ctx, "GET", g.admin.JoinPath("api", "models"), nil, &all); err != nil {
			return modelView{}, err
		}
		if len(all.Models) != 1 {
			var names []string
			for _, m := range all.Models {
				names = append(names, m.Name)
			}
			return modelView{}, fmt.Errorf("the gateway at %s has %d models (%s): say which one", g.admin, len(names), strings.Join(names, ", "))
		}
		m = all.Models[0]
	}
	if m.Name == "" || m.Policy == "" {
		return modelView{}, fmt.Errorf("%s is not the admin API of a gateway: its answer names no model and policy", g.admin)
	}
	return m, nil
}

func (g *gateway) at(model string) *url.URL { return g.admin.JoinPath("api", "models", model) }

// places are the replicas' by index. URLs that cannot be read are left out of
// what needs them.
func (m modelView) places() []place {
	places := make([]place, len(m.Replicas))
	for i, r := range m.Replicas {
		places[i].rank = -1
		if r.Rank != nil {
			places[i].rank = *r.Rank
		}
		if u, err := url.Parse(r.URL); err == nil {
			places[i].engine = u
		}
	}
	return places
}

// engines are the URLs of the replicas, each once, in their order.
func (g *gateway) engines() []*url.URL {
	var urls []*url.URL
	seen := map[string]bool{}
	for _, p := range g.found.places() {
		if p.engine != nil && !seen[p.engine.String()] {
			seen[p.engine.String()] = true
			urls = append(urls, p.engine)
		}
	}
	return urls
}

func (g *gateway) setPolicy(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminWithin)
	defer cancel()
	if err := g.call(ctx, "PATCH", g.at(g.found.Name), map[string]string{"policy": name}, nil); err != nil {
		return err
	}
	g.policy = name
	return nil
}

// restore brings back the policy that was found.
func (g *gateway) restore() error {
	if g.policy == g.found.Policy {
		return nil
	}
	if err := g.setPolicy(g.found.Policy); err != nil {
		return fmt.Errorf("give model %s back its policy %s: %w", g.found.Name, g.found.Policy, err)
	}
	return nil
}

func (g *gateway) call(ctx context.Context, method string, at *url.URL, body, into any) error {
	return callJSON(ctx, g.client, method, at, "", body, into)
}

// callJSON calls an API that speaks JSON. body and into may be nil.
func callJSON(ctx context.Context, client *http.Client, method string, at *url.URL, key string, body, into any) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, at.String(), sent)
	if err != nil {
		return err
	}
	if sent != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := client.Do(req)
	if err != nil {
		return err // names method and URL
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, at, err)
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: status %d: %s", method, at, res.StatusCode, errorText(text))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s %s: the answer is not what was expected: %w", method, at, err)
	}
	return nil
}

// errorText is the message of an error's body, or its beginning.
func errorText(body []byte) string {
	const most = 300
	var e struct {
		Error json.RawMessage
	}
	if json.Unmarshal(body, &e) == nil {
		var nested struct{ Message string }
		var plain string
		if json.Unmarshal(e.Error, &nested) == nil && nested.Message != "" {
			body = []byte(nested.Message)
		} else if json.Unmarshal(e.Error, &plain) == nil && plain != "" {
			body = []byte(plain)
		}
	}
	return string(bytes.ToValidUTF8(bytes.TrimSpace(body[:min(len(body), most)]), nil))
}

// onlyModel is the name of the only model of an endpoint.
func onlyModel(ctx context.Context, client *http.Client, target *url.URL, key string) (string, error) {
	var list struct{ Data []struct{ ID string } }
	base := *target
	base.Path = strings.TrimSuffix(strings.TrimRight(base.Path, "/"), "/v1")
	if err := callJSON(ctx, client, "GET", base.JoinPath("v1", "models"), key, nil, &list); err != nil {
		return "", fmt.Errorf("no model was named, and the list of models cannot be read: %w", err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("no model was named, and %s lists none", target)
	}
	return list.Data[0].ID, nil
}
