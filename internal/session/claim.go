package session

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/textproto"
	"strings"

	"lmwarden/internal/llmapi"
)

// OwnHeader is the gateway's own id header. A request that carries it is a turn
// of that conversation, whatever its shape.
const OwnHeader = "X-Warden-Session"

// Name spaces of ids. Sources that carry one and the same value of one client
// share a space, so that a proxy which strips a header does not split a
// conversation; every other source has its own name for a space.
const (
	spaceClaude = "claude-code"
	spaceThread = "thread"
)

// An extractor reads an id from one place of a request.
type extractor struct {
	// source is the header or body field in lower case.
	source string
	// header is the canonical name, empty for a body field.
	header string
	// body reads the field, nil for a header.
	body func(*llmapi.BodyIDs) string
	// space is what the value is hashed with.
	space string
	// titled ids have "title-" in front when the call only asks for a title.
	titled bool
	// own marks the gateway's own header.
	own bool
}

// extractors lists every place of an id in the order in which they are tried:
// our own header, the operator's, then those that clients are known to send.
// x-correlation-id comes last because proxies also set it, for each request.
func extractors(operator []string) []extractor {
	head := func(name, space string) extractor {
		return extractor{source: name, header: textproto.CanonicalMIMEHeaderKey(name), space: space}
	}
	titled := func(name string) extractor {
		x := head(name, name)
		x.titled = true
		return x
	}
	body := func(name, space string, read func(*llmapi.BodyIDs) string) extractor {
		return extractor{source: name, body: read, space: space}
	}
	own := strings.ToLower(OwnHeader)
	known := []extractor{
		head("x-claude-code-session-id", spaceClaude),
		head("thread-id", spaceThread),
		head("session-id", spaceThread),
		titled("x-session-id"),
		titled("x-session-affinity"),
		head("session_id", "session_id"),
	}
	for _, name := range []string{
		"x-opencode-session", "agent-session-id", "x-litellm-session-id", "x-dynamo-session-id",
		"x-amp-thread-id", "x-affinity", "x-grok-conv-id", "x-smg-routing-key", "x-aibrix-session-key",
		"x-conversation-id", "x-openwebui-chat-id",
	} {
		known = append(known, head(name, name))
	}
	known = append(known,
		extractor{source: "x-*-session-id"}, // the place in the order of vendorID
		body("metadata.user_id", spaceClaude, func(b *llmapi.BodyIDs) string { return claudeSession(b.MetadataUserID) }),
		// The thread is finer than Codex's prompt_cache_key, which sub-agents share
		// with their root.
		body("client_metadata.thread_id", spaceThread, func(b *llmapi.BodyIDs) string { return b.ClientThreadID }),
		body("prompt_cache_key", "prompt_cache_key", func(b *llmapi.BodyIDs) string { return b.PromptCacheKey }),
		body("session_id", "session_id", func(b *llmapi.BodyIDs) string { return b.SessionID }),
		body("litellm_session_id", "x-litellm-session-id", func(b *llmapi.BodyIDs) string { return b.LiteLLMSessionID }),
		body("metadata.session_id", "metadata.session_id", func(b *llmapi.BodyIDs) string { return b.MetadataSessionID }),
		body("client_metadata.session_id", spaceThread, func(b *llmapi.BodyIDs) string { return b.ClientSessionID }),
		body("conversation", "conversation", func(b *llmapi.BodyIDs) string { return b.Conversation }),
		body("conversation_id", "conversation_id", func(b *llmapi.BodyIDs) string { return b.ConversationID }),
		head("x-correlation-id", "x-correlation-id"),
	)

	first := head(own, own)
	first.own = true
	list := []extractor{first}
	for _, name := range operator {
		x := head(strings.ToLower(name), strings.ToLower(name))
		for _, k := range known {
			if k.header == x.header {
				x = k
			}
		}
		list = append(list, x)
	}
	return append(list, known...)
}

// claim is what a request says about its conversation.
type claim struct {
	source string // empty when the request carries no id
	own    bool
	title  bool // the id says that the call asks for a title
	key    Key
	parent Key
}

// read finds the first id of a request.
func read(list []extractor, r *Request) claim {
	var ids *llmapi.BodyIDs
	if r.Facts != nil {
		ids = &r.Facts.IDs
	} else {
		ids = &llmapi.BodyIDs{}
	}
	for i := range list {
		x := &list[i]
		source, space := x.source, x.space
		var value string
		switch {
		case x.header != "":
			value = usable(headerValue(r.Header, x.header))
		case x.body != nil:
			value = usable(x.body(ids))
		default:
			source, value = vendorID(r.Header)
			space = source
		}
		var title bool
		if x.titled {
			if rest, ok := strings.CutPrefix(value, "title-"); ok {
				value, title = usable(rest), true
			}
		}
		if value == "" {
			continue
		}
		c := claim{source: source, own: x.own, title: title}
		if x.own {
			c.key = keyOf(r.Tenant, r.Model, space, value)
			return c
		}
		agent := usable(headerValue(r.Header, "X-Claude-Code-Agent-Id"))
		c.key = keyOf(r.Tenant, r.Model, space, value, agent)
		if value, agent, ok := parent(r.Header, ids, space, value, agent); ok {
			c.parent = keyOf(r.Tenant, r.Model, space, value, agent)
		}
		return c
	}
	return claim{}
}

// parent finds the conversation that started a sub-agent, as a value in the
// child's own name space.
func parent(h http.Header, ids *llmapi.BodyIDs, space, value, agent string) (pvalue, pagent string, ok bool) {
	if agent != "" {
		pagent = usable(headerValue(h, "X-Claude-Code-Parent-Agent-Id"))
		return value, pagent, pagent != agent
	}
	names := []string{"X-Parent-Session-Id", "X-Dynamo-Parent-Session-Id"}
	if space == spaceThread {
		// Codex: a sub-agent's thread has the session of its root, whose thread has
		// the same id.
		names = []string{"X-Codex-Parent-Thread-Id", "Session-Id", "X-Parent-Session-Id"}
	}
	for _, name := range names {
		if v := usable(headerValue(h, name)); v != "" && v != value {
			return v, "", true
		}
	}
	if v := usable(ids.ClientSessionID); space == spaceThread && v != "" && v != value {
		return v, "", true
	}
	return "", "", false
}

// headerValue reads a header. Lines with one value count once; different values
// are one value, joined as a proxy would join them (RFC 9110, 5.3).
func headerValue(h http.Header, canonical string) string {
	lines := h[canonical]
	if len(lines) == 0 {
		return ""
	}
	for _, line := range lines[1:] {
		if line != lines[0] {
			return strings.Join(lines, ", ")
		}
	}
	return lines[0]
}

// usable trims an id and returns it, or nothing when it cannot be one: control
// characters, or the words that programs write where they have no value.
func usable(v string) string {
	v = strings.TrimSpace(v)
	for i := range len(v) {
		if v[i] < ' ' || v[i] == 0x7f {
			return ""
		}
	}
	if len(v) <= len("undefined") {
		switch strings.ToLower(v) {
		case "default", "null", "undefined", "none":
			return ""
		}
	}
	return v
}

// vendorID finds a header of the form x-<vendor>-session-id whose value looks
// like an id. Several are tried in the order of their names.
func vendorID(h http.Header) (source, value string) {
	for name, lines := range h {
		if !strings.HasPrefix(name, "X-") || !strings.HasSuffix(name, "-Session-Id") ||
			strings.HasSuffix(name, "-Parent-Session-Id") || len(name) <= len("X-Session-Id") || len(lines) == 0 {
			continue
		}
		lower := strings.ToLower(name)
		v := usable(headerValue(h, name))
		if len(v) < 8 || !only(v, "-_") || !only(lower, "-") || source != "" && source < lower {
			continue
		}
		source, value = lower, v
	}
	return source, value
}

// only reports whether s has nothing but letters, digits and the extra bytes.
func only(s, extra string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(extra, c) < 0 {
			return false
		}
	}
	return true
}

// claudeSession finds the session id in Claude Code's metadata.user_id: a JSON
// object since 2.1.81, before that "user_<hex>_account_<uuid>_session_<uuid>".
// Nothing else of the field is used, since it names the installation.
func claudeSession(userID string) string {
	if strings.HasPrefix(userID, "{") {
		var id struct {
			SessionID string `json:"session_id"`
		}
		if json.Unmarshal([]byte(userID), &id) != nil {
			return ""
		}
		return id.SessionID
	}
	const uuid = 36
	i := len(userID) - uuid
	if i < 0 || !strings.HasSuffix(userID[:i], "_session_") {
		return ""
	}
	for _, c := range []byte(userID[i:]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && c != '-' {
			return ""
		}
	}
	return userID[i:]
}

// keyOf hashes parts, each with its length in front so that no two lists of
// parts meet.
func keyOf(parts ...string) Key {
	sum := digest(parts...)
	return Key(sum[:16])
}

func digest(parts ...string) [sha256.Size]byte {
	buf := make([]byte, 0, 512)
	for _, p := range parts {
		buf = binary.AppendUvarint(buf, uint64(len(p)))
		buf = append(buf, p...)
	}
	return sha256.Sum256(buf)
}

// maxClient bounds a client's name, which a stranger chooses.
const maxClient = 32

// client names the program of a request by the first product of its User-Agent,
// in lower case. SDKs write their language where others have a version.
func client(h http.Header) string {
	product, _, _ := strings.Cut(strings.TrimSpace(headerValue(h, "User-Agent")), " ")
	name, version, _ := strings.Cut(product, "/")
	if version != "" && !strings.ContainsAny(version, "0123456789") {
		name += "-" + version
	}
	if name = strings.ToLower(name); len(name) > maxClient || !only(name, "-_.") {
		return ""
	}
	return name
}
