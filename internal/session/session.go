// Package session decides which conversation a request belongs to: from the ids
// that clients send, and from the content of the history when they send none.
// Its table remembers identities (key, source, parent, message chain, last token
// counts), never where a conversation lives: homes belong to the routing core.
package session

import "time"

// Key names a conversation: a hash over tenant, extractor and value. The zero
// Key stands for none.
type Key [16]byte

// Identity is the answer to "which conversation is this?".
type Identity struct {
	// Key is zero when the request makes no conversation.
	Key Key
	// Name is short, stable, made from Key, and fit for headers and pages
	// ("c-71f2a09c").
	Name string
	// Source names what gave the key: a header or body field in lower case,
	// "classifier", or "fingerprint".
	Source string
	// Parent is the conversation that started this one as a sub-agent, or zero.
	Parent Key
	// Extends is the known conversation whose history this new one continues, or
	// zero.
	Extends Key
	// Client is the program by its User-Agent ("claude-cli"), or empty.
	Client string
	// New is set when the table had not seen Key before.
	New bool
}

// Conversation is one row of the table, a copy for readers.
type Conversation struct {
	Key                 Key
	Name                string
	Model               string
	Source              string
	Client              string
	Parent              Key
	FirstSeen, LastSeen time.Time
	Turns               int64 // generation requests
	PromptTokens        int64 // of the last turn
	CachedTokens        int64 // of the last turn
	CompletionTokens    int64 // of the last turn
	Open                int   // requests open now
}
