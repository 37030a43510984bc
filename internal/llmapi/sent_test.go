package llmapi

import (
	"strings"
	"testing"
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
	if at := strings.Index(text, `{"role":"user"`); len(f.Sent) != 1 || f.Sent[0].At != at || f.SystemSent == 0 || f.ToolsSent == 0 {
		t.Errorf("the message is at %d: %+v", at, f)
	}
}
