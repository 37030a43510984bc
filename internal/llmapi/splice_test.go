package llmapi

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplice(t *testing.T) {
	tests := []struct {
		name     string
		route    Route
		body     string
		model    string
		askUsage bool
		want     string // empty: the body itself
	}{
		{"nothing asked", RouteChat, `{"model":"a","stream":true}`, "", false, ""},
		{"same model", RouteChat, `{"model":"a"}`, "a", false, ""},
		{"same model, escaped", RouteChat, `{"model":"\u0061"}`, "a", false, ""},
		{"other model", RouteMessages, `{ "x":1E2 , "model" : "claude-\u0061" ,"y":12345678901234567890}`, "qwen", false,
			`{ "x":1E2 , "model" : "qwen" ,"y":12345678901234567890}`},
		{"model that needs escapes", RouteMessages, `{"model":"a"}`, `a"b\`, false, `{"model":"a\"b\\"}`},
		{"null model", RouteChat, `{"model":null}`, "m", false, `{"model":"m"}`},
		{"no model", RouteChat, ` {"x":1}`, "m", false, ` {"model":"m","x":1}`},
		{"empty object", RouteChat, `{ }`, "m", false, `{"model":"m" }`},
		{"usage", RouteChat, `{"stream":true}`, "", true, `{"stream_options":{"include_usage":true},"stream":true}`},
		{"usage and no model", RouteCompletions, `{"stream":true}`, "m", true, `{"model":"m","stream_options":{"include_usage":true},"stream":true}`},
		{"usage into null", RouteChat, `{"stream_options": null,"stream":true}`, "", true, `{"stream_options": {"include_usage":true},"stream":true}`},
		{"usage into an empty object", RouteChat, `{"stream_options":{ },"stream":true}`, "", true, `{"stream_options":{"include_usage":true },"stream":true}`},
		{"usage beside other options", RouteChat, `{"stream_options":{"continuous_usage_stats":true},"stream":true}`, "", true,
			`{"stream_options":{"include_usage":true,"continuous_usage_stats":true},"stream":true}`},
		{"usage for false", RouteChat, `{"stream":true,"stream_options":{"include_usage" :false , "x":0}}`, "", true,
			`{"stream":true,"stream_options":{"include_usage" :true , "x":0}}`},
		{"usage for the last of two", RouteChat, `{"stream":true,"stream_options":{"include_usage":true,"include_usage":null}}`, "", true,
			`{"stream":true,"stream_options":{"include_usage":true,"include_usage":true}}`},
		{"usage and model", RouteChat, `{"stream":true,"stream_options":null,"model":"a"}`, "b", true,
			`{"stream":true,"stream_options":{"include_usage":true},"model":"b"}`},
		{"usage asked for by the client", RouteChat, `{"stream":true,"stream_options":{"include_usage":true}}`, "", true, ""},
		{"options of a wrong type", RouteChat, `{"stream":true,"stream_options":[]}`, "", true, ""},
		{"no stream", RouteChat, `{"model":"a"}`, "", true, ""},
		{"messages tell usage anyway", RouteMessages, `{"stream":true}`, "", true, ""},
		{"responses tell usage anyway", RouteResponses, `{"stream":true}`, "", true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := []byte(tt.body)
			got := parse(t, tt.route, tt.body).Splice(body, tt.model, tt.askUsage)
			if tt.want == "" {
				if &got[0] != &body[0] || string(got) != tt.body {
					t.Errorf("got %s; want the body itself", got)
				}
				return
			}
			if string(got) != tt.want || string(body) != tt.body {
				t.Errorf("got  %s\nwant %s\nbody %s", got, tt.want, body)
			}
		})
	}
}

// FuzzSplice checks that a spliced body says what it should and, with that
// undone, what it said before.
func FuzzSplice(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"model":"a","stream":true}`, `{"stream_options":null,"stream":true,"model":null}`,
		`{"stream":true,"stream_options":{"include_usage":false,"x":[1]}}`, `{"stream":true,"stream_options":{}}`,
		` {"stream" : true , "messages":[{"role":"user","content":"x"}]}`,
	} {
		f.Add([]byte(body), "m", true)
	}
	f.Fuzz(func(t *testing.T, body []byte, model string, ask bool) {
		facts, err := Parse(RouteChat, body)
		if err != nil {
			return
		}
		original := bytes.Clone(body)
		out := facts.Splice(body, model, ask)
		if !bytes.Equal(body, original) {
			t.Fatalf("the body itself changed: %q, was %q", body, original)
		}
		again, err := Parse(RouteChat, out)
		if err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		var before, after map[string]any
		if json.Unmarshal(body, &before) != nil || json.Unmarshal(out, &after) != nil {
			t.Fatalf("%q became %q", body, out)
		}
		if model != "" {
			var want string
			if json.Unmarshal(marshal(model), &want) != nil || again.Model != want {
				t.Fatalf("model %q, want %q", again.Model, model)
			}
		} else if again.Model != facts.Model {
			t.Fatalf("model became %q", again.Model)
		}
		if ask && facts.UsageMissing() && !again.IncludeUsage {
			t.Fatalf("%q became %q, which does not ask for usage", body, out)
		}
		delete(before, "model")
		delete(after, "model")
		if again.IncludeUsage != facts.IncludeUsage {
			stripUsage(before)
			stripUsage(after)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("%q became %q:\n%s", body, out, diff)
		}
	})
}

func stripUsage(body map[string]any) {
	options, _ := body["stream_options"].(map[string]any)
	delete(options, "include_usage")
	if len(options) == 0 {
		delete(body, "stream_options")
	}
}
