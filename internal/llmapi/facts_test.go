package llmapi

import "testing"

func TestSmoke(t *testing.T) {
	for _, c := range []string{`{"model":"x","stream":true,"messages":[{"role":"system","content":"sys"},{"role":"user","content":[{"type":"text","text":"h\u00e9 <system-reminder>x</system-reminder>"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}]}`,
		`{"model":1}`, `{"a":1,"a":2}`, `{"a":NaN}`, "\xef\xbb\xbf{}", `[]`, ``, `{"a":"\xff"`, `{"a":1}x`, "{\"a\":\"\xff\"}", `{"a":01}`} {
		f, err := Parse(RouteChat, []byte(c))
		t.Logf("%q %+v %v", c[:min(20, len(c))], f, err)
	}
}
