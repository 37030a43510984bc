package enginesim

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Message is one message of a chat, whatever API it came by.
type Message struct {
	Role      string // system, user, assistant, tool, ...
	Content   string // parts of text joined by a newline, as vLLM does
	ToolCalls []ToolCall
}

// ToolCall is a call that an assistant's message makes.
type ToolCall struct {
	Name string
	// Arguments is a JSON value; empty is {}.
	Arguments json.RawMessage
}

// Render returns the prompt that the recorded model's chat template makes of a
// chat: ChatML in the manner of Qwen, with the tool definitions (JSON values) in
// the system message, and the opening of the answer if generate is set. A longer
// history extends a shorter one: contents, calls and marks are runs of their own.
func (t Tokenizer) Render(msgs []Message, tools []json.RawMessage, generate bool) []Token {
	size := 0
	for _, m := range msgs {
		size += len(m.Content)/t.BytesPerToken + 32
	}
	p := prompt{Tokenizer: t, tokens: make([]Token, 0, size)}

	if len(msgs) > 0 && msgs[0].Role == "system" && len(tools) == 0 {
		p.message("system", msgs[0].Content)
	}
	if len(tools) > 0 {
		p.toolsMessage(msgs, tools)
	}
	for i, m := range msgs {
		switch {
		case i == 0 && m.Role == "system":
		case m.Role == "tool":
			p.message("user", "<tool_response>\n", m.Content, "\n</tool_response>")
		default:
			p.open(m.Role)
			p.answer(m)
			p.close()
		}
	}
	if generate {
		p.open("assistant")
	}
	return p.tokens
}

// Answer returns the tokens that a model generates for an assistant's message,
// without the mark that ends it. They are the ones that Render gives when the
// client sends the message back.
func (t Tokenizer) Answer(m Message) []Token {
	p := prompt{Tokenizer: t}
	p.answer(m)
	return p.tokens
}

// prompt is a prompt under construction.
type prompt struct {
	Tokenizer
	tokens []Token
}

func (p *prompt) run(text string) { p.tokens = p.Append(p.tokens, text) }

func (p *prompt) open(role string) {
	p.tokens = append(p.tokens, StartOfMessage)
	p.run(role + "\n")
}

func (p *prompt) close() {
	p.tokens = append(p.tokens, EndOfMessage)
	p.run("\n")
}

func (p *prompt) message(role string, runs ...string) {
	p.open(role)
	for _, text := range runs {
		p.run(text)
	}
	p.close()
}

func (p *prompt) toolsMessage(msgs []Message, tools []json.RawMessage) {
	p.open("system")
	if len(msgs) > 0 && msgs[0].Role == "system" {
		p.run(msgs[0].Content)
		p.run("\n\n")
	}
	p.run("# Tools\n\nYou may call one or more functions.\n<tools>")
	for _, tool := range tools {
		p.run("\n" + templateJSON(tool))
	}
	p.run("\n</tools>\nAnswer a call as <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call>")
	p.close()
}

func (p *prompt) answer(m Message) {
	p.run(m.Content)
	for _, call := range m.ToolCalls {
		arguments := "{}"
		if len(call.Arguments) > 0 {
			arguments = templateJSON(call.Arguments)
		}
		p.run("\n<tool_call>\n{\"name\": \"" + call.Name + "\", \"arguments\": " + arguments + "}\n</tool_call>")
	}
}

// templateJSON writes a JSON value as the tojson filter of chat templates does:
// Python's json.dumps with a space after commas and colons, keys in their order,
// and nothing escaped that need not be. Numbers stay as they are written. What
// is not JSON is returned unchanged.
func templateJSON(raw json.RawMessage) string {
	if !json.Valid(raw) {
		return string(raw)
	}
	var out strings.Builder
	out.Grow(len(raw) + len(raw)/8)
	for i := 0; i < len(raw); {
		switch c := raw[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case ',', ':':
			out.WriteByte(c)
			out.WriteByte(' ')
			i++
		case '"':
			end := stringEnd(raw, i)
			writeString(&out, raw[i:end])
			i = end
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.String()
}

// stringEnd returns the position behind the JSON string that starts at i.
func stringEnd(raw []byte, i int) int {
	for i++; raw[i] != '"'; i++ {
		if raw[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func writeString(out *strings.Builder, quoted []byte) {
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		out.Write(quoted)
		return
	}
	out.WriteByte('"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			out.WriteByte('\\')
			out.WriteByte(c)
		case c == '\n':
			out.WriteString(`\n`)
		case c == '\r':
			out.WriteString(`\r`)
		case c == '\t':
			out.WriteString(`\t`)
		case c == '\b':
			out.WriteString(`\b`)
		case c == '\f':
			out.WriteString(`\f`)
		case c < ' ':
			fmt.Fprintf(out, `\u%04x`, c)
		default:
			out.WriteByte(c)
		}
	}
	out.WriteByte('"')
}
