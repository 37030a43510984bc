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

// RouteOf names the route of a request. The path carries no query; it is
// compared exactly, as the engines do.
func RouteOf(method, path string) Route {
	if method != "POST" {
		return RouteOther
	}
	switch path {
	case "/v1/chat/completions":
		return RouteChat
	case "/v1/completions":
		return RouteCompletions
	case "/v1/responses":
		return RouteResponses
	case "/v1/messages":
		return RouteMessages
	case "/v1/messages/count_tokens":
		return RouteCountTokens
	case "/v1/embeddings", "/v2/embed", "/pooling", "/classify",
		"/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank":
		return RouteEmbeddings
	case "/tokenize", "/detokenize":
		return RouteTokenize
	}
	return RouteOther
}

// Generates reports whether an answer on this route is a turn of generation.
func (r Route) Generates() bool {
	return r == RouteChat || r == RouteCompletions || r == RouteResponses || r == RouteMessages
}

// Dialect is the family whose error shape the route's clients expect.
func (r Route) Dialect() Dialect {
	if r == RouteMessages || r == RouteCountTokens {
		return Anthropic
	}
	return OpenAI
}

// String is the route's short name, fit for logs and labels.
func (r Route) String() string {
	switch r {
	case RouteChat:
		return "chat"
	case RouteCompletions:
		return "completions"
	case RouteResponses:
		return "responses"
	case RouteMessages:
		return "messages"
	case RouteCountTokens:
		return "count_tokens"
	case RouteEmbeddings:
		return "embeddings"
	case RouteTokenize:
		return "tokenize"
	}
	return "other"
}

// usageOnRequest reports whether streams of this route tell their usage only
// when stream_options asks for it.
func (r Route) usageOnRequest() bool { return r == RouteChat || r == RouteCompletions }

// Dialect is the family of formats that decides the shape of an error.
type Dialect uint8

const (
	OpenAI Dialect = iota
	Anthropic
)

// String is the dialect's name in lower case.
func (d Dialect) String() string {
	if d == Anthropic {
		return "anthropic"
	}
	return "openai"
}
