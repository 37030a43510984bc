package llmapi

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is sent differs where the engine's prompt would: in what normalisation
// leaves out too, but not in cache marks or ids.
func TestWhatWasSent(t *testing.T) {
	body := func(system, reminder, mark string) *Facts {
		f, err := Parse(RouteMessages, []byte(`{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header: cch=`+system+`;"},{"type":"text","text":"be terse"}],`+
			`"messages":[{"role":"user","content":[{"type":"text","text":"<system-reminder>`+reminder+`</system-reminder>hello"`+mark+`}]},{"role":"assistant","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	a, b := body("00000", "one", ""), body("00000", "one", `,"cache_control":{"type":"ephemeral"}`)
	if a.Sent[0].Hash != b.Sent[0].Hash || a.SystemSent != b.SystemSent || a.Attribution != b.Attribution || a.Attribution == 0 {
		t.Errorf("a cache mark changes what was sent: %+v %+v", a, b)
	}
	if b = body("00000", "two", ""); a.Sent[0].Hash == b.Sent[0].Hash || a.Messages[0].Hash != b.Messages[0].Hash || a.Sent[1].Hash != b.Sent[1].Hash {
		t.Errorf("a reminder does not change what was sent: %+v %+v", a, b)
	}
	if b = body("12345", "one", ""); a.SystemSent == b.SystemSent || a.Attribution == b.Attribution || a.SystemHash != b.SystemHash {
		t.Errorf("an attribution line does not change what was sent: %+v %+v", a, b)
	}
	text := `{"messages": [ {"role":"system","content":"s"}, {"role":"user","content":"u"} ],"tools":[{"name":"t"}]}`
	f, err := Parse(RouteChat, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if at := strings.Index(text, `{"role":"user"`); len(f.Sent) != 1 || int(f.Sent[0].At) != at || f.SystemSent == 0 || f.ToolsSent == 0 {
		t.Errorf("the message is at %d: %+v", at, f)
	}
}

// texts are what the texts of a body mean: of the system text, the tools, and each
// message. They follow each other and are whole values.
func texts(t testing.TB, f *Facts, body []byte) (all [][]any) {
	t.Helper()
	read := func(texts []Text) {
		values, last := []any{}, 0
		for _, at := range texts {
			d := json.NewDecoder(bytes.NewReader(body[at.From:at.To]))
			d.UseNumber()
			var v any
			if err := d.Decode(&v); err != nil || d.More() || int(at.From) < last {
				t.Fatalf("a text from %d to %d: %v, after one that ends at %d: %q", at.From, at.To, err, last, body)
			}
			values, last = append(values, v), int(at.To)
		}
		all = append(all, values)
	}
	read(f.SystemTexts)
	read(f.ToolsTexts)
	for i := range f.Sent {
		read(f.TextsOf(i))
	}
	return all
}

func TestWhereTextsStand(t *testing.T) {
	type values = []any
	for name, tt := range map[string]struct {
		route Route
		body  string
		want  [][]any // system, tools, messages
	}{
		"nothing": {RouteChat, `{}`, [][]any{{}, {}}},
		"messages before the system text, marks, ids and thinking": {
			RouteMessages,
			`{"messages":[
				{"role":"user","content":"a"},
				{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":"x"},{"thinking":"x","type":"thinking"},{"type":"text","text":"b"},
					{"type":"tool_use","id":"x","name":"c","input":{"d":[1]}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","is_error":true,"content":[{"type":"text","text":"e","cache_control":{"type":"x"}}]},
					{"type":"image","source":"f"},{"type":"text","text":""}],"private":"x"}],
			"system":[{"type":"text","text":"g","cache_control":{"type":"x"}}],"tools":[ {"name":"h"} ]}`,
			[][]any{{"g"}, {values{map[string]any{"name": "h"}}}, {"a"}, {"b", "c", map[string]any{"d": values{json.Number("1")}}}, {"e", "f", ""}},
		},
		"leading messages, and calls of chat": {
			RouteChat,
			`{"messages":[{"role":"system","content":"a"},7,{"role":"developer","content":"b"},{"role":"user","content":"c"},
				{"role":"assistant","content":null,"reasoning_content":"x","tool_calls":[{"id":"x","type":"function","function":{"name":"d","arguments":"{}"}}]},
				{"role":"system","content":"e"}]}`,
			[][]any{{"a", "b"}, {}, {"c"}, {"d", "{}"}, {"e"}},
		},
		"items": {
			RouteResponses,
			`{"instructions":"a","input":[{"role":"developer","content":"b"},"c",{"type":"reasoning","summary":["x"],"encrypted_content":"x"},
				{"type":"function_call","call_id":"x","name":"d","arguments":"e"},{"type":"function_call_output","call_id":"x","output":"f"}]}`,
			[][]any{{"a", "b"}, {}, {"c"}, {}, {"d", "e"}, {"f"}},
		},
		"prompts":  {RouteCompletions, `{"prompt":["a","b"]}`, [][]any{{}, {}, {"a"}, {"b"}}},
		"a prompt": {RouteCompletions, `{"prompt":[1]}`, [][]any{{}, {}, {values{json.Number("1")}}}},
	} {
		f, err := Parse(tt.route, []byte(tt.body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, texts(t, f, []byte(tt.body))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Where there are more texts than are noted, the others are left out.
func TestTooManyTexts(t *testing.T) {
	many := `[` + strings.Repeat(`"",`, maxTexts) + `""]`
	f, err := Parse(RouteMessages, []byte(`{"system":"s","messages":[{"role":"user","content":`+many+`},{"role":"user","content":"u"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.TextsOf(0)) + len(f.TextsOf(1)) + len(f.SystemTexts); n != maxTexts || len(f.TextsOf(1)) != 0 {
		t.Errorf("%d texts are noted, %d of them of the last message", n, len(f.TextsOf(1)))
	}
}
