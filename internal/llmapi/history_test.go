package llmapi

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parse(t *testing.T, route Route, body string) *Facts {
	t.Helper()
	f, err := Parse(route, []byte(body))
	if err != nil {
		t.Fatalf("%v: %.200s", err, body)
	}
	return f
}

// Each case is one message in forms that must be the same to us, and in forms
// that must not.
func TestMessageHash(t *testing.T) {
	tests := []struct {
		name   string
		route  Route
		same   []string
		differ []string
	}{
		{"text and blocks", RouteMessages, []string{
			`{"role":"user","content":"hello, wörld\n"}`,
			`{"content":[{"text":"hello, w\u00f6rld","type":"text"}],"role":"user"}`,
			`{"role":"user","content":[{"type":"text","text":"hello, wörld","cache_control":{"type":"ephemeral"}}]}`,
			`{"role":"user","content":[{"type":"text","text":"<system-reminder>today</system-reminder>\n"},{"type":"text","text":"hello, wörld"}]}`,
			`{"role":"user","content":"<system-reminder>a\nb</system-reminder>\n\nhello, wörld<current_datetime>2026</current_datetime>"}`,
			`{"role":"user","content":"<environment_details>x</environment_details>hello, wörld \t<session_context></session_context>"}`,
			`{"role":"user","content":"hello, wörld","private":{"x":1},"output_config":null}`,
		}, []string{
			`{"role":"assistant","content":"hello, wörld"}`,
			`{"role":"user","content":"hello, world"}`,
			`{"role":"user","content":"hello, wörld <system-reminder> not closed"}`,
			`{"role":"user","content":"hello, wörld\\n"}`,
			`{"role":"user","content":[{"type":"text","text":"hello, wörld"},{"type":"image","source":{"type":"base64","data":"aGk="}}]}`,
		}},
		{"images", RouteMessages, []string{
			`{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"aGk=","media_type":"image/png"}}]}`,
			`{"role":"user","content":[{"source":{"media_type":"image/png","type":"base64","data":"aGk="},"type":"image","cache_control":{}}]}`,
		}, []string{
			`{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"aGo=","media_type":"image/png"}}]}`,
		}},
		{"Anthropic tool call", RouteMessages, []string{
			`{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"Read","input":{"path":"a","line":1}}]}`,
			`{"role":"assistant","content":[{"input":{"line":1,"path":"a","end":null},"name":"Read","type":"tool_use","id":"toolu_9","cache_control":{"type":"ephemeral"}}]}`,
			`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"ff"},{"type":"redacted_thinking","data":"x"},{"type":"tool_use","id":"toolu_1","name":"Read","input":{"path":"a","line":1}}]}`,
		}, []string{
			`{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"Read","input":{"path":"a","line":"1"}}]}`,
			`{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"Write","input":{"path":"a","line":1}}]}`,
		}},
		{"Anthropic tool result", RouteMessages, []string{
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"package a"}]}`,
			`{"role":"user","content":[{"tool_use_id":"toolu_1","content":[{"type":"text","text":"package a"}],"type":"tool_result","cache_control":{}}]}`,
			`{"role":"user","content":[{"tool_use_id":"toolu_1","content":"package a\n\n<system-reminder>beware</system-reminder>","type":"tool_result"}]}`,
		}, []string{
			`{"role":"user","content":[{"type":"text","text":"package a"}]}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"package b"}]}`,
		}},
		{"chat tool call", RouteChat, []string{
			`{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"a\":1}"}}]}`,
			`{"role":"assistant","content":"","tool_calls":[{"function":{"arguments":"{\"a\":1}","name":"read"},"id":"call_2","type":"function","index":0}]}`,
			`{"tool_calls":[{"function":{"arguments":"{\"a\":1}","name":"read"}}],"role":"assistant","reasoning_content":"hm"}`,
			`{"role":"assistant","function_call":{"name":"read","arguments":"{\u0022a\u0022:1}"},"tool_calls":null}`,
		}, []string{
			`{"role":"assistant","content":"I read","tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"a\":1}"}}]}`,
			`{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"a\":2}"}}]}`,
		}},
		{"chat tool result", RouteChat, []string{
			`{"role":"tool","tool_call_id":"call_1","content":"ok"}`,
			`{"role":"tool","tool_call_id":"call_2","content":[{"type":"text","text":"ok"}],"_copilot":true}`,
		}, []string{
			`{"role":"user","content":"ok"}`,
			`{"role":"tool","tool_call_id":"call_1","content":"failed"}`,
		}},
		{"responses message", RouteResponses, []string{
			`{"role":"user","content":"hi"}`,
			`{"type":"message","id":"msg_1","role":"user","content":[{"type":"input_text","text":"hi"}],"status":null}`,
		}, []string{
			`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi","annotations":[]}]}`,
		}},
		{"responses answer", RouteResponses, []string{
			`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi","annotations":[],"logprobs":null}],"id":"msg_1","status":"completed"}`,
			`{"role":"assistant","content":"hi"}`,
		}, nil},
		{"responses function call", RouteResponses, []string{
			`{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}","status":"completed"}`,
			`{"type":"function_call","call_id":"c2","arguments":"{}","name":"f"}`,
		}, []string{
			`{"type":"function_call_output","call_id":"c2","output":"{}"}`,
			`{"type":"custom_tool_call","call_id":"c2","input":"{ }","name":"f"}`,
		}},
		{"responses function result", RouteResponses, []string{
			`{"type":"function_call_output","id":"fco_1","call_id":"c2","output":"done"}`,
			`{"output":[{"type":"input_text","text":"done"}],"type":"function_call_output"}`,
		}, []string{
			`{"type":"function_call_output","call_id":"c2","output":"undone"}`,
		}},
		{"unknown item", RouteResponses, []string{
			`{"type":"web_search_call","id":"ws_1","status":"completed","action":{"query":"x","n":1}}`,
			`{"action":{"n":1,"query":"x"},"type":"web_search_call"}`,
		}, []string{
			`{"type":"web_search_call","action":{"query":"y","n":1}}`,
			`{"type":"other_call","action":{"query":"x","n":1}}`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hash := func(message string) uint64 {
				key := tt.route.historyKey()
				// A first user message keeps what is tested from leading text.
				f := parse(t, tt.route, `{"`+key+`":[{"role":"user","content":"first"},`+message+`]}`)
				if len(f.Messages) != 2 || f.Messages[1].Empty {
					t.Fatalf("%s: %+v", message, f.Messages)
				}
				return f.Messages[1].Hash
			}
			want := hash(tt.same[0])
			for _, m := range tt.same[1:] {
				if hash(m) != want {
					t.Errorf("hashes differ:\n%s\n%s", tt.same[0], m)
				}
			}
			for _, m := range tt.differ {
				if hash(m) == want {
					t.Errorf("hashes are equal:\n%s\n%s", tt.same[0], m)
				}
			}
		})
	}
}

// shape writes a history as one letter a message, capitals for empty ones.
func shape(f *Facts) string {
	var b strings.Builder
	for _, m := range f.Messages {
		c := "osua"[m.Role : m.Role+1]
		if m.Empty {
			c = strings.ToUpper(c)
		}
		b.WriteString(c)
	}
	return b.String()
}

func TestHistoryShape(t *testing.T) {
	tests := []struct {
		name  string
		route Route
		body  string
		want  string
	}{
		{"none", RouteChat, `{}`, ""},
		{"leading system is none of it", RouteChat, `{"messages":[{"role":"system","content":"s"},{"role":"developer","content":"d"},{"role":"user","content":"u"}]}`, "u"},
		{"later system is", RouteMessages, `{"system":"s","messages":[{"role":"user","content":"u"},{"role":"system","content":"env"},{"role":"assistant","content":"a"}]}`, "usa"},
		{"tool messages", RouteChat, `{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]},{"role":"tool","content":""},{"role":"function","content":"x"},{"role":"ipython","content":"x"}]}`, "uauuo"},
		{"empty ones", RouteMessages, `{"messages":[{"role":"user","content":"<system-reminder>x</system-reminder>"},{"role":"user","content":""},{"role":"user","content":[]},{"role":"user"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm"}]},{"role":"system","content":" \n"}]}`, "UUUUAS"},
		{"responses items", RouteResponses, `{"input":[{"role":"developer","content":"d"},{"role":"user","content":"u"},{"type":"reasoning","id":"rs_1","encrypted_content":"xx"},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"o"},{"type":"local_shell_call","action":{}},{"type":"local_shell_call_output","output":"o"},{"type":"compaction","encrypted_content":"x"}]}`, "uAauauo"},
		{"responses text", RouteResponses, `{"input":"hello"}`, "u"},
		{"one prompt", RouteCompletions, `{"prompt":"p"}`, "u"},
		{"several prompts", RouteCompletions, `{"prompt":["p","q",""]}`, "uuU"},
		{"token ids", RouteCompletions, `{"prompt":[1,2,3]}`, "u"},
		{"lists of token ids", RouteCompletions, `{"prompt":[[1,2],[3]]}`, "uu"},
		{"no prompts", RouteCompletions, `{"prompt":[]}`, ""},
		{"messages mean nothing to responses", RouteResponses, `{"messages":[{"role":"user","content":"u"}]}`, ""},
		{"odd elements", RouteChat, `{"messages":[null,1,[],{"content":"x"},{"role":"user","content":"u"}]}`, "ou"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := shape(parse(t, tt.route, tt.body)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestInputTextIsOneMessage(t *testing.T) {
	a := parse(t, RouteResponses, `{"input":"hello"}`)
	b := parse(t, RouteResponses, `{"input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]}]}`)
	if diff := cmp.Diff(a.Messages, b.Messages); diff != "" || a.OpenerHash != b.OpenerHash {
		t.Errorf("the two forms of input differ:\n%s", diff)
	}
}

func TestSystemText(t *testing.T) {
	long := strings.Repeat("héad ", 900) // 4,500 characters
	system := func(blocks string) string { return `{"system":` + blocks + `,"messages":[]}` }
	chat := func(messages string) string { return `{"messages":[` + messages + `,{"role":"user","content":"u"}]}` }
	same := []struct {
		name  string
		route Route
		a, b  string
	}{
		{"string and blocks", RouteMessages, system(`"be terse"`), system(`[{"type":"text","text":"be terse","cache_control":{"type":"ephemeral"}}]`)},
		{"billing block", RouteMessages, system(`"be terse"`), system(`[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=12345;"},{"type":"text","text":"be terse"}]`)},
		{"billing line", RouteChat, chat(`{"role":"system","content":"be terse"}`), chat(`{"role":"system","content":"x-anthropic-billing-header: cch=9;\n\nbe terse"}`)},
		{"developer", RouteChat, chat(`{"role":"system","content":"be terse"}`), chat(`{"role":"developer","content":[{"type":"text","text":"be terse"}]}`)},
		{"key order", RouteMessages, `{"messages":[{"role":"user","content":"u"}],"system":"s"}`, `{"system":"s","messages":[{"role":"user","content":"u"}]}`},
	}
	for _, tt := range same {
		t.Run(tt.name, func(t *testing.T) {
			a, b := parse(t, tt.route, tt.a), parse(t, tt.route, tt.b)
			if a.SystemHash == 0 || a.SystemHash != b.SystemHash || a.SystemHead != b.SystemHead {
				t.Errorf("%x %x and %x %x", a.SystemHash, a.SystemHead, b.SystemHash, b.SystemHead)
			}
		})
	}

	t.Run("head is cut", func(t *testing.T) {
		for _, form := range []struct {
			route Route
			body  string
		}{
			{RouteMessages, system(`"` + long + `%s"`)},
			{RouteMessages, system(`[{"type":"text","text":"` + long + `"},{"type":"text","text":"%s"}]`)},
			{RouteResponses, `{"instructions":"` + long + `%s"}`},
			{RouteChat, chat(`{"role":"system","content":"` + long + `%s"}`)},
			{RouteChat, chat(`{"role":"system","content":"` + long + `"},{"role":"system","content":"%s"}`)},
			{RouteResponses, `{"input":[{"role":"developer","content":[{"type":"input_text","text":"` + long + `"}]},{"role":"developer","content":"%s"}]}`},
		} {
			a, b := parse(t, form.route, fmt.Sprintf(form.body, "one")), parse(t, form.route, fmt.Sprintf(form.body, "two"))
			if a.SystemHead != b.SystemHead || a.SystemHead == 0 {
				t.Errorf("%v: heads differ behind the cut", form.route)
			}
			if a.SystemHash == b.SystemHash {
				t.Errorf("%v: the whole texts do not differ", form.route)
			}
		}
	})
	t.Run("head before the cut", func(t *testing.T) {
		for _, pad := range []string{strings.Repeat("é", 4096-3), strings.Repeat("x", 4096-3), strings.Repeat("é", 2) + strings.Repeat("x", 4096-5)} {
			for _, form := range []struct {
				route Route
				body  string
			}{{RouteMessages, system(`"%s%s"`)}, {RouteChat, chat(`{"role":"system","content":"%s%s"}`)}} {
				head := func(end string) uint64 { return parse(t, form.route, fmt.Sprintf(form.body, pad, end)).SystemHead }
				if head("one") == head("onE") {
					t.Errorf("%v: the 4,096th character does not count", form.route)
				}
				if head("one") != head("onex") {
					t.Errorf("%v: the 4,097th character counts", form.route)
				}
			}
		}
	})
	t.Run("none", func(t *testing.T) {
		for _, body := range []string{`{}`, system(`""`), system(`[]`), system(`null`), system(`"x-anthropic-billing-header: x"`)} {
			if f := parse(t, RouteMessages, body); f.SystemHash != 0 || f.SystemHead != 0 {
				t.Errorf("%s: %x %x", body, f.SystemHash, f.SystemHead)
			}
		}
	})
}

func TestOpener(t *testing.T) {
	opener := func(messages string) uint64 { return parse(t, RouteMessages, `{"messages":[`+messages+`]}`).OpenerHash }
	base := opener(`{"role":"user","content":"env"},{"role":"user","content":"question"}`)
	if base == 0 {
		t.Fatal("no opener")
	}
	for _, m := range []string{
		`{"role":"user","content":"env"},{"role":"user","content":"question"},{"role":"assistant","content":"answer"},{"role":"user","content":"more"}`,
		`{"role":"user","content":"env"},{"role":"system","content":"here"},{"role":"user","content":"question"}`,
		`{"role":"user","content":"env"},{"role":"user","content":"<system-reminder>now</system-reminder>"},{"role":"user","content":"question"}`,
		`{"role":"user","content":"env"},{"role":"assistant","content":[{"type":"thinking","thinking":"x"}]},{"role":"user","content":"question"}`,
	} {
		if opener(m) != base {
			t.Errorf("the opener changes: %s", m)
		}
	}
	for _, m := range []string{
		`{"role":"user","content":"env"}`,
		`{"role":"user","content":"env"},{"role":"user","content":"question 2"}`,
		`{"role":"user","content":"question"},{"role":"user","content":"env"}`,
	} {
		if opener(m) == base {
			t.Errorf("the opener does not change: %s", m)
		}
	}
	if opener(`{"role":"assistant","content":"hi"},{"role":"user","content":"question"}`) != 0 {
		t.Error("an opener without a user before the first answer")
	}
}

func TestTextBytes(t *testing.T) {
	data := strings.Repeat("QUJD", 1000)
	tests := []struct {
		name  string
		route Route
		body  string
		want  int
	}{
		{"text", RouteChat, `{"messages":[{"role":"system","content":"1234"},{"role":"user","content":[{"type":"text","text":"123456"}]}]}`, 10},
		{"dropped blocks are prompt text too", RouteMessages, `{"messages":[{"role":"user","content":"<system-reminder>x</system-reminder>"}]}`, 36},
		{"Anthropic image", RouteMessages, `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"` + data + `"}},{"type":"text","text":"1234"}]}]}`, 4},
		{"image in a tool result", RouteMessages, `{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"data":"` + data + `"}},{"type":"text","text":"12"}]}]}]}`, 2},
		{"chat image", RouteChat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + data + `"}}]}]}`, 0},
		{"responses image", RouteResponses, `{"instructions":"123","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,` + data + `"}]}]}`, 3},
		{"thinking", RouteMessages, `{"messages":[{"role":"user","content":"1"},{"role":"assistant","content":[{"type":"thinking","thinking":"` + data + `"},{"type":"text","text":"12"}]}]}`, 3},
		{"tool call", RouteChat, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"123"}]}`, len(`"f"`) + len(`"{}"`) + 3},
		{"tools", RouteChat, `{"tools": [{"type":"function"}, {}] }`, len(`[{"type":"function"}, {}]`)},
		{"token ids", RouteCompletions, `{"prompt":[[10,20],[3]]}`, len(`[10,20][3]`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := parse(t, tt.route, tt.body).TextBytes; got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// unfill puts back what the filler of the recordings hides: the line end behind
// a reminder, and Copilot's tags around the time.
func unfill(body []byte) []byte {
	s := strings.ReplaceAll(string(body), "</system-reminder>xx", `</system-reminder>\n`)
	return regexp.MustCompile(`x{18}(\d{4}-\d\d-\d\dT[^x"]*)x{19}`).ReplaceAll([]byte(s), []byte("<current_datetime>$1</current_datetime>"))
}

// In the recordings of each client the history only grows, from turn to turn,
// over a resume, into a fork and into the compaction call.
func TestRecordedConversationsGrow(t *testing.T) {
	for _, c := range conversations(t) {
		t.Run(c.Client+" "+c.Name, func(t *testing.T) {
			route := RouteOf("POST", c.Path)
			var before *Facts
			for i, body := range c.Bodies {
				f := parse(t, route, string(unfill(body)))
				if f.Model == "" || f.OpenerHash == 0 || f.SystemHash == 0 || f.TextBytes == 0 {
					t.Errorf("turn %d lacks facts: %+v", i, f)
				}
				if before != nil {
					if f.OpenerHash != before.OpenerHash {
						t.Errorf("turn %d has another opener", i)
					}
					if f.SystemHead != before.SystemHead {
						t.Errorf("turn %d has another system head", i)
					}
					if old := solid(before); len(solid(f)) <= len(old) || !cmp.Equal(solid(f)[:len(old)], old) {
						t.Errorf("turn %d does not extend the one before:\n%s", i, cmp.Diff(old, solid(f)))
					}
				}
				before = f
			}
		})
	}
}

// solid is the history without its empty messages.
func solid(f *Facts) []Message {
	var ms []Message
	for _, m := range f.Messages {
		if !m.Empty {
			ms = append(ms, m)
		}
	}
	return ms
}
