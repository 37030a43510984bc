// Package llmapi is what the gateway reads of the OpenAI and Anthropic wire
// formats: the facts of a request, the usage and the ending of an answer, and
// the errors of each dialect. Bodies and streams pass through it unchanged;
// what must differ (a model's name, a wish for usage) is spliced into the bytes.
// It is not a client library and models no message type completely.
package llmapi

// Route is an engine route whose requests or answers we read.
type Route uint8

const (
	RouteOther       Route = iota // passed through unread
	RouteChat                     // POST /v1/chat/completions
	RouteCompletions              // POST /v1/completions
	RouteResponses                // POST /v1/responses
	RouteMessages                 // POST /v1/messages
	RouteCountTokens              // POST /v1/messages/count_tokens
	RouteEmbeddings               // POST /v1/embeddings and its pooling kin
	RouteTokenize                 // POST /tokenize, /detokenize
)

// Dialect is the family of formats that decides the shape of an error.
type Dialect uint8

const (
	OpenAI Dialect = iota
	Anthropic
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
// blocks, item ids, nulls, thinking).
type Message struct {
	Role Role
	Hash uint64
	// Empty is set when normalisation left nothing; such a message takes no part
	// in a conversation's history.
	Empty bool
}

// BodyIDs are the identity fields of a body, as sent; empty when absent.
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

// Facts are what one pass over a request's body finds.
type Facts struct {
	Route  Route
	Model  string // empty when absent
	Stream bool
	// IncludeUsage says that the client itself asked for usage in its stream.
	IncludeUsage bool
	MaxTokens    int64 // max_tokens, max_completion_tokens or max_output_tokens; 0 when absent
	IDs          BodyIDs
	// Messages is the normalised history in order: chat and messages by message,
	// responses by input item, completions as one user message per prompt.
	// Leading system text is not part of it.
	Messages []Message
	// SystemHash covers the leading system text (system, instructions, leading
	// system and developer messages) without the billing line; SystemHead covers
	// its first 4,096 characters only, which some clients keep stable when the
	// rest changes. Zero when there is none.
	SystemHash, SystemHead uint64
	// OpenerHash covers all user text before the first answer of the model.
	OpenerHash uint64
	// Tools is the number of tools offered; FormatAsked says that the request
	// wants a structured answer (output_config.format, response_format), as title
	// calls do.
	Tools       int
	FormatAsked bool
	// TextBytes counts the prompt's text: system, messages and tools, base64 data
	// left out.
	TextBytes int

	layout layout // where things stand in the body, for Splice
}

// CacheReport says whether an answer told its cached tokens. Absent, null and
// zero are three different things.
type CacheReport uint8

const (
	CacheAbsent   CacheReport = iota // the key is not there
	CacheNull                        // the key is null
	CacheReported                    // a number, 0 included
)

// Usage is an engine's own token count for one answer.
type Usage struct {
	Known      bool
	Prompt     int64 // the whole prompt, cached part included, in every dialect
	Cached     int64
	CacheState CacheReport
	Completion int64
}

// Ending is how an answer ended, as far as its bytes tell.
type Ending uint8

const (
	EndNone     Ending = iota // not ended yet, or cut
	EndComplete               // the dialect's regular end was seen
	EndAborted                // the engine cut the answer short but closed it regularly (finish_reason "abort", null stop reason)
	EndError                  // the answer carries an error
)

// layout is where things stand in a body.
type layout struct{}
