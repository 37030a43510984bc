package llmapi

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testdata(tb testing.TB, path ...string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, path...)...))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func counted(prompt, cached, completion int64) Usage {
	return Usage{Known: true, Prompt: prompt, Cached: cached, CacheState: CacheReported, Completion: completion}
}

func uncached(prompt, completion int64, state CacheReport) Usage {
	return Usage{Known: true, Prompt: prompt, CacheState: state, Completion: completion}
}

func TestReadRecordedAnswers(t *testing.T) {
	tests := []struct {
		file  string
		route Route
		want  Usage
	}{
		{"chat-cold", RouteChat, counted(238, 0, 8)},
		{"chat-warm", RouteChat, counted(286, 224, 8)},
		{"chat-cached-zero", RouteChat, counted(24, 0, 2)},
		{"chat-tools", RouteChat, counted(750, 608, 4)},
		{"chat-no-details", RouteChat, uncached(155, 2, CacheNull)},
		{"chat-0.33", RouteChat, counted(153, 128, 2)},
		{"completions-cold", RouteCompletions, counted(135, 0, 6)},
		{"completions-warm", RouteCompletions, counted(135, 128, 6)},
		{"completions-token-ids", RouteCompletions, counted(78, 0, 3)},
		{"completions-two-prompts", RouteCompletions, counted(205, 0, 6)},
		{"completions-no-details", RouteCompletions, uncached(100, 2, CacheNull)},
		{"completions-0.33", RouteCompletions, counted(100, 96, 2)},
		{"responses-incomplete", RouteResponses, counted(178, 0, 6)},
		{"responses-tools", RouteResponses, counted(444, 64, 3)},
		{"responses-no-flag", RouteResponses, counted(157, 0, 2)},
		{"messages-cold", RouteMessages, counted(201, 64, 6)}, // 9 + 64 + 128
		{"messages-warm", RouteMessages, counted(201, 192, 6)},
		{"messages-system-role", RouteMessages, counted(40, 0, 2)},
		{"messages-no-details", RouteMessages, uncached(155, 2, CacheAbsent)},
	}
	for _, tt := range tests {
		body := testdata(t, "answers", tt.file+".json")
		var named struct{ ID string }
		if err := json.Unmarshal(body, &named); err != nil || named.ID == "" {
			t.Fatalf("%s: no id: %v", tt.file, err)
		}
		want := Answer{
			ID: named.ID, Usage: tt.want, Ending: EndComplete,
			Unmarked: tt.route == RouteResponses || strings.Contains(string(body), `"tool_calls"`+`,"stop_reason"`) || strings.Contains(string(body), `"tool_use"`),
		}
		if got := ReadAnswer(tt.route, body); got != want {
			t.Errorf("%s: %+v; want %+v", tt.file, got, want)
		}
	}
	files, err := os.ReadDir(filepath.Join("testdata", "answers"))
	if err != nil || len(files) != len(tests) {
		t.Errorf("%d recorded answers, %d tested (%v)", len(files), len(tests), err)
	}
}

func TestReadAnswer(t *testing.T) {
	tests := []struct {
		name  string
		route Route
		body  string
		usage Usage
		want  Ending
	}{
		{"abort", RouteChat, `{"choices":[{"message":{"content":"half"},"finish_reason":"abort"}],"usage":{"prompt_tokens":52,"total_tokens":556,"completion_tokens":504,"prompt_tokens_details":{"cached_tokens":32}}}`, counted(52, 32, 504), EndAborted},
		{"abort of one choice", RouteCompletions, `{"choices":[{"text":"a","finish_reason":"abort"},{"text":"b","finish_reason":"stop"}]}`, Usage{}, EndAborted},
		{"abort as text", RouteChat, `{"choices":[{"message":{"content":"\"finish_reason\":\"abort\""},"finish_reason":"stop"}]}`, Usage{}, EndComplete},
		{"null stop reason", RouteMessages, `{"type":"message","stop_reason":null,"usage":{"input_tokens":1,"output_tokens":2}}`, uncached(1, 2, CacheAbsent), EndAborted},
		{"no stop reason", RouteMessages, `{"type":"message","content":[]}`, Usage{}, EndAborted},
		{"cancelled", RouteResponses, `{"status":"cancelled","usage":null}`, Usage{}, EndAborted},
		{"failed", RouteResponses, `{"status":"failed","error":{"code":"server_error","message":"x"}}`, Usage{}, EndError},
		{"null error", RouteResponses, `{"status":"completed","error":null,"output":[{"status":"failed"}]}`, Usage{}, EndComplete},
		{"OpenAI error", RouteChat, `{"error":{"message":"x","type":"InternalServerError","param":null,"code":500}}`, Usage{}, EndError},
		{"vLLM's 401", RouteMessages, `{"error":"Unauthorized"}`, Usage{}, EndError},
		{"Anthropic error", RouteMessages, `{"type":"error","error":{"type":"api_error","message":"x"}}`, Usage{}, EndError},
		{"old vLLM error", RouteChat, `{"object":"error","message":"x","code":400}`, Usage{}, EndError},
		{"cut", RouteChat, `{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tok`, Usage{}, EndNone},
		{"empty", RouteChat, ``, Usage{}, EndNone},
		{"HTML", RouteChat, `<html>502 Bad Gateway</html>`, Usage{}, EndNone},
		{"array", RouteChat, `[]`, Usage{}, EndNone},
		{"count_tokens", RouteCountTokens, `{"input_tokens":201}`, Usage{}, EndComplete},
		{"embeddings", RouteEmbeddings, `{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}`, uncached(5, 0, CacheAbsent), EndComplete},
		{"cached null", RouteChat, `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":null}}}`, uncached(5, 1, CacheNull), EndComplete},
		{"cached absent", RouteChat, `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{}}}`, uncached(5, 1, CacheAbsent), EndComplete},
		{"cache read only", RouteMessages, `{"stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":32}}`, counted(37, 32, 1), EndComplete},
		{"cache creation only", RouteMessages, `{"stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":1,"cache_creation_input_tokens":32}}`, uncached(37, 1, CacheAbsent), EndComplete},
		{"cache read null", RouteMessages, `{"stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":null,"cache_creation_input_tokens":null}}`, uncached(5, 1, CacheNull), EndComplete},
		{"counts null", RouteChat, `{"choices":[],"usage":{"prompt_tokens":null,"completion_tokens":null}}`, Usage{}, EndComplete},
		{"usage null", RouteChat, `{"choices":[],"usage":null}`, Usage{}, EndComplete},
		{"tool call", RouteChat, `{"choices":[{"message":{},"finish_reason":"tool_calls"}]}`, Usage{}, EndComplete},
		{"tool use", RouteMessages, `{"stop_reason":"tool_use"}`, Usage{}, EndComplete},
		{"usage of a wrong type", RouteChat, `{"choices":{},"usage":[{"prompt_tokens":1}],"delta":"x"}`, Usage{}, EndComplete},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ReadAnswer(tt.route, []byte(tt.body))
			unmarked := tt.want == EndComplete && tt.route == RouteResponses || strings.HasPrefix(tt.name, "tool")
			if diff := cmp.Diff(Answer{Usage: tt.usage, Ending: tt.want, Unmarked: unmarked}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// events joins events, each given as its lines.
func events(lines ...string) string { return strings.Join(lines, "\n\n") + "\n\n" }

const abortChunk = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":"abort","stop_reason":null}],"system_fingerprint":"vllm-0.32.0-dp2"}`

// What streams show, the recorded ones and those of a dying engine
// (engine-death.txt in the project's recordings).
var streamTests = []struct {
	name   string
	route  Route
	stream string // or a recording of this name
	usage  Usage
	ending Ending
	began  bool
}{
	{"chat-no-usage", RouteChat, "", Usage{}, EndComplete, true},
	{"chat-usage", RouteChat, "", counted(286, 256, 8), EndComplete, true},
	{"chat-running-usage", RouteChat, "", counted(286, 256, 4), EndComplete, true},
	{"chat-no-details", RouteChat, "", uncached(155, 2, CacheAbsent), EndComplete, true},
	{"chat-keep-alive", RouteChat, "", Usage{}, EndComplete, true},
	{"chat-0.33", RouteChat, "", counted(153, 128, 2), EndComplete, true},
	{"chat-error-0.33", RouteChat, "", Usage{}, EndError, false},
	{"completions-no-usage", RouteCompletions, "", Usage{}, EndComplete, true},
	{"completions-usage", RouteCompletions, "", counted(135, 128, 3), EndComplete, true},
	{"messages-warm", RouteMessages, "", counted(201, 192, 4), EndComplete, true},
	{"messages-cold", RouteMessages, "", counted(295, 64, 4), EndComplete, true},
	{"messages-no-details", RouteMessages, "", uncached(155, 2, CacheAbsent), EndComplete, true},
	{"messages-0.33", RouteMessages, "", counted(153, 128, 2), EndComplete, true},
	{"messages-error-0.33", RouteMessages, "", Usage{}, EndError, false},
	{"responses", RouteResponses, "", counted(178, 160, 3), EndComplete, true},
	{"responses-incomplete-0.33", RouteResponses, "", counted(117, 0, 2), EndComplete, true},

	{"chat abort", RouteChat, events(strings.TrimSpace(chatDelta), abortChunk, "data: [DONE]"), Usage{}, EndAborted, true},
	{"chat abort with spaces", RouteChat, events(`data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}`), Usage{}, EndAborted, true},
	{"chat abort behind another choice", RouteChat, events(`data: {"choices":[{"index":0,"finish_reason":null},{"index":1,"finish_reason":"abort"}]}`), Usage{}, EndAborted, true},
	{"chat error", RouteChat, events(strings.TrimSpace(chatDelta), `data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}`, "data: [DONE]"), Usage{}, EndError, true},
	{"chat cut", RouteChat, chatDelta + chatDelta + "data: {\"id\"", Usage{}, EndNone, true},
	{"chat cut behind the last chunk", RouteChat, events(`data: {"choices":[{"finish_reason":"stop"}]}`), Usage{}, EndNone, true},
	{"chat usage null until the end", RouteChat, events(`data: {"choices":[{"delta":{},"finish_reason":null}],"usage":null}`, `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, "data: [DONE]"), uncached(7, 3, CacheAbsent), EndComplete, true},
	{"chat running usage, cut", RouteChat, strings.TrimSuffix(chatRunning, "\n"), Usage{}, EndNone, false},
	{"chat running usage, then cut", RouteChat, chatRunning, uncached(286, 1, CacheAbsent), EndNone, true},
	{"chat text that looks like an end", RouteChat, events(`data: {"choices":[{"delta":{"content":"\"finish_reason\":\"abort\" data: [DONE] \"error\":{} \"usage\":{\"prompt_tokens\":1}"},"finish_reason":null}]}`), Usage{}, EndNone, true},
	{"chat not JSON", RouteChat, events("data: oops", "data: [DONE]"), Usage{}, EndComplete, false},
	{"chat CRLF", RouteChat, ": ping\r\n\r\ndata:{\"choices\":[{\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\r\n\r\ndata: [DONE]\r\n\r\n", uncached(7, 3, CacheAbsent), EndComplete, true},
	{"chat error beside a choice", RouteChat, events(`data: {"error":{"code":502},"choices":[{"delta":{},"finish_reason":null}]}`), Usage{}, EndError, true},
	{"chat data in three lines", RouteChat, "data: {\"choices\":\ndata: [{\"finish_reason\":\ndata: \"abort\"}]}\n\n", Usage{}, EndAborted, true},
	{"chat data in two lines", RouteChat, "id: 1\ndata: {\"choices\":\ndata: [{\"finish_reason\":\"abort\"}]}\nretry: 5\n\n", Usage{}, EndAborted, true},
	{"chat comments and blank lines only", RouteChat, ":\n\n: keep-alive\n\n\n\n", Usage{}, EndNone, false},

	{"messages abort", RouteMessages, events("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"stop_reason\":null,\"usage\":{\"input_tokens\":51,\"output_tokens\":0}}}",
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"},\"index\":0}",
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":null,\"stop_sequence\":null},\"usage\":{\"input_tokens\":19,\"output_tokens\":504,\"cache_creation_input_tokens\":32,\"cache_read_input_tokens\":0}}",
		"event: message_stop\ndata: {\"type\":\"message_stop\"}"), counted(51, 0, 504), EndAborted, true},
	{"messages cut before usage is final", RouteMessages, events("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":51,\"output_tokens\":0}}}"), Usage{}, EndNone, false},
	{"messages delta tells the answer only", RouteMessages, events("event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":40,\"cache_creation_input_tokens\":2,\"output_tokens\":1}}}",
		"event: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}",
		"event: message_stop\ndata: {}"), counted(51, 40, 5), EndComplete, false},
	{"messages without event lines", RouteMessages, events(`data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}`, `data: {"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2,"input_tokens":1},"type":"message_delta"}`, `data: {"type":"message_stop"}`, "data: [DONE]"), uncached(1, 2, CacheAbsent), EndComplete, true},
	{"messages error", RouteMessages, events("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"x\"}}"), Usage{}, EndError, false},
	{"messages ping", RouteMessages, events("event: ping\ndata: {\"type\":\"ping\"}"), Usage{}, EndNone, false},

	{"responses failed", RouteResponses, events("event: response.created\ndata: {\"response\":{\"status\":\"in_progress\",\"usage\":null}}",
		"event: response.failed\ndata: {\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\"},\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}"), uncached(3, 1, CacheAbsent), EndError, false},
	{"responses error", RouteResponses, events("event: error\ndata: {\"type\":\"error\",\"code\":\"x\",\"message\":\"y\"}"), Usage{}, EndError, false},
	{"responses bare error", RouteResponses, events(`data: {"error":{"message":"x"}}`), Usage{}, EndError, false},
	{"responses cancelled inside", RouteResponses, events("event: response.completed\ndata: {\"response\":{\"status\":\"cancelled\"}}"), Usage{}, EndAborted, false},
	{"responses without event lines", RouteResponses, events(`data: {"delta":"x","type":"response.output_text.delta"}`, `data: {"response":{"usage":{"input_tokens":3,"output_tokens":1},"output":[{"type":"message","status":"x"}]},"type":"response.completed"}`), uncached(3, 1, CacheAbsent), EndComplete, true},
	{"responses begun only", RouteResponses, events("event: response.created\ndata: {}", "event: response.in_progress\ndata: {}"), Usage{}, EndNone, false},
	{"responses text that looks like an end", RouteResponses, events("event: response.output_text.delta\ndata: {\"delta\":\"event: response.completed\"}"), Usage{}, EndNone, true},

	{"not a generating route", RouteOther, events("data: [DONE]"), Usage{}, EndNone, false},
}

func stream(t testing.TB, name, text string) []byte {
	if text == "" {
		return testdata(t, "streams", name+".sse")
	}
	return []byte(text)
}

func TestStreamsTellTheIDOfTheirAnswer(t *testing.T) {
	for name, route := range map[string]Route{"responses": RouteResponses, "chat-usage": RouteChat, "completions-usage": RouteCompletions, "messages-cold": RouteMessages} {
		s := stream(t, name, "")
		_, rest, _ := bytes.Cut(s, []byte(`"id":"`)) // the first one in each of them is the answer's
		want, _, _ := bytes.Cut(rest, []byte(`"`))
		o := NewObserver(route)
		if o.ID() != "" {
			t.Errorf("%s: %q before it began", name, o.ID())
		}
		if o.Observe(s); o.ID() != string(want) || len(want) == 0 {
			t.Errorf("%s: %q, want %q", name, o.ID(), want)
		}
	}
}

// An announcement is one as long as nothing else has come, and what is alive is no
// longer only announced.
func TestAnnouncements(t *testing.T) {
	const ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
	created := "event: response.created\ndata: {\"response\":{\"status\":\"queued\"}}\n\n"
	started := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n"
	for _, tt := range []struct {
		name   string
		route  Route
		events []string
		want   []bool // behind each
	}{
		{"responses", RouteResponses, []string{created, strings.ReplaceAll(created, "created", "in_progress"), "event: response.output_item.added\ndata: {}\n\n"}, []bool{true, true, false}},
		{"without event lines", RouteResponses, []string{`data: {"type":"response.created"}` + "\n\n"}, []bool{true}},
		{"messages", RouteMessages, []string{started, "event: content_block_start\ndata: {}\n\n"}, []bool{true, false}},
		{"ping", RouteMessages, []string{started, ping, started}, []bool{true, false, false}},
		{"ping without an event line", RouteMessages, []string{started, `data: {"type":"ping"}` + "\n\n"}, []bool{true, false}},
		{"comment", RouteResponses, []string{": keep-alive\n\n", created}, []bool{false, false}},
		{"within an event", RouteChat, []string{chatDelta[:40], chatDelta[40:]}, []bool{true, false}},
		{"empty answer", RouteResponses, []string{created, "event: response.completed\ndata: {}\n\n"}, []bool{true, false}},
		{"error", RouteResponses, []string{created, "event: error\ndata: {}\n\n"}, []bool{true, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := NewObserver(tt.route)
			var got []bool
			for _, e := range tt.events {
				o.Observe([]byte(e))
				got = append(got, o.Announced())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestObserver(t *testing.T) {
	for _, tt := range streamTests {
		t.Run(tt.name, func(t *testing.T) {
			s := stream(t, tt.name, tt.stream)
			check := func(o *Observer, how string) {
				t.Helper()
				if o.Usage() != tt.usage || o.Ending() != tt.ending || o.Began() != tt.began {
					t.Errorf("%s: %+v, %v, began %v\nwant %+v, %v, began %v", how, o.Usage(), o.Ending(), o.Began(), tt.usage, tt.ending, tt.began)
				}
			}
			o := NewObserver(tt.route)
			o.Observe(s)
			check(o, "whole")
			for cut := 0; cut < len(s); cut += 1 + len(s)/1000 {
				o := NewObserver(tt.route)
				o.Observe(s[:cut])
				o.Observe(s[cut:])
				check(o, "in two")
			}
			o = NewObserver(tt.route)
			for i := range s {
				o.Observe(s[i : i+1])
			}
			check(o, "byte by byte")
		})
	}
}

// Who forwards only what Observe lets pass never sends a byte of an event that
// ends the answer badly, if events do not straddle reads.
func TestObserveStopsBeforeABadEnd(t *testing.T) {
	good := chatDelta + chatDelta
	bad := events(abortChunk, "data: [DONE]")
	o := NewObserver(RouteChat)
	if n := o.Observe([]byte(good)); n != len(good) {
		t.Errorf("good events: %d of %d", n, len(good))
	}
	if n := o.Observe([]byte(good + bad)); n != len(good) {
		t.Errorf("good events, then a bad one: %d, want %d", n, len(good))
	}
	if n := o.Observe([]byte(good)); n != 0 {
		t.Errorf("behind a bad event: %d", n)
	}

	o = NewObserver(RouteChat)
	if n := o.Observe([]byte(good + bad[:20])); n != len(good)+20 {
		t.Errorf("start of an event: %d", n)
	}
	if n := o.Observe([]byte(bad[20:])); n != 0 {
		t.Errorf("rest of a bad event: %d", n)
	}
}

func TestObserverBoundsMemory(t *testing.T) {
	o := NewObserver(RouteResponses)
	o.Observe([]byte("event: response.completed\ndata: {\"response\":{\"output\":\""))
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for range 10 {
		o.Observe(chunk)
	}
	if cap(o.partial) > 2*maxEvent {
		t.Errorf("keeps %d bytes of an event", cap(o.partial))
	}
	o.Observe([]byte("\"}}\n\n"))
	if o.Ending() != EndComplete {
		t.Errorf("an oversized event's name does not count: %v", o.Ending())
	}
	if cap(o.partial) > keptCap {
		t.Errorf("still keeps %d bytes behind it", cap(o.partial))
	}
}

// FuzzObserver checks that it does not matter where a stream is split: in the
// pieces given, and at every byte.
func FuzzObserver(f *testing.F) {
	for _, tt := range streamTests {
		f.Add(uint8(tt.route), stream(f, tt.name, tt.stream), uint16(7), uint16(100))
	}
	f.Fuzz(func(t *testing.T, route uint8, s []byte, a, b uint16) {
		whole := NewObserver(Route(route))
		whole.Observe(s)
		bytewise := NewObserver(Route(route))
		for i := range s {
			bytewise.Observe(s[i : i+1])
		}
		split := NewObserver(Route(route))
		for rest := s; len(rest) > 0; a, b = b, a {
			n := min(len(rest), int(a)%257+1)
			if good := split.Observe(rest[:n]); good < 0 || good > n {
				t.Fatalf("Observe returned %d of %d", good, n)
			}
			rest = rest[n:]
		}
		for _, o := range []*Observer{split, bytewise} {
			if whole.Usage() != o.Usage() || whole.Ending() != o.Ending() || whole.Began() != o.Began() {
				t.Fatalf("whole %+v %v, split %+v %v", whole.Usage(), whole.Ending(), o.Usage(), o.Ending())
			}
		}
	})
}
