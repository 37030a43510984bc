// Package session decides which conversation a request belongs to: from the ids
// that clients send, and from the content of the history when they send none.
// Its table remembers identities (key, source, parent, message chain, last token
// counts), never where a conversation lives: homes belong to the routing core.
//
// Where to look: claim.go reads what a request says about itself, history.go
// turns its messages into a chain of hashes, identify.go joins both with what
// the table knows, table.go keeps the rows, list.go reads them, store.go and
// file.go carry them over a restart.
package session

import (
	"encoding/hex"
	"net/http"
	"time"

	"lmwarden/internal/llmapi"
)

// Key names a conversation: a hash over tenant, model, extractor and value. The
// zero Key stands for none.
type Key [16]byte

// nameDigits is the length of a name's hexadecimal part: 48 bits, so that two of
// a million conversations share a name in one table out of five hundred.
const nameDigits = 12

// Name is the key's short form for headers and pages ("c-71f2a09c4d5e"), empty
// for the zero Key.
func (k Key) Name() string {
	if k == (Key{}) {
		return ""
	}
	return "c-" + hex.EncodeToString(k[:nameDigits/2])
}

// Request is what Identify needs of a request.
type Request struct {
	// Tenant separates clients who must not reach each other's conversations; it
	// may be empty.
	Tenant string
	// Model is the canonical name of the model's pool: aliases of one engine model
	// must arrive here under one name, or they split their conversations.
	Model  string
	Header http.Header
	// Facts is nil for a request whose body is not read. Such a request makes no
	// conversation unless it carries the gateway's own header.
	Facts *llmapi.Facts
}

// Identity is the answer to "which conversation is this?".
type Identity struct {
	// Key is zero when the request makes no conversation.
	Key Key
	// Name is Key.Name().
	Name string
	// Source names what gave the key: a header or body field in lower case,
	// "classifier", or "fingerprint".
	Source string
	// Parent is the conversation that started this one as a sub-agent, or zero. It
	// need not be known to the table.
	Parent Key
	// Extends is the known conversation whose history this new one continues, or
	// zero.
	Extends Key
	// Client is the program by its User-Agent ("claude-cli"), or empty.
	Client string
	// Tenant is the request's.
	Tenant string
	// New is set when the table had not seen Key before.
	New bool
	// Turn says that the request asks the model for an answer, so that it counts
	// as a turn.
	Turn bool
}

// Unmeasured stands for a token count that no engine has reported.
const Unmeasured = -1

// Conversation is one row of the table, a copy for readers.
type Conversation struct {
	Key                 Key
	Name                string
	Model               string
	Source              string
	Client              string
	Tenant              string
	Parent              Key
	FirstSeen, LastSeen time.Time // UTC, to the millisecond
	Turns               int64     // generation requests
	PromptTokens        int64     // of the last measured turn, or Unmeasured
	CachedTokens        int64     // of the last measured turn, or Unmeasured
	CompletionTokens    int64     // of the last measured turn, or Unmeasured
	Open                int       // requests open now
}
