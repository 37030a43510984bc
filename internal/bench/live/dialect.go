package live

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"lmwarden/internal/bench"
	"lmwarden/internal/llmapi"
)

// Dialect is the format of the requests.
type Dialect string

// The dialects.
const (
	Anthropic Dialect = "anthropic" // POST /v1/messages, as Claude Code sends it
	OpenAI    Dialect = "openai"    // POST /v1/chat/completions
)

// Dialects lists them.
func Dialects() []Dialect { return []Dialect{Anthropic, OpenAI} }

func dialectNames() []string {
	var names []string
	for _, d := range Dialects() {
		names = append(names, string(d))
	}
	return names
}

func (d Dialect) route() llmapi.Route {
	if d == OpenAI {
		return llmapi.RouteChat
	}
	return llmapi.RouteMessages
}

func (d Dialect) path() string {
	if d == OpenAI {
		return "/v1/chat/completions"
	}
	return "/v1/messages"
}

// message is one of a prompt. Its text stands as in a JSON string, quotes left
// out.
type message struct {
	role bench.Role
	text []byte
}

// messagesOf is the prompt of a turn. Answers of the conversation stand as they
// came; what did not come is the text of its span.
func (s *System) messagesOf(t bench.Turn, answers []string) []message {
	all := make([]message, 0, len(t.Messages))
	for _, m := range t.Messages {
		one := message{role: plainRole(m.Role)}
		if n := m.AnswerOf; n > 0 && n <= len(answers) && answers[n-1] != "" {
			one.text = []byte(answers[n-1])
		} else {
			one.text = s.text(m.Spans)
		}
		all = append(all, one)
	}
	return all
}

// plainRole is the role that every engine takes without further fields.
func plainRole(r bench.Role) bench.Role {
	switch r {
	case bench.SystemRole, bench.Assistant:
		return r
	case "developer":
		return bench.SystemRole
	}
	return bench.User
}

func (s *System) text(spans []bench.Span) []byte {
	size := 0
	for _, span := range spans {
		size += span.Tokens * s.o.BytesPerToken
	}
	text := make([]byte, 0, size)
	for _, span := range spans {
		span.ID ^= s.o.Salt
		text = span.AppendText(text, s.o.BytesPerToken)
	}
	return text
}

// body is a request for a streamed answer of at most maxTokens.
func (d Dialect) body(model string, maxTokens int, c identity, messages []message) []byte {
	size := 512
	for _, m := range messages {
		size += len(m.text) + 64
	}
	b := make([]byte, 0, size)
	b = append(b, `{"model":`...)
	b = append(b, quoted(model)...)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(max(maxTokens, 1)), 10)
	b = append(b, `,"stream":true`...)
	if d == OpenAI {
		b = append(b, `,"stream_options":{"include_usage":true}`...)
	} else {
		if c.session != "" {
			b = append(b, `,"metadata":{"user_id":`...)
			b = append(b, quoted(fmt.Sprintf(`{"device_id":"%064x","account_uuid":"","session_id":"%s"}`, 0, c.session))...)
			b = append(b, '}')
		}
		// Leading system text has a field of its own, and elsewhere no place.
		leading := 0
		for leading < len(messages)-1 && messages[leading].role == bench.SystemRole {
			leading++
		}
		if leading > 0 {
			b = append(b, `,"system":[`...)
			for i, m := range messages[:leading] {
				if i > 0 {
					b = append(b, ',')
				}
				b = append(b, `{"type":"text","text":"`...)
				b = append(append(b, m.text...), `"}`...)
			}
			b = append(b, ']')
			messages = messages[leading:]
		}
	}
	b = append(b, `,"messages":[`...)
	for i, m := range messages {
		if i > 0 {
			b = append(b, ',')
		}
		role := m.role
		if role == bench.SystemRole && (d == Anthropic || i == len(messages)-1) {
			role = bench.User
		}
		b = append(b, `{"role":"`...)
		b = append(append(b, role...), `","content":"`...)
		b = append(append(b, m.text...), `"}`...)
	}
	return append(b, `]}`...)
}

// head is the request line and the headers of a body of that length.
func (s *System) head(to *url.URL, c identity, length int) []byte {
	b := make([]byte, 0, 512)
	line := func(name, value string) { b = append(append(append(append(b, name...), ": "...), value...), "\r\n"...) }
	base := strings.TrimSuffix(strings.TrimRight(to.EscapedPath(), "/"), "/v1")
	b = append(b, "POST "+base+s.o.Dialect.path()+" HTTP/1.1\r\n"...)
	line("Host", to.Host)
	line("Content-Type", "application/json")
	line("Content-Length", strconv.Itoa(length))
	line("Accept", "text/event-stream")
	line("User-Agent", s.o.UserAgent)
	if s.o.Dialect == Anthropic {
		line("Anthropic-Version", "2023-06-01")
		if s.o.Key != "" {
			line("X-Api-Key", s.o.Key)
		}
	}
	if s.o.Key != "" {
		line("Authorization", "Bearer "+s.o.Key)
	}
	c.headers(line)
	return append(b, "\r\n"...)
}

// quoted is a text as a JSON string.
func quoted(text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return b
}
