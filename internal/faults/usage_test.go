package faults

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"
)

// tokens waits until the gateway's own counters have these tokens by source,
// and completion tokens.
func (g *gateway) tokens(want map[string]int) {
	g.t.Helper()
	await(g.t, fmt.Sprintf("the tokens %v", want), func() error {
		got := map[string]int{}
		for labels, n := range g.metrics("warden_prompt_tokens_total") {
			got[label(labels, "source")] += int(n)
		}
		for _, n := range g.metrics("warden_completion_tokens_total") {
			got["completion"] += int(n)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}

// chatUsage is the chunk that ends a stream of which usage was asked for.
func chatUsage(usage string) string {
	return data(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[],"usage":` + usage + `}`)
}

// counting answers chat streams with usage when it is asked for, as vLLM does.
func counting(usage string) script {
	return func(c *call) {
		all := chat.events("one", "two")
		if bytes.Contains(c.body, []byte(`"include_usage":true`)) {
			all = append(all[:len(all)-1:len(all)-1], chatUsage(usage), all[len(all)-1])
		}
		c.stream(all...)
	}
}

// Tokens of streams are counted whether or not the client asks for them, in
// every dialect, and the client sees what it asked for.
func TestTokensOfStreamsAreCounted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		d      dialect
		more   string
		engine script
		want   map[string]int
	}{
		{"chat, asked for", chat, `,"stream_options":{"include_usage":true}`, counting(usage), map[string]int{"cached": 16, "computed": 14, "completion": 4}},
		{"chat, not asked for", chat, "", counting(usage), map[string]int{"cached": 16, "computed": 14, "completion": 4}},
		{"chat, refused", chat, `,"stream_options":{"include_usage":false}`, counting(usage), map[string]int{"cached": 16, "computed": 14, "completion": 4}},
		{"chat, an engine without", chat, "", func(c *call) { c.stream(chat.events("one")...) }, map[string]int{}},
		{"messages", messages, "", reply, map[string]int{"cached": 16, "computed": 14, "completion": 4}},
		{"responses", responses, "", reply, map[string]int{"cached": 16, "computed": 14, "completion": 4}},
		// Load clients ask for running counts on every chunk, which are sums already.
		{"chat, running counts", chat, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, func(c *call) {
			var all []string
			for i, ev := range chat.events("one", "two") {
				running := fmt.Sprintf(`,"usage":{"prompt_tokens":30,"completion_tokens":%d,"total_tokens":%d}}`, i, 30+i)
				if strings.HasPrefix(ev, "data: {") {
					ev = strings.TrimSuffix(ev, "}\n\n") + running + "\n\n"
				} else {
					all = append(all, chatUsage(usage))
				}
				all = append(all, ev)
			}
			c.stream(all...)
		}, map[string]int{"cached": 16, "computed": 14, "completion": 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := start(t, nil, newEngine(t, 1, tt.engine))
			a := g.post(tt.d.path, tt.d.request("hello", true, tt.more))
			if a.status != 200 || a.err != nil {
				t.Fatalf("got %d %v %s", a.status, a.err, a.body)
			}
			if tt.d.name == "chat" {
				if asked := strings.Contains(tt.more, `"include_usage":true`); strings.Contains(a.body, `"usage"`) != asked {
					t.Errorf("usage asked for: %v; got %s", asked, a.body)
				}
			}
			g.tokens(tt.want)
		})
	}
}

// No cached token, and no word of cached tokens, are two things.
func TestZeroCachedTokensAreNotUnknown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, details string
		want          map[string]int
	}{
		{"zero", `,"prompt_tokens_details":{"cached_tokens":0}`, map[string]int{"computed": 30, "completion": 4}},
		{"present", `,"prompt_tokens_details":{"cached_tokens":16}`, map[string]int{"cached": 16, "computed": 14, "completion": 4}},
		{"all", `,"prompt_tokens_details":{"cached_tokens":30}`, map[string]int{"cached": 30, "completion": 4}},
		{"absent", ``, map[string]int{"unmeasured": 30, "completion": 4}},
		{"null", `,"prompt_tokens_details":null`, map[string]int{"unmeasured": 30, "completion": 4}},
		{"null within", `,"prompt_tokens_details":{"cached_tokens":null}`, map[string]int{"unmeasured": 30, "completion": 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			usage := `{"prompt_tokens":30,"completion_tokens":4,"total_tokens":34` + tt.details + `}`
			g := start(t, nil, newEngine(t, 1, counting(usage)))
			g.post(chat.path, chat.request("hello", true, ""))
			g.tokens(tt.want)
		})
	}
}

// A client that takes gzip must not blind us: the engine is not offered it.
func TestCompressionDoesNotHideTheTokens(t *testing.T) {
	t.Parallel()
	squeezing := func(c *call) {
		zip := strings.Contains(c.header.Get("Accept-Encoding"), "gzip")
		text, kind := chat.whole("hello"), "application/json"
		if isStream(c.body) {
			text, kind = strings.Join(chat.events("hello"), ""), "text/event-stream"
		}
		if !zip {
			c.answer(200, text, "Content-Type", kind)
			return
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write([]byte(text))
		w.Close()
		c.answer(200, b.String(), "Content-Type", kind, "Content-Encoding", "gzip")
	}
	g := start(t, nil, newEngine(t, 1, squeezing))
	if a := g.post(chat.path, chat.request("hello", false, ""), "Accept-Encoding", "gzip, br"); a.body != chat.whole("hello") || a.header.Get("Content-Encoding") != "" {
		t.Errorf("got %v %q", a.header, a.body)
	}
	if a := g.post(chat.path, chat.request("hello", true, ""), "Accept-Encoding", "gzip"); a.body != strings.Join(chat.events("hello"), "") {
		t.Errorf("got %v %q", a.header, a.body)
	}
	g.tokens(map[string]int{"cached": 16, "computed": 14, "completion": 4})
}
