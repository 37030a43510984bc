package llmapi

import "testing"

// Answers of other engines than vLLM: llama.cpp's are recorded (llama-server
// b10434, texts shortened), SGLang's are unrecorded, as its source writes them.
func TestUsageOfOtherEngines(t *testing.T) {
	tests := []struct {
		name   string
		route  Route
		body   string
		stream bool
		want   Usage
	}{
		{"llama.cpp, chat", RouteChat, `{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":"6t6t"}}],"created":1795996604,"model":"tiny","system_fingerprint":"b1-7e4c0a9","object":"chat.completion","usage":{"completion_tokens":4,"prompt_tokens":436,"total_tokens":440,"prompt_tokens_details":{"cached_tokens":435}},"id":"chatcmpl-nqMnleW2GXkTsbj3iWr0fJt9cf2Detym","timings":{"cache_n":435,"prompt_n":1,"prompt_ms":0.989,"predicted_n":4,"predicted_ms":2.011}}`,
			false, counted(436, 435, 4)},
		{"llama.cpp, chat streamed", RouteChat, "data: {\"choices\":[{\"finish_reason\":\"length\",\"index\":0,\"delta\":{}}],\"id\":\"chatcmpl-6EA\",\"object\":\"chat.completion.chunk\"}\n\n" +
			"data: {\"choices\":[],\"id\":\"chatcmpl-6EA\",\"object\":\"chat.completion.chunk\",\"usage\":{\"completion_tokens\":4,\"prompt_tokens\":436,\"total_tokens\":440,\"prompt_tokens_details\":{\"cached_tokens\":435}},\"timings\":{\"cache_n\":435,\"prompt_n\":1,\"predicted_n\":4}}\n\n" +
			"data: [DONE]\n\n", true, counted(436, 435, 4)},
		{"llama.cpp, messages", RouteMessages, `{"id":"chatcmpl-XQ0","type":"message","role":"assistant","content":[{"type":"text","text":"6t6t"}],"model":"tiny","stop_reason":"max_tokens","stop_sequence":null,"usage":{"cache_read_input_tokens":435,"input_tokens":1,"output_tokens":4}}`,
			false, counted(436, 435, 4)},
		{"llama.cpp, messages streamed", RouteMessages, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-jsD\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"tiny\",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"cache_read_input_tokens\":435,\"input_tokens\":1,\"output_tokens\":0}}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":4}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true, counted(436, 435, 4)},
		{"llama.cpp, responses streamed", RouteResponses, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_m0e\",\"object\":\"response\",\"status\":\"completed\",\"model\":\"tiny\",\"output\":[],\"usage\":{\"input_tokens\":436,\"output_tokens\":4,\"total_tokens\":440,\"input_tokens_details\":{\"cached_tokens\":435}}},\"timings\":{\"cache_n\":435,\"prompt_n\":1}}\n\n",
			true, counted(436, 435, 4)},

		{"SGLang, chat with --enable-cache-report", RouteChat, `{"id":"a","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop","matched_stop":2}],"usage":{"prompt_tokens":436,"total_tokens":440,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":435},"reasoning_tokens":0}}`,
			false, counted(436, 435, 4)},
		{"SGLang, chat with nothing cached or no report", RouteChat, `{"id":"a","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":436,"total_tokens":440,"completion_tokens":4,"prompt_tokens_details":null}}`,
			false, uncached(436, 4, CacheNull)},
		{"SGLang, messages streamed", RouteMessages, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":435,\"output_tokens\":4}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true, counted(436, 435, 4)},
		{"SGLang, responses", RouteResponses, `{"id":"a","object":"response","status":"completed","output":[],"usage":{"input_tokens":436,"input_tokens_details":{"cached_tokens":435},"output_tokens":4,"total_tokens":440}}`,
			false, counted(436, 435, 4)},
	}
	for _, test := range tests {
		usage, ending := Usage{}, EndNone
		if test.stream {
			o := NewObserver(test.route)
			o.Observe([]byte(test.body))
			usage, ending = o.Usage(), o.Ending()
		} else {
			a := ReadAnswer(test.route, []byte(test.body))
			usage, ending = a.Usage, a.Ending
		}
		if usage != test.want || ending != EndComplete {
			t.Errorf("%s: %+v, %v; want %+v, complete", test.name, usage, ending, test.want)
		}
	}
}
