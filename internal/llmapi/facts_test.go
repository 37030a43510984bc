package llmapi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRoutes(t *testing.T) {
	tests := []struct {
		method, path string
		want         Route
		name         string
		generates    bool
		dialect      Dialect
	}{
		{"POST", "/v1/chat/completions", RouteChat, "chat", true, OpenAI},
		{"POST", "/v1/completions", RouteCompletions, "completions", true, OpenAI},
		{"POST", "/v1/responses", RouteResponses, "responses", true, OpenAI},
		{"POST", "/v1/messages", RouteMessages, "messages", true, Anthropic},
		{"POST", "/v1/messages/count_tokens", RouteCountTokens, "count_tokens", false, Anthropic},
		{"POST", "/v1/embeddings", RouteEmbeddings, "embeddings", false, OpenAI},
		{"POST", "/v2/rerank", RouteEmbeddings, "embeddings", false, OpenAI},
		{"POST", "/tokenize", RouteTokenize, "tokenize", false, OpenAI},
		{"POST", "/detokenize", RouteTokenize, "tokenize", false, OpenAI},
		{"GET", "/v1/responses", RouteOther, "other", false, OpenAI},
		{"HEAD", "/v1/messages", RouteOther, "other", false, OpenAI},
		{"GET", "/v1/models", RouteOther, "other", false, OpenAI},
		{"POST", "/v1/chat/completions/", RouteOther, "other", false, OpenAI},
		{"POST", "/v1/responses/resp_1/cancel", RouteOther, "other", false, OpenAI},
		{"POST", "", RouteOther, "other", false, OpenAI},
	}
	for _, tt := range tests {
		r := RouteOf(tt.method, tt.path)
		if r != tt.want || r.String() != tt.name || r.Generates() != tt.generates || r.Dialect() != tt.dialect {
			t.Errorf("%s %s: %v, %q, %v, %v", tt.method, tt.path, r, r.String(), r.Generates(), r.Dialect())
		}
	}
}

func TestFields(t *testing.T) {
	tests := []struct {
		name  string
		route Route
		body  string
		want  Facts
	}{
		{"Claude Code", RouteMessages,
			`{"messages":[],"model":"claude-opus-5-5","metadata":{"user_id":"{\"device_id\":\"00\",\"session_id\":\"5d\"}"},"max_tokens":32000,"stream":true,"tools":[{"name":"a"},{"name":"b"}],"output_config":{"effort":"high"}}`,
			Facts{Model: "claude-opus-5-5", Stream: true, MaxTokens: 32000, Tools: 2,
				IDs: BodyIDs{MetadataUserID: `{"device_id":"00","session_id":"5d"}`}}},
		{"title call", RouteMessages, `{"tools":[],"output_config":{"format":{"type":"json_schema","schema":{}}}}`, Facts{FormatAsked: true}},
		{"Codex", RouteResponses,
			`{"model":"m","prompt_cache_key":"k","client_metadata":{"session_id":"s","thread_id":"t","x":1},"stream":true,"max_output_tokens":9,"previous_response_id":"resp_1"}`,
			Facts{Model: "m", Stream: true, MaxTokens: 9, IDs: BodyIDs{PromptCacheKey: "k", ClientSessionID: "s", ClientThreadID: "t", PreviousResponseID: "resp_1"}}},
		{"other ids", RouteChat,
			`{"metadata":{"session_id":"a","user_id":1},"session_id":"b","litellm_session_id":"c","conversation":"d","conversation_id":"e"}`,
			Facts{IDs: BodyIDs{MetadataSessionID: "a", SessionID: "b", LiteLLMSessionID: "c", Conversation: "d", ConversationID: "e"}}},
		{"conversation object", RouteResponses, `{"conversation":{"x":[],"id":"conv_1"}}`, Facts{IDs: BodyIDs{Conversation: "conv_1"}}},
		{"ids of other types", RouteChat, `{"metadata":"x","session_id":7,"prompt_cache_key":null,"conversation":[1],"client_metadata":null}`, Facts{}},
		{"the last of two inner keys", RouteChat, `{"metadata":{"user_id":"a","user_id":"b"}}`, Facts{IDs: BodyIDs{MetadataUserID: "b"}}},
		{"escaped model", RouteChat, `{"m\u006fdel":"qw\u0065n\/3"}`, Facts{Model: "qwen/3"}},
		{"include_usage", RouteChat, `{"stream":true,"stream_options":{"include_usage":true}}`, Facts{Stream: true, IncludeUsage: true}},
		{"include_usage false", RouteChat, `{"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":false}}`, Facts{Stream: true}},
		{"include_usage of a wrong type", RouteChat, `{"stream_options":{"include_usage":1}}`, Facts{IncludeUsage: true}},
		{"stream_options of a wrong type", RouteChat, `{"stream_options":"yes"}`, Facts{IncludeUsage: true}},
		{"max_completion_tokens wins", RouteChat, `{"max_completion_tokens":5,"max_tokens":7}`, Facts{MaxTokens: 5}},
		{"max_tokens in another form", RouteChat, `{"max_tokens":1E2}`, Facts{MaxTokens: 100}},
		{"max_tokens of 20 digits", RouteChat, `{"max_tokens":12345678901234567890}`, Facts{MaxTokens: 1<<63 - 1}},
		{"max_tokens negative", RouteChat, `{"max_tokens":-1}`, Facts{}},
		{"store false", RouteResponses, `{"store":false}`, Facts{Unstored: true}},
		{"store true", RouteResponses, `{"store":true}`, Facts{}},
		{"store null", RouteResponses, `{"store":null}`, Facts{}},
		{"response_format", RouteChat, `{"response_format":{"type":"json_object"}}`, Facts{FormatAsked: true}},
		{"response_format text", RouteChat, `{"response_format":{"type":"text"}}`, Facts{}},
		{"response_format null", RouteChat, `{"response_format":null}`, Facts{}},
		{"text.format", RouteResponses, `{"text":{"verbosity":"low","format":{"type":"json_schema"}}}`, Facts{FormatAsked: true}},
		{"text.format text", RouteResponses, `{"text":{"format":{"type":"text"}}}`, Facts{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Route = tt.route
			got := parse(t, tt.route, tt.body)
			if diff := cmp.Diff(&tt.want, got, cmpopts.IgnoreFields(Facts{}, "layout", "TextBytes", "Sent", "SystemSent", "ToolsSent", "Attribution", "SystemTexts", "ToolsTexts", "texts"), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
		})
	}
}
