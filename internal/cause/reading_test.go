package cause

import (
	"fmt"
	"hash/maphash"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lmwarden/internal/llmapi"
)

// judged sends bodies one after the other, as turns of one conversation of which
// the engine found nothing again, and returns the verdict on the last.
func judged(t testing.TB, route llmapi.Route, bodies ...string) Verdict {
	t.Helper()
	b := NewBook()
	var v Verdict
	for _, body := range bodies {
		f, err := llmapi.Parse(route, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		turn := after()
		turn.Cached = 0
		turn.Sent = PromptOf(f)
		turn.Sent.Read = b.Read(Key{1}, f, []byte(body))
		v = b.Judge(Key{1}, turn, Cache{})
	}
	return v
}

// lorem is a text of n bytes without a repetition.
func lorem(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "word %d, ", i)
	}
	return b.String()[:n]
}

func TestWhereAPromptChanged(t *testing.T) {
	const tail = `,{"role":"assistant","content":"fine"}`
	long, longer := lorem(1000), lorem(100_000)
	for name, tt := range map[string]struct {
		route       llmapi.Route
		before, now string
		part        string
		message     int
		at          string // the first difference stands behind this in the second body
		within      int64
	}{
		"a message": {
			llmapi.RouteChat,
			`{"messages":[{"role":"user","content":"` + long + `abc"}` + tail + `]}`,
			`{"messages":[{"role":"user","content":"` + long + `abX"}` + tail + `]}`,
			PartMessage, 0, long + "ab", 64,
		},
		"a later message, with characters beyond ASCII": {
			llmapi.RouteMessages,
			`{"messages":[{"role":"user","content":"` + long + `"},{"role":"assistant","content":"grüße „x“ ` + long + ` y"},{"role":"user","content":"b"}]}`,
			`{"messages":[{"role":"user","content":"` + long + `"},{"role":"assistant","content":"grüße „x“ ` + long + ` z"},{"role":"user","content":"b"}]}`,
			PartMessage, 1, "“ " + long + " ", 64,
		},
		"one of 100 kB": {
			llmapi.RouteMessages,
			`{"messages":[{"role":"user","content":"` + longer + `abc"}` + tail + `]}`,
			`{"messages":[{"role":"user","content":"` + longer[:77_000] + `X` + longer[77_001:] + `abc"}` + tail + `]}`,
			PartMessage, 0, longer[70_000:77_000], 2048,
		},
		"one that ends earlier": {
			llmapi.RouteMessages,
			`{"messages":[{"role":"user","content":"` + long + long + `"}` + tail + `]}`,
			`{"messages":[{"role":"user","content":"` + long + `"}` + tail + `]}`,
			PartMessage, 0, long, 64,
		},
		"one that lost a block, and its cache mark": {
			llmapi.RouteMessages,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"` + long + `"},{"type":"text","text":"<system-reminder>x</system-reminder>","cache_control":{"type":"ephemeral"}}]}` + tail + `]}`,
			`{"messages":[{"role":"user","content":"` + long + `"}` + tail + `]}`,
			PartMessage, 0, long + `"`, 0,
		},
		"a tool's result": {
			llmapi.RouteMessages,
			`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"` + long + `"}]}]}` + tail + `]}`,
			`{"messages":[{"role":"user","content":[{"tool_use_id":"other","type":"tool_result","content":[{"type":"text","text":"` + long[:700] + `[cleared]"}]}]}` + tail + `]}`,
			PartMessage, 0, long[:700], 64,
		},
		"the arguments of a call": {
			llmapi.RouteChat,
			`{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"path\": \"` + long + `\"}"}}]}` + tail + `]}`,
			`{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"2","type":"function","function":{"name":"f","arguments":"{\"path\": \"` + long[:500] + `\"}"}}]}` + tail + `]}`,
			PartMessage, 1, long[:500], 64,
		},
		"the system text": {
			llmapi.RouteMessages,
			`{"messages":[{"role":"user","content":"u"}],"system":[{"type":"text","text":"` + long + `"},{"type":"text","text":"today is Monday","cache_control":{"type":"ephemeral"}}]}`,
			`{"messages":[{"role":"user","content":"u"}],"system":[{"type":"text","text":"` + long + `"},{"type":"text","text":"today is Tuesday"}]}`,
			PartSystem, 0, "today is ", 24,
		},
		"the system text of chat": {
			llmapi.RouteChat,
			`{"tools":[],"messages": [ {"role":"system","content":"` + long + `"} , {"role":"user","content":"u"} ] ,"n":1}`,
			`{"tools":[],"messages": [ {"role":"system","content":"` + long[:300] + `."} , {"role":"user","content":"u"} ] ,"n":1}`,
			PartSystem, 0, long[:300], 64,
		},
		"the tools, behind the messages": {
			llmapi.RouteMessages,
			`{"messages":[{"role":"user","content":"u"}` + tail + `],"tools":[{"name":"a","description":"` + long + `"},{"name":"b"}]}`,
			`{"messages":[{"role":"user","content":"u"}` + tail + `],"tools":[{"name":"a","description":"` + long + `"},{"name":"c"}]}`,
			PartTools, 0, long + `"},{"name":"`, 64,
		},
	} {
		v := judged(t, tt.route, tt.before, tt.now)
		p := v.At
		if v.Cause != Changed || p.Part != tt.part || p.Message != tt.message {
			t.Errorf("%s: %+v", name, v)
			continue
		}
		want := int64(strings.Index(tt.now, tt.at) + len(tt.at))
		if from := p.Byte + p.Offset; p.Offset < 0 || from > want || want > from+p.Within || p.Within > tt.within {
			t.Errorf("%s: from byte %d within %d; it is byte %d, to be told within %d", name, from, p.Within, want, tt.within)
		}
	}
}

// What an engine does not read makes no place; then the message alone is told.
func TestAChangeOfRoleHasNoByte(t *testing.T) {
	v := judged(t, llmapi.RouteChat,
		`{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`,
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`)
	if v.At.Message != 1 || v.At.Offset != -1 || v.At.Byte <= 0 {
		t.Errorf("%+v", v)
	}
}

// A text that changes twice is compared with what it was the last time.
func TestATextThatChangesTwice(t *testing.T) {
	text := lorem(1000)
	body := func(text string) string {
		return `{"system":"` + text + `","messages":[{"role":"user","content":"` + text + `"}]}`
	}
	for _, tt := range []struct{ now, part string }{
		{strings.Replace(body(text+"b"), text+"b", text+"a", 1), PartMessage},
		{body(text + "b"), PartSystem},
	} {
		v := judged(t, llmapi.RouteMessages, body("a"+text), body(text+"a"), tt.now)
		if v.At.Part != tt.part || v.At.Offset < 900 {
			t.Errorf("%+v", v)
		}
	}
}

// textOf has a text stand in a body as values of some lengths each, and something
// else between them.
func textOf(text string, lengths []int) (body []byte, values []llmapi.Text) {
	for i := 0; len(text) > 0; i++ {
		n := min(len(text), lengths[i%len(lengths)])
		from := len(body)
		body = append(body, text[:n]...)
		values = append(values, llmapi.Text{From: uint32(from), To: uint32(len(body))})
		body, text = append(body, "----"...), text[n:]
	}
	return body, values
}

// Wherever a text of any length, in values of any lengths, is changed, the place told
// holds the first byte that differs, and is no wider than a piece of the text before;
// a text that did not change has no place.
func TestAPlaceHoldsTheChange(t *testing.T) {
	seed := maphash.MakeSeed()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40_000).Draw(t, "length")
		at := rapid.IntRange(0, n).Draw(t, "at")
		was := lorem(n)
		now := was
		switch kind := rapid.IntRange(0, 2).Draw(t, "kind"); {
		case kind == 1: // all behind it, if only by where it stands
			now = was[:at] + rapid.SampledFrom([]string{"", "#"}).Draw(t, "new") + lorem(rapid.IntRange(0, 9000).Draw(t, "then"))
		case kind == 2 && at < n: // one byte
			now = was[:at] + "#" + was[at+1:]
		}
		lengths := rapid.SliceOfN(rapid.IntRange(1, 5000), 1, 4).Draw(t, "values")
		bodyWas, valuesWas := textOf(was, lengths)
		body, values := textOf(now, lengths)

		p := cut(seed, bodyWas, valuesWas)
		if len(p.sums) > mostPieces {
			t.Fatalf("%d pieces", len(p.sums))
		}
		from, to, ok := p.differs(seed, body, values)
		if ok == (was == now) {
			t.Fatalf("a change of %q to %q is told as %v", was, now, ok)
		}
		if !ok {
			return
		}
		// The first byte that differs, naively: in the text, then in the body.
		first := 0
		for first < min(len(was), len(now)) && was[first] == now[first] {
			first++
		}
		want, left := 0, first
		for _, v := range values {
			if want = int(v.From) + left; want < int(v.To) {
				break
			}
			left -= int(v.To - v.From)
			want = int(v.To)
		}
		// A 64th of the text and its last, short leaves; beyond it, what stands between.
		most := leafBytes
		for most*mostPieces < len(was)+leafBytes*len(valuesWas) {
			most *= 2
		}
		told, between := 0, 0
		for _, v := range values {
			if int(v.To) > from && int(v.From) < to {
				told += min(int(v.To), to) - max(int(v.From), from)
				between += 4
			}
		}
		if want < from || want > to || told > most || to-from > told+between {
			t.Fatalf("byte %d of %d is told as %d to %d, at most %d wide", want, len(body), from, to, most)
		}
	})
}

// What was read in the turn before is not read again.
func TestEachTextIsReadOnce(t *testing.T) {
	b := NewBook()
	text := lorem(5000)
	body := `{"system":"` + text + `","messages":[{"role":"user","content":"` + text + `"}]}`
	f, err := llmapi.Parse(llmapi.RouteMessages, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	turn := before()
	turn.Sent = PromptOf(f)
	turn.Sent.Read = b.Read(Key{1}, f, []byte(body))
	b.Judge(Key{1}, turn, Cache{})
	again := b.Read(Key{1}, f, []byte(strings.Repeat(" ", len(body)))) // nobody looks
	for i, p := range []pieces{again.system, again.messages[0]} {
		if len(p.sums) < 40 {
			t.Errorf("text %d: %d pieces", i, len(p.sums))
		}
	}
}

// Turns of one conversation that overlap: what was compared with another turn than
// the one before is not told.
func TestOverlappingTurns(t *testing.T) {
	b := NewBook()
	send := func(word string) (Turn, Key) {
		body := []byte(`{"messages":[{"role":"user","content":"` + word + lorem(500) + `"}]}`)
		f, err := llmapi.Parse(llmapi.RouteChat, body)
		if err != nil {
			t.Fatal(err)
		}
		turn := before()
		turn.Cached, turn.Sent = 0, PromptOf(f)
		turn.Sent.Read = b.Read(Key{1}, f, body)
		return turn, Key{1}
	}
	first, k := send("a")
	b.Judge(k, first, Cache{})
	second, _ := send("b")
	third, _ := send("c") // read while the second is open
	if v := b.Judge(k, second, Cache{}); v.At.Offset < 0 {
		t.Errorf("the second: %+v", v)
	}
	if v := b.Judge(k, third, Cache{}); v.Cause != Changed || v.At.Offset != -1 {
		t.Errorf("the third: %+v", v)
	}
}

func BenchmarkRead(b *testing.B) {
	body, messages := []byte(`{"system":"`+lorem(20_000)+`","tools":[{"description":"`+lorem(30_000)+`"}],"messages":[`), 160
	code := strings.Repeat(`\tif err != nil {\n\t\treturn fmt.Errorf(\"read %s: %w\", name, err)\n\t}\n\t// so that callers need not ask twice for what is known\n`, 22)
	for i := range messages {
		if i%2 == 0 {
			body = fmt.Appendf(body, `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"%d %s"}]},`, i, i, code)
		} else {
			body = fmt.Appendf(body, `{"role":"assistant","content":[{"type":"text","text":"%d %s"},{"type":"tool_use","id":"t%d","name":"Read","input":{"path":"src/file%d.go"}}]},`, i, lorem(400), i+1, i)
		}
	}
	body = append(body[:len(body)-1], `]}`...)
	f, err := llmapi.Parse(llmapi.RouteMessages, body)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("parse", func(b *testing.B) { // the yardstick
		for b.Loop() {
			if _, err := llmapi.Parse(llmapi.RouteMessages, body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first turn", func(b *testing.B) {
		b.ReportAllocs()
		book := NewBook()
		for b.Loop() {
			book.Read(Key{1}, f, body)
		}
	})
	b.Run("a later turn", func(b *testing.B) {
		b.ReportAllocs()
		book, turn := NewBook(), before()
		turn.Sent = PromptOf(f)
		turn.Sent.Messages = turn.Sent.Messages[:messages-2]
		turn.Sent.Read = book.Read(Key{1}, f, body)
		turn.Sent.Read.messages = turn.Sent.Read.messages[:messages-2]
		b.Logf("%d bytes are kept of %d", turn.size(), len(body))
		book.Judge(Key{1}, turn, Cache{})
		for b.Loop() {
			book.Read(Key{1}, f, body)
		}
	})
}
