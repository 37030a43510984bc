package llmapi

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Facts are what one pass over a request's body finds.
type Facts struct {
	Route  Route
	Model  string // empty when absent or null
	Stream bool
	// IncludeUsage says that the client itself asked for usage in its stream.
	IncludeUsage bool
	MaxTokens    int64 // max_completion_tokens, max_tokens or max_output_tokens; 0 when absent
	IDs          BodyIDs
	// Messages is the normalised history in order: chat and messages by message,
	// responses by input item, completions as one user message per prompt.
	// Leading system text is not part of it.
	Messages []Message
	// SystemHash covers the leading system text (system or instructions, and
	// leading system and developer messages) without the billing line. SystemHead
	// covers only the first 4,096 characters of the field and of the messages
	// each, which some clients keep stable when the rest changes. Zero when there
	// is none.
	SystemHash, SystemHead uint64
	// Sent is the same history as it was sent, for telling where two prompts part:
	// what normalisation leaves out of a text counts, cache marks and ids do not.
	Sent []Sent
	// SystemSent is the leading system text as it was sent, ToolsSent the offered
	// tools byte for byte; Attribution is the line that Claude Code puts before its
	// system text, which some versions change with every request. Hashes, zero for
	// none.
	SystemSent, ToolsSent, Attribution uint64
	// SystemTexts is where the leading system text stands in the body, ToolsTexts
	// where the offered tools do; TextsOf tells it of a message.
	SystemTexts, ToolsTexts []Text
	// OpenerHash covers all that users said before the first answer of the model;
	// zero when that is nothing.
	OpenerHash uint64
	// Tools is the number of tools offered; FormatAsked says that the request
	// wants a structured answer (output_config.format, response_format,
	// text.format), as title calls do.
	Tools       int
	FormatAsked bool
	// Unstored says that the engine is not to keep the answer (store is false), so
	// that none can be continued by its id.
	Unstored bool
	// TextBytes counts the prompt's text: system, messages, tool calls and results
	// and the offered tools. Thinking, images and other media are left out.
	TextBytes int

	texts  []Text // of all messages
	layout layout
}

// Sent is a message as it was sent.
type Sent struct {
	Hash  uint64
	At    uint32 // its offset in the body
	texts uint32 // where its texts begin in those of the facts
}

// Text is a value in a body, from its first byte to behind its last, that an
// engine reads as text.
type Text struct{ From, To uint32 }

// TextsOf is where the text of Sent[i] stands in the body, in order. Cache marks,
// ids and thinking are no text.
func (f *Facts) TextsOf(i int) []Text {
	end := len(f.texts)
	if i+1 < len(f.Sent) {
		end = int(f.Sent[i+1].texts)
	}
	return f.texts[f.Sent[i].texts:end]
}

// BodyIDs are the identity fields of a body, as sent; empty when absent or not
// a string.
type BodyIDs struct {
	MetadataUserID     string // metadata.user_id
	MetadataSessionID  string // metadata.session_id
	PromptCacheKey     string
	SessionID          string // session_id
	LiteLLMSessionID   string // litellm_session_id
	ClientThreadID     string // client_metadata.thread_id
	ClientSessionID    string // client_metadata.session_id
	Conversation       string // conversation, or conversation.id
	ConversationID     string // conversation_id
	PreviousResponseID string
}

// BadRequest says why a body is refused, in words for the client.
type BadRequest struct {
	Offset  int // of the offending byte in the body
	Message string
}

func (e *BadRequest) Error() string {
	return fmt.Sprintf("request body, byte %d: %s", e.Offset, e.Message)
}

// What is remembered of a body must not outgrow the body: real ones have some 30
// keys at the top and some thousand messages. Texts beyond theirs are not noted.
const (
	maxKeys     = 1000
	maxMessages = 100_000
	maxTexts    = 100_000
)

// Agents send a message and some texts in so many bytes: where room is made for
// them at once, Parse allocates less.
const (
	perMessage = 2048
	perText    = 1024
)

// Parse reads a request's body in one pass. It refuses, always with a
// *BadRequest, what is not one JSON object in valid UTF-8, what repeats a
// top-level key (engines take the last of two, so checks on the first would be
// void), what nests deeper than 512 levels, has more than 1,000 top-level keys,
// 100,000 messages or 4 GiB, and a model or stream of the wrong type. Everything
// else is the engine's to judge: unknown fields, blocks and roles are read over.
func Parse(route Route, body []byte) (*Facts, error) {
	f := &Facts{Route: route}
	r := reader{scanner: scanner{b: body, strict: true}, facts: f}
	r.body()
	if r.err != nil {
		return nil, r.err
	}
	return f, nil
}

// reader fills Facts from a body.
type reader struct {
	scanner
	facts *Facts

	field   prose // the system or instructions field
	leading prose // leading system messages
	opener  opener
	sent    uint64 // of the text of the message or system text at hand
	sentAt  int
	texts   int // how many texts there were before it
	// maxTokens by field; an engine prefers max_completion_tokens.
	maxTokens, maxCompletionTokens int64
}

func (r *reader) body() {
	if uint64(len(r.b)) > math.MaxUint32 {
		r.fail(0, "more than 4 GiB")
		return
	}
	if bytes.HasPrefix(r.b, []byte("\xef\xbb\xbf")) {
		r.fail(0, "it begins with a byte order mark; send plain UTF-8 without one")
		return
	}
	if c := r.peek(); c != '{' {
		r.unexpected("a JSON object")
		return
	}
	r.field.headLeft, r.leading.headLeft = headChars, headChars
	r.facts.layout.root.open = r.i + 1

	seen := make([]uint64, 0, 32) // hashes of keys, so few that a map would take longer
	for key := range r.members {
		hash := xxhash.Sum64(key)
		if slices.Contains(seen, hash) {
			r.fail(r.keyAt, "the key %.60q appears more than once", key)
			return
		}
		if len(seen) == maxKeys {
			r.fail(r.keyAt, "more than %d keys", maxKeys)
			return
		}
		seen = append(seen, hash)
		r.member(key)
	}
	r.facts.layout.root.empty = len(seen) == 0
	r.end()

	f := r.facts
	f.MaxTokens = r.maxTokens
	if r.maxCompletionTokens != 0 {
		f.MaxTokens = r.maxCompletionTokens
	}
	f.OpenerHash = r.opener.hash
	if r.field.parts+r.leading.parts > 0 {
		f.SystemHash = fold(r.field.hash, r.leading.hash)
		f.SystemHead = fold(r.field.head, r.leading.head)
	}
	f.TextBytes += r.field.size + r.leading.size
}

// member reads one top-level member.
func (r *reader) member(key []byte) {
	f := r.facts
	switch string(key) {
	case "model":
		r.model()
	case "stream":
		r.stream()
	case "stream_options":
		r.streamOptions()
	case "max_tokens", "max_output_tokens":
		r.maxTokens = r.count()
	case "max_completion_tokens":
		r.maxCompletionTokens = r.count()
	case "metadata":
		r.fields(func(key []byte) {
			switch string(key) {
			case "user_id":
				f.IDs.MetadataUserID = r.word()
			case "session_id":
				f.IDs.MetadataSessionID = r.word()
			default:
				r.skip()
			}
		})
	case "client_metadata":
		r.fields(func(key []byte) {
			switch string(key) {
			case "thread_id":
				f.IDs.ClientThreadID = r.word()
			case "session_id":
				f.IDs.ClientSessionID = r.word()
			default:
				r.skip()
			}
		})
	case "conversation":
		if r.peek() == '{' {
			r.fields(func(key []byte) {
				if string(key) == "id" {
					f.IDs.Conversation = r.word()
				} else {
					r.skip()
				}
			})
		} else {
			f.IDs.Conversation = r.word()
		}
	case "conversation_id":
		f.IDs.ConversationID = r.word()
	case "prompt_cache_key":
		f.IDs.PromptCacheKey = r.word()
	case "session_id":
		f.IDs.SessionID = r.word()
	case "litellm_session_id":
		f.IDs.LiteLLMSessionID = r.word()
	case "previous_response_id":
		f.IDs.PreviousResponseID = r.word()
	case "store":
		f.Unstored = r.peek() == 'f'
		r.skip()
	case "tools":
		r.tools()
	case "response_format", "output_format":
		r.format()
	case "output_config", "text":
		r.fields(func(key []byte) {
			if string(key) == "format" {
				r.format()
			} else {
				r.skip()
			}
		})
	default:
		switch {
		case string(key) == f.Route.historyKey():
			r.history()
		case string(key) == f.Route.systemKey():
			r.begin()
			r.content(&r.field)
			r.system()
		default:
			r.skip()
		}
	}
}

// historyKey is the top-level key that holds a route's history.
func (r Route) historyKey() string {
	switch r {
	case RouteChat, RouteMessages, RouteCountTokens, RouteTokenize:
		return "messages"
	case RouteResponses:
		return "input"
	case RouteCompletions:
		return "prompt"
	}
	return ""
}

// systemKey is the top-level key that holds a route's system text, if it has
// one beside its messages.
func (r Route) systemKey() string {
	switch r {
	case RouteMessages, RouteCountTokens:
		return "system"
	case RouteResponses:
		return "instructions"
	}
	return ""
}

func (r *reader) model() {
	at := r.i
	switch r.peek() {
	case '"':
		r.facts.Model = r.decoded()
	case 'n':
		r.scalar()
	default:
		if r.skip(); r.err == nil {
			r.fail(at, "model must be a string")
		}
	}
	r.facts.layout.model = span{at, r.i}
}

func (r *reader) stream() {
	at := r.i
	switch r.peek() {
	case 't', 'f', 'n':
		r.facts.Stream = string(r.scalar()) == "true"
	default:
		if r.skip(); r.err == nil {
			r.fail(at, "stream must be true or false")
		}
	}
}

// streamOptions notes where include_usage stands or could stand. A value of the
// wrong type is the engine's to refuse; until then it counts as a wish, so that
// nothing is spliced over it.
func (r *reader) streamOptions() {
	l := &r.facts.layout
	switch at := r.i; r.peek() {
	case '{':
		l.options = object{open: at + 1, empty: true}
		for key := range r.members {
			l.options.empty = false
			if string(key) != "include_usage" {
				r.skip()
				continue
			}
			at, c := r.i, r.peek()
			r.skip()
			r.facts.IncludeUsage = c != 'f' && c != 'n'
			l.includeUsage = span{at, r.i}
		}
	case 'n':
		r.scalar()
		l.nullOptions = span{at, r.i}
	default:
		r.skip()
		r.facts.IncludeUsage = true
	}
}

// fields reads an object member by member; any other value is skipped. The
// member function must consume the value.
func (r *reader) fields(member func(key []byte)) {
	if r.peek() != '{' {
		r.skip()
		return
	}
	for key := range r.members {
		member(key)
	}
}

// count reads a number of tokens; what is not a positive number reads as 0.
func (s *scanner) count() int64 {
	c := s.peek()
	if c < '0' || c > '9' {
		s.skip()
		return 0
	}
	digits := s.scalar()
	if n, err := strconv.ParseInt(string(digits), 10, 64); err == nil {
		return n
	}
	// 1E2, 4096.0, and what is too large for any engine.
	n, err := strconv.ParseFloat(string(digits), 64)
	if err != nil || n >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}

func (r *reader) tools() {
	at := r.i
	if r.peek() != '[' {
		r.skip()
		return
	}
	for range r.elements {
		r.facts.Tools++
		r.skip()
	}
	r.facts.TextBytes += r.i - at
	r.facts.ToolsSent = xxhash.Sum64(r.b[at:r.i])
	r.facts.ToolsTexts = []Text{{uint32(at), uint32(r.i)}}
}

// format reads a wish for structured output; null and the type "text" are none.
func (r *reader) format() {
	asked := r.peek() != 'n'
	r.fields(func(key []byte) {
		if string(key) == "type" {
			asked = r.word() != "text"
		} else {
			r.skip()
		}
	})
	r.facts.FormatAsked = r.facts.FormatAsked || asked
}

// span is a value's place in a body; the zero span is no place.
type span struct{ from, to int }

// object is where an object opens in a body.
type object struct {
	open  int // offset behind the brace; 0 when there is no object
	empty bool
}

// layout is where things stand in a body, for Splice.
type layout struct {
	root                      object
	model                     span
	options                   object // stream_options, or
	nullOptions, includeUsage span
}
