package llmapi

import (
	"bytes"

	"github.com/cespare/xxhash/v2"
)

// Role of a normalised message.
type Role uint8

const (
	RoleOther     Role = iota
	RoleSystem         // system and developer
	RoleUser           // user, tool results included
	RoleAssistant      // a model's answer, its tool calls included
)

// Message is one message of a request's history after normalisation: equal
// messages of one conversation have equal hashes in every turn, whatever the
// client changes around them (cache marks, string or block form, reminder
// blocks, ids, nulls, thinking, private fields, JSON escapes, key order). Hashes
// are the same in every process and may be stored.
type Message struct {
	Hash uint64
	Role Role
	// Empty is set when normalisation left nothing; such a message takes no part
	// in a conversation's history.
	Empty bool
}

// opener collects what users say before the first answer.
type opener struct {
	hash     uint64
	answered bool
}

// history reads the messages, input or prompt of a body.
func (r *reader) history() {
	completions := r.facts.Route == RouteCompletions
	switch r.peek() {
	case '"':
		r.prompt()
	case '[':
		if completions && r.tokenIDs() {
			r.prompt()
			return
		}
		r.facts.Messages = make([]Message, 0, len(r.b)/perMessage)
		r.facts.Sent = make([]Sent, 0, len(r.b)/perMessage)
		for range r.elements {
			switch {
			case completions || r.peek() == '"':
				r.prompt()
			case r.peek() == '{':
				r.message()
			default:
				r.skip()
			}
		}
	default:
		r.skip()
	}
}

// tokenIDs reports whether the array at hand begins with a number.
func (r *reader) tokenIDs() bool {
	ahead := scanner{b: r.b, i: r.i + 1}
	c := ahead.peek()
	return '0' <= c && c <= '9'
}

// prompt reads a bare prompt, text or token ids, as one user message.
func (r *reader) prompt() {
	var m prose
	r.begin()
	if r.peek() == '"' {
		r.text(&m)
	} else {
		m.add(partOther, r.noted())
		m.size = r.i - r.sentAt
	}
	r.append(RoleUser, &m)
}

// message reads one message or input item.
func (r *reader) message() {
	var e entry
	r.begin()
	if len(r.facts.Messages) == 0 {
		e.content.headLeft = r.leading.headLeft
	}
	r.entry(&e)
	if !e.hasRole {
		var m prose
		e.addTo(&m)
		r.append(e.itemRole, &m)
		return
	}
	if e.fromTool {
		var m prose
		m.add(partResult, e.content.hash)
		m.size = e.content.size
		r.append(RoleUser, &m)
		return
	}
	// A message is its content and its calls: clients add and remove private
	// fields beside them.
	m := e.content
	if e.text.parts > 0 {
		m.add(partText, e.text.hash)
	}
	if e.calls.parts > 0 {
		m.add(partCall, e.calls.hash)
	}
	m.size += e.text.size + e.calls.size
	r.append(e.role, &m)
}

// append puts a message at the end of the history or, before there is one, to
// the leading system text.
func (r *reader) append(role Role, m *prose) {
	f := r.facts
	if role == RoleSystem && len(f.Messages) == 0 {
		r.leading.join(m)
		r.system()
		return
	}
	if len(f.Messages) == maxMessages {
		r.fail(r.i, "more than %d messages", maxMessages)
		return
	}
	f.TextBytes += m.size
	msg := Message{Role: role, Hash: fold(uint64(role), m.hash), Empty: m.parts == 0}
	f.Messages = append(f.Messages, msg)
	f.Sent = append(f.Sent, Sent{Hash: fold(msg.Hash, r.sent), At: uint32(r.sentAt), texts: uint32(r.texts)})
	switch {
	case msg.Empty || r.opener.answered:
	case role == RoleAssistant:
		r.opener.answered = true
	case role == RoleUser:
		r.opener.hash = fold(r.opener.hash, msg.Hash)
	}
}

// entry is what we know of a message, an input item, a block of content or a
// tool call. They share their field names, so one reader serves all; what an
// entry is shows only when all its fields are read, since keys have no order.
type entry struct {
	hasRole  bool
	fromTool bool // the role of a tool's result in chat
	role     Role
	itemRole Role // who wrote it when it has no role, by its type
	kind     kind

	text    prose // text, refusal
	content prose // content, output
	calls   prose // tool_calls, function_call

	typeHash, name, args uint64
	callSize             int    // bytes of name and args
	rest                 uint64 // other fields
}

// kind is what an entry's type makes of it.
type kind uint8

const (
	kindOther kind = iota
	kindText
	kindCall
	kindResult
	kindDropped // the model's thinking, which engines do not read again
)

// volatile reports whether clients change at will what stands behind a key of a
// message, and engines do not read it: marks for caches, ids, states.
func volatile(key []byte) bool {
	switch string(key) {
	case "cache_control", "id", "call_id", "tool_call_id", "tool_use_id", "status":
		return true
	}
	return false
}

func (r *reader) entry(e *entry) {
	texts := len(r.facts.texts)
	for key := range r.members {
		switch string(key) {
		case "role":
			e.setRole(r.optionalBytes())
		case "type":
			e.setType(r.optionalBytes())
		case "text", "refusal":
			if r.peek() == '"' {
				r.prose(&e.text)
			} else {
				r.content(&e.text)
			}
		case "content", "output":
			r.content(&e.content)
		case "name":
			e.name = r.sized(&e.callSize)
		case "input", "arguments":
			e.args = r.sized(&e.callSize)
		case "function", "custom": // of a chat tool call, around name and arguments
			if r.peek() == '{' {
				r.entry(e)
			} else {
				r.skip()
			}
		case "tool_calls":
			if r.peek() == '[' {
				for range r.elements {
					r.call(&e.calls)
				}
			} else {
				r.skip()
			}
		case "function_call": // of chat, before there were tool_calls
			r.call(&e.calls)
		default:
			if volatile(key) {
				r.skip()
				continue
			}
			k, at := xxhash.Sum64(key), r.i
			if v := r.value(); v != 0 {
				e.rest += fold(k, v)
				if e.kind == kindOther && !e.hasRole { // else it does not count
					r.note(at)
				}
			}
		}
	}
	if e.kind == kindDropped {
		r.facts.texts = r.facts.texts[:texts]
	}
}

// setRole takes the word of a role field.
func (e *entry) setRole(word []byte) {
	e.hasRole = true
	switch string(word) {
	case "system", "developer":
		e.role = RoleSystem
	case "user":
		e.role = RoleUser
	case "tool", "function":
		e.role, e.fromTool = RoleUser, true
	case "assistant":
		e.role = RoleAssistant
	}
}

// setType takes the word of a type field.
func (e *entry) setType(word []byte) {
	e.typeHash = xxhash.Sum64(word)
	switch string(word) {
	case "text", "input_text", "output_text", "refusal":
		e.kind = kindText
	case "thinking", "redacted_thinking", "reasoning":
		e.kind, e.itemRole = kindDropped, RoleAssistant
	case "tool_use", "function_call", "custom_tool_call":
		e.kind, e.itemRole = kindCall, RoleAssistant
	case "tool_result":
		e.kind, e.itemRole = kindResult, RoleUser
	default:
		switch {
		case bytes.HasSuffix(word, []byte("_call")):
			e.itemRole = RoleAssistant
		case bytes.HasSuffix(word, []byte("_call_output")):
			e.kind, e.itemRole = kindResult, RoleUser
		}
	}
}

// addTo adds what normalisation keeps of the entry as one part.
func (e *entry) addTo(p *prose) {
	switch e.kind {
	case kindDropped:
	case kindText:
		p.join(&e.text)
	case kindCall:
		p.add(partCall, fold(e.name, e.args))
		p.size += e.callSize
	case kindResult:
		p.add(partResult, e.content.hash)
		p.size += e.content.size
	case kindOther:
		h := e.typeHash
		for _, v := range [...]uint64{e.text.hash, e.content.hash, e.name, e.args, e.rest} {
			h = fold(h, v)
		}
		p.add(partOther, h)
		p.size += e.text.size + e.content.size + e.callSize
	}
}

// content reads text, a list of blocks, or one block.
func (r *reader) content(p *prose) {
	switch r.peek() {
	case '"':
		r.text(p)
	case '{':
		r.block(p)
	case '[':
		for range r.elements {
			r.content(p)
		}
	default:
		if v := r.noted(); v != 0 {
			p.add(partOther, v)
		}
	}
}

func (r *reader) text(p *prose) {
	q := prose{headLeft: p.headLeft}
	r.prose(&q)
	p.join(&q)
}

// begin starts on a message or the system text.
func (r *reader) begin() {
	r.peek()
	r.sent, r.sentAt, r.texts = 0, r.i, len(r.facts.texts)
}

// system ends the reading of a system text: what was noted of it is moved.
func (r *reader) system() {
	f := r.facts
	f.SystemSent = fold(f.SystemSent, r.sent)
	f.SystemTexts = append(f.SystemTexts, f.texts[r.texts:]...)
	f.texts = f.texts[:r.texts]
}

// note notes the value that began at an offset and was just read as a text.
func (r *reader) note(at int) {
	f := r.facts
	if len(f.texts)+len(f.SystemTexts) == maxTexts {
		return
	}
	if f.texts == nil {
		f.texts = make([]Text, 0, len(r.b)/perText)
	}
	f.texts = append(f.texts, Text{uint32(at), uint32(r.i)})
}

// noted reads the value that begins here and notes it; null says nothing.
func (r *reader) noted() uint64 {
	at := r.i
	v := r.value()
	if v != 0 {
		r.note(at)
	}
	return v
}

// attribution begins the line that Claude Code puts before its system text.
var attribution = []byte("x-anthropic-billing-header:")

// prose reads a string as text, and notes it as it was sent.
func (r *reader) prose(p *prose) {
	at := r.i
	text := r.string()
	r.note(at)
	if bytes.HasPrefix(text, attribution) {
		line, _, _ := bytes.Cut(text, []byte(`\n`))
		r.facts.Attribution = xxhash.Sum64(line)
	}
	r.sent = fold(r.sent, p.addProse(text))
}

func (r *reader) block(p *prose) {
	var e entry
	e.text.headLeft = p.headLeft
	r.entry(&e)
	e.addTo(p)
}

// call reads a chat tool call; anything else, null above all, is none.
func (r *reader) call(p *prose) {
	if r.peek() != '{' {
		r.skip()
		return
	}
	var e entry
	r.entry(&e)
	e.kind = kindCall
	e.addTo(p)
}

// sized hashes a value and adds its length in the body to size.
func (r *reader) sized(size *int) uint64 {
	r.peek()
	at := r.i
	v := r.noted()
	*size += r.i - at
	return v
}

// optionalBytes reads a string, valid until the next one; any other value is
// skipped and reads as empty.
func (r *reader) optionalBytes() []byte {
	if r.peek() == '"' {
		return r.string()
	}
	r.skip()
	return nil
}
