package web

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"lmwarden/internal/session"
)

// connectPage has lines to paste for each client, and what arrived from it.
type connectPage struct {
	page
	URL, Model string
	Models     []filterLink
	Clients    []clientGuide
	Arrived    []arrival // from any client, the newest first
}

// clientGuide is how one client program is set up.
type clientGuide struct {
	Name, File, Lines, Note string
	Arrived                 []arrival // what came from it lately
}

// arrival is a conversation that came lately.
type arrival struct {
	Row     rowOnPage
	ByID    bool // recognised by an id that the client sent
	Source  string
	Program string
}

// guides are the clients of docs/clients.md. In their lines {url} and {model}
// stand for the gateway's address and a model. programs are beginnings of the User-Agent
// by which a client is known.
var guides = [...]struct {
	name, file, lines, note string
	programs                []string
}{
	{"Claude Code", "", `export ANTHROPIC_BASE_URL={url}
export ANTHROPIC_AUTH_TOKEN=dummy
export ANTHROPIC_MODEL={model}
export CLAUDE_CODE_GATEWAY_HINT_HEADERS=1
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude -p "what does this repository do?"`, "It sends a session id of its own. With vLLM before 0.18 add export CLAUDE_CODE_ATTRIBUTION_HEADER=0: the line that it removes changes at the start of the prompt, so that nothing behind it is found in the cache again.", []string{"claude"}},
	{"Codex", "~/.codex/config.toml", `model = "{model}"
model_provider = "warden"

[model_providers.warden]
name = "LM Warden"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"`, "Start it with OPENAI_API_KEY=dummy codex exec \"…\".", []string{"codex"}},
	{"opencode", "opencode.json", `{
  "$schema": "https://opencode.ai/config.json",
  "provider": { "warden": {
    "npm": "@ai-sdk/openai-compatible", "name": "LM Warden",
    "options": { "baseURL": "{url}/v1", "apiKey": "dummy" },
    "models": { "{model}": { "name": "{model}" } } } }
}`, "Start it with opencode run --model warden/{model} \"…\".", []string{"opencode", "ai-sdk"}},
	{"Any OpenAI-compatible client", "", `export OPENAI_BASE_URL={url}/v1
export OPENAI_API_KEY=dummy
export OPENAI_MODEL={model}`, "Qwen Code, Cline, Continue, Copilot CLI, aider and others: recognised by the history when they send no id.", nil},
	{"Your own program", "", `curl -si {url}/v1/chat/completions -H 'content-type: application/json' \
  -H 'X-Warden-Session: my-agent-1' \
  -d '{"model":"{model}","messages":[{"role":"user","content":"hello"}],"max_tokens":8}'`, "X-Warden-Session beats every other id.", []string{"curl"}},
}

// pasteable is a model's name as it may stand in a shell's line and in JSON. What
// an engine calls its model is its own choice; a name that would mean something
// there is left for the reader to write.
func pasteable(name string) string {
	if plainModel.MatchString(name) {
		return name
	}
	return "MODEL"
}

var plainModel = regexp.MustCompile(`^[\pL\pN][\pL\pN._/:@+-]*$`)

// lately is how old an arrival may be that the page shows.
const lately = 15 * time.Minute

func (h *Handler) connectPage(w http.ResponseWriter, r *http.Request) {
	pools, names := h.poolsByName()
	model := r.URL.Query().Get("model")
	if model != "" && pools[model] == nil {
		h.notFound(w, r, noSuchModel(model, names))
		return
	}
	p := connectPage{page: h.page(r, navSettings, "Connect a client", "/api/conversations?sort=last_seen"), URL: "http://127.0.0.1:8100", Model: model}
	if h.o.ClientURL != nil {
		p.URL = h.o.ClientURL()
	}
	if p.Model == "" && len(names) > 0 {
		p.Model = names[0]
	}
	if len(names) > 1 {
		for _, n := range names {
			p.Models = append(p.Models, filterLink{n, "/connect" + encoded(map[string][]string{"model": {n}}), n == p.Model})
		}
	}
	list, _, err := h.o.Conversations.Conversations(session.Query{Limit: 50})
	if err != nil {
		p.Warnings = append(p.Warnings, sentenceOf(err.Error()))
	}
	for _, c := range list {
		if p.Now.Sub(c.LastSeen) > lately {
			break
		}
		p.Arrived = append(p.Arrived, arrival{
			Row:  p.Row(h.conversationRow(c, pools[c.Model])),
			ByID: c.Source != "fingerprint" && c.Source != "classifier", Source: c.Source, Program: c.Client,
		})
	}
	fill := strings.NewReplacer("{url}", p.URL, "{model}", pasteable(p.Model))
	for _, g := range guides {
		guide := clientGuide{Name: g.name, File: g.file, Lines: fill.Replace(g.lines), Note: fill.Replace(g.note)}
		for _, a := range p.Arrived {
			for _, program := range g.programs {
				if strings.HasPrefix(strings.ToLower(a.Program), program) && len(guide.Arrived) < 3 {
					guide.Arrived = append(guide.Arrived, a)
					break
				}
			}
		}
		p.Clients = append(p.Clients, guide)
	}
	p.Arrived = p.Arrived[:min(len(p.Arrived), 8)]
	h.render(w, r, http.StatusOK, "connect.html", p)
}
